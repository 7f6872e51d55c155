"""Scores and judgement against plain Python, and the probe against right and wrong stand-ins."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import children
from tests.probes import fe_indexer_stand_in, inline
from tests.probes.asking import Asker, Reply, component
from tests.probes.fe_indexer_stand_in import TOP_K_FAULTS

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")


@pytest.fixture
def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reply]]:
    def asked(fault: str = "", *, outside: bool = False, **parameters: Any) -> Reply:
        folder = asker.folder / "frontend"
        fe_indexer_stand_in.write(folder, fault)
        monkeypatch.syspath_prepend(folder)
        asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="json"),
            "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
        }
        if not outside:
            monkeypatch.setattr(children, "run", inline.run)
        few = {
            "device": "cpu",
            "rows": 24,
            "cases": ["64:8", "61:8", "8:8"],
            "few_cases": ["64:8"],
            "huge": ["40:16"],
        }
        return asker.here("indexer-topk", **{**few, **parameters})

    known = set(sys.modules)
    yield asked
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == "cudnn":
            del sys.modules[name]


def plainly_wrong(indices: list[int], values: list[float], length: int, count: int) -> bool:
    """The judgement of one row, said again in plain Python."""
    named = [index for index in indices if index != -1]
    if len(indices) != count or any(not 0 <= index < length for index in named):
        return True
    finite = [index for index in range(length) if math.isfinite(values[index])]
    wanted = sorted(finite, key=lambda index: -values[index])[:count]
    chosen = [index for index in named if index in finite]
    return len(set(named)) != len(named) or set(chosen) != set(wanted)


@settings(max_examples=200)
@given(st.data())
def test_the_judgement_agrees_with_plain_python(data: st.DataObject) -> None:
    from probes.selection import Scores, judge

    columns = data.draw(st.integers(1, 6))
    count = data.draw(st.integers(1, 4))
    rows = []
    for _ in range(3):
        values = data.draw(st.permutations([float(n) for n in range(columns)]))
        holes = data.draw(st.sets(st.integers(0, columns - 1)))
        row = [-math.inf if place in holes else value for place, value in enumerate(values)]
        length = data.draw(st.integers(0, columns))
        best = sorted(
            (place for place in range(length) if row[place] > -math.inf), key=lambda p: -row[p]
        )[:count]
        best += [-1] * (count - len(best))
        if data.draw(st.booleans()):
            best[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(-2, columns + 1))
        rows.append((data.draw(st.permutations(best)), row, length))
    scores = Scores(
        torch.tensor([row for _, row, _ in rows]),
        torch.tensor([length for *_, length in rows], dtype=torch.int32),
    )
    indices = torch.tensor([chosen for chosen, *_ in rows], dtype=torch.int32)
    judged = judge(torch, indices, scores, count)
    wrong = [plainly_wrong(list(chosen), row, length, count) for chosen, row, length in rows]
    assert judged.rows == sum(wrong)
    assert judged.first_row == (wrong.index(True) if any(wrong) else -1)


def test_the_judgement_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from probes import selection

    scores = selection.Scores(torch.randn(9, 7), torch.full((9,), 7, dtype=torch.int32))
    indices = torch.arange(4, dtype=torch.int32).expand(9, 4)
    whole = selection.judge(torch, indices, scores, 4)
    monkeypatch.setattr(selection, "_CHUNK_ELEMENTS", 20)
    assert selection.judge(torch, indices, scores, 4) == whole


@given(st.lists(st.floats(width=32, allow_nan=False, min_value=-1e6, max_value=1e6), min_size=1))
def test_distinct_numbers_are_distinct_and_keep_their_order(numbers: list[float]) -> None:
    from probes.selection import distinct

    values = torch.tensor([numbers], dtype=torch.float32)
    made = distinct(torch, values.clone())[0].tolist()
    assert len(set(made)) == len(made)
    for one, before in zip(made, values[0].tolist(), strict=True):
        assert one == pytest.approx(before, rel=1e-3, abs=1e-30)
    order = sorted(range(len(numbers)), key=lambda index: (values[0, index].item(), made[index]))
    assert order == sorted(range(len(numbers)), key=lambda index: made[index])


@pytest.mark.parametrize("kind", ["spread", "close", "large", "small"])
def test_kinds_of_scores(kind: str) -> None:
    from probes.selection import draw_values

    random = torch.Generator().manual_seed(1)
    cpu = torch.device("cpu")
    made = draw_values(torch, kind, rows=5, columns=999, random=random, device=cpu)
    assert made.dtype == torch.float32
    assert all(len(set(row)) == 999 for row in made.tolist())
    half = made.half()
    assert bool((half == math.inf).all()) == (kind == "large")
    assert bool((half == -math.inf).all()) == (kind == "small")
    assert (kind == "close") == bool(((made >= 1) & (made < 1.25)).all())
    with pytest.raises(ValueError, match="no such kind"):
        draw_values(torch, "other", rows=1, columns=2, random=random, device=cpu)


@pytest.mark.parametrize("make", ["_few", "_small", "_huge"])
def test_scores_that_may_crash_are_what_they_say(make: str) -> None:
    from probes import indexer_topk

    class Probe:
        seed = 4
        parameters = {"rows": 20}  # noqa: RUF012

    cpu = torch.device("cpu")
    case = "64:32" if make == "_huge" else "64:8"
    scores, count = getattr(indexer_topk, make)(Probe(), torch, cpu, case)
    values, lengths = scores.values, scores.lengths
    inside = torch.arange(values.shape[1]) < lengths[:, None]
    assert bool((values[~inside] == -math.inf).all())
    finite = [row[row > -math.inf].tolist() for row in values]
    assert all(len(set(row)) == len(row) for row in finite)
    if make == "_huge":
        assert values.shape == (64, 32)
        assert [len(row) for row in finite] == lengths.tolist()
        assert len({tuple(row) for row in values.tolist()}) > 10
        with pytest.raises(ValueError, match="power of two"):
            indexer_topk._huge(Probe(), torch, cpu, "4:48")  # type: ignore[arg-type]
        return
    assert bool((lengths > count).all())
    if make == "_few":
        assert {len(row) for row in finite} == {0, 1, 4, 7}
    else:
        ordinary = {sum(value > -65_504 for value in row) for row in finite}
        assert max(ordinary) < count
        assert [len(row) for row in finite] == lengths.tolist()


def test_a_right_stand_in_passes(ask: Callable[..., Reply]) -> None:
    reply = ask()
    assert reply.end["status"] == "pass", reply.end
    kinds = ("spread", "close", "large")
    assert list(reply.parts) == [
        *(f"{columns} columns, 8 places, {kind}" for columns in (64, 61, 8) for kind in kinds),
        "nothing to see",
        "few finite scores, 64:8",
        "cut below half precision, 64:8",
        "more than 2^31 scores, 40:16",
    ]
    assert reply.measure["poison_reaches_buffers"] is True
    assert len(reply.controls) == 4
    assert all(reply.controls.values())


@pytest.mark.parametrize("fault", TOP_K_FAULTS)
def test_every_planted_fault_is_found(ask: Callable[..., Reply], fault: str) -> None:
    reply = ask(fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), fault
    assert all(reply.controls.values())


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("few finite scores run over", "few finite scores, 64:8"),
        ("values below half precision are one", "cut below half precision, 64:8"),
    ],
)
def test_faults_of_the_risky_parts_are_found(
    ask: Callable[..., Reply], fault: str, part: str
) -> None:
    reply = ask(fault)
    wrong = {name for name, facts in reply.parts.items() if facts["status"] != "pass"}
    assert wrong == {part}
    assert reply.parts[part]["reason"] == "numerics"


def test_a_crash_in_a_child_ends_its_part_alone(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parent's own parts are left out, so that only children meet the fault.
    monkeypatch.setattr("probes.indexer_topk.select", lambda *_, **__: None)
    monkeypatch.setattr(
        "probes.indexer_topk._expect_right", lambda check, _: check.expect(1, "", "")
    )
    monkeypatch.setattr("probes.indexer_topk.judge", lambda *_: None)
    monkeypatch.setattr("probes.indexer_topk._controls", lambda *_: None)
    reply = ask("crashes", outside=True, cases=["8:8"], kinds=["spread"], huge=[])
    few = reply.parts["few finite scores, 64:8"]
    assert (few["status"], few["reason"]) == ("fail", "signal:SIGSEGV"), few
    assert "during: select" in few["detail"]
    assert reply.parts["cut below half precision, 64:8"]["reason"] == "signal:SIGSEGV"
    assert reply.parts["nothing to see"]["status"] == "pass"


def test_too_little_memory_is_a_miss(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    from probes import indexer_topk

    class Cuda:
        type = "cuda"

    class Torch:
        class cuda:  # noqa: N801
            @staticmethod
            def mem_get_info(_: Any) -> tuple[int, int]:
                return 1 << 30, 1 << 40

    def small(probe: Any, _torch: Any, _device: Any, case: str) -> Any:
        return huge(probe, Torch, Cuda(), case)

    huge = indexer_topk._huge
    monkeypatch.setattr(indexer_topk, "_huge", small)
    reply = ask(cases=["64:8"], few_cases=[])
    part = reply.parts["more than 2^31 scores, 40:16"]
    assert (part["status"], part["reason"]) == ("miss", "machine:out-of-memory")
    assert reply.end["status"] == "miss"


def test_an_illegal_address_is_the_upstreams(ask: Callable[..., Reply]) -> None:
    reply = ask("raises")
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:illegal-address")


def test_a_frontend_whose_selection_is_for_later_hardware_is_skipped(
    ask: Callable[..., Reply],
) -> None:
    reply = ask("no sm90", cases=["64:8"])
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent"), reply.end
    assert "requires SM100+" in reply.end["detail"]


def test_a_frontend_that_lost_an_argument_is_our_error(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.adapters.fe_indexer.TOP_K_KEYWORDS", ("gone",))
    reply = ask()
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:UnknownShape")
