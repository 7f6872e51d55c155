"""The reference against loops, and the probe against right and wrong stand-ins."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from probes import layouts
from tests.probes import fe_indexer_stand_in
from tests.probes.asking import Asker, Reply, component
from tests.probes.fe_indexer_stand_in import SCORES_FAULTS

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")


@pytest.fixture
def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reply]]:
    def asked(
        fault: str = "", *, offsets: bool = True, sm90: bool = True, **parameters: Any
    ) -> Reply:
        folder = asker.folder / "frontend"
        fe_indexer_stand_in.write(folder, fault, offsets=offsets, sm90=sm90)
        monkeypatch.syspath_prepend(folder)
        asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="json"),
            "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
        }
        few = {"cp_size": 4, "local_rows": 40, "model": "tiny", "device": "cpu", "heads": [2]}
        return asker.here("indexer-scores", **{**few, **parameters})

    known = set(sys.modules)
    yield asked
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == "cudnn":
            del sys.modules[name]


@pytest.mark.parametrize("name", layouts.NAMES)
def test_the_reference_agrees_with_loops(name: str) -> None:
    from probes.indexer_scores import question_of
    from probes.references.indexer import scores

    layout = layouts.make(name, seed=5, cp_size=4, local_rows=32)
    random = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, k, w = normal(32, 3, 5), normal(32, 5), normal(32, 3)
    groups_before = [sum(length // 4 for length in layout.lengths[:s]) for s in range(1000)]
    for rank in layout.telling_ranks():
        made = scores(question_of(layout, rank), q, k, w)
        assert made.values.shape == (32, layout.max_seqlen // 4)
        for local, row in enumerate(layout.rank_rows(rank)):
            own = layout.sequence_of(row)
            for column in range(made.values.shape[1]):
                found = made.values[local, column].item()
                # A group is seen once its last token is not in the future.
                complete = own is not None and (
                    layout.cu_seqlens[own] + 4 * column + 3 <= row
                    and 4 * column + 3 < layout.lengths[own]
                )
                if not complete:
                    assert found == -math.inf
                    continue
                assert own is not None
                key = k[groups_before[own] + column]
                wanted = sum(max(0.0, float(q[local, h] @ key)) * float(w[local, h])
                             for h in range(3))  # fmt: skip
                assert found == pytest.approx(wanted, rel=1e-5, abs=1e-5)
                largest = sum(abs(float(w[local, h])) * float(q[local, h].norm() * key.norm())
                              for h in range(3))  # fmt: skip
                assert made.scale[local, column].item() == pytest.approx(largest, rel=1e-5)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.indexer_scores import question_of
    from probes.references import indexer

    layout = layouts.make("spanning", seed=5, cp_size=4, local_rows=32)
    random = torch.Generator().manual_seed(3)
    q, k, w = (torch.randn(shape, generator=random) for shape in ((32, 3, 5), (32, 5), (32, 3)))
    whole = indexer.scores(question_of(layout, 1), q, k, w)
    monkeypatch.setattr(indexer, "_CHUNK_ELEMENTS", 40)
    pieces = indexer.scores(question_of(layout, 1), q, k, w)
    assert torch.allclose(pieces.values, whole.values, rtol=1e-5, atol=1e-5)
    assert torch.allclose(pieces.scale, whole.scale, rtol=1e-5, atol=1e-5)


def test_a_right_stand_in_passes_with_room_to_spare(ask: Callable[..., Reply]) -> None:
    reply = ask(layouts=["ordinary", "padding-rank"])
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == [
        "heads 2 first rank, no offsets",
        "heads 2 ordinary, own stream",
        "heads 2 ordinary, current stream",
        "heads 2 padding-rank, own stream",
        "heads 2 padding-rank, current stream",
    ]
    for part in reply.parts.values():
        assert part["measure"]["worst_error_share"] < 0.1
        assert part["measure"]["elements_compared_count"] > 100
    assert reply.measure["takes_causal_offsets"] is True
    assert reply.measure["poison_reaches_buffers"] is True
    assert reply.controls == {
        "one group too many": True,
        "offsets lost": True,
        "the keys' neighbours": True,
        "a head lost": True,
        "scores in bfloat16": True,
    }


def test_the_tolerance_fits_the_real_sizes(ask: Callable[..., Reply]) -> None:
    size = {"model": "dsv4-flash", "heads": [64, 32], "local_rows": 64, "layouts": ["spanning"]}
    reply = ask(**size)
    assert reply.end["status"] == "pass", reply.end
    worst = max(part["measure"]["worst_error_share"] for part in reply.parts.values())
    assert 0 < worst < 0.1
    assert all(reply.controls.values())


@pytest.mark.parametrize("fault", SCORES_FAULTS)
def test_every_planted_fault_is_found(ask: Callable[..., Reply], fault: str) -> None:
    layout = "padding-rank" if fault == "padding rows scored" else "no-whole-sequence"
    reply = ask(fault, layouts=[layout])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), fault


def test_a_launch_error_is_the_upstreams(ask: Callable[..., Reply]) -> None:
    reply = ask("raises")
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:invalid-value")


def test_a_frontend_without_offsets_is_asked_for_what_it_can(ask: Callable[..., Reply]) -> None:
    reply = ask(offsets=False)
    assert reply.parts["heads 2 whole sequences, no offsets"]["status"] == "pass"
    assert reply.parts["heads 2 with offsets"]["reason"] == "upstream:absent"
    assert len(reply.parts) == 2
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_a_frontend_for_other_hardware_is_skipped(ask: Callable[..., Reply]) -> None:
    reply = ask(sm90=False)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_a_frontend_that_lost_an_argument_is_our_error(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probes.adapters.fe_indexer.FORWARD_KEYWORDS", ("gone",))
    reply = ask()
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:UnknownShape")
