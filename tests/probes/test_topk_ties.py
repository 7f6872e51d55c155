"""Judgements of ties against plain Python, and the probe against right and wrong stand-ins."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.adapters.mcore_topk import ALONE, PACKAGED
from tests.probes import fe_indexer_stand_in
from tests.probes.asking import Asker, Reply, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

CORE = '''
"""A stand-in for Megatron Core's module."""
{imports}
import torch

FAULT = {fault!r}


def indexer_topk(
    q_indexer, k_indexer, weights, topk, ratio=4, indexer_softmax_scale=1.0, *, cu_seqlens_q=None,
    cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, q_causal_offsets=None,
):
    assert cu_seqlens_q.dtype == torch.int32 and int(cu_seqlens_q[-1]) == len(q_indexer)
    assert q_indexer.requires_grad == torch.is_grad_enabled()
    if FAULT == "raises":
        raise RuntimeError("CUDA Error: cudaErrorUnknown")
    q, w = q_indexer.detach().float(), weights.detach().float() * indexer_softmax_scale
    scores = torch.einsum("rhk,rh->rk", torch.einsum("rhd,kd->rhk", q, k_indexer.float()).relu(), w)
    rows, groups = scores.shape
    seen = (torch.arange(rows) + 1) // ratio
    scores = scores.masked_fill(torch.arange(groups) >= seen[:, None], float("-inf"))
    # The products of equal keys may round otherwise in other columns of a matrix.
    scores = (scores * 1024).round() / 1024
    turned = FAULT == "ties turn with gradients" and torch.is_grad_enabled()
    if FAULT == "ties turn":
        turned = bool(torch.rand(()) < 0.5)
    if turned:
        places = groups - 1 - scores.flip(1).argsort(dim=1, descending=True, stable=True)
    else:
        places = scores.argsort(dim=1, descending=True, stable=True)
    places = places[:, :topk]
    places = torch.where(torch.arange(topk) < seen[:, None], places, -1).int()
    if FAULT == "one lost":
        places[-1, 0] = -1
    return places, (places >= 0).sum(dim=1).int()
'''


@pytest.fixture
def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reply]]:
    def asked(
        fault: str = "",
        core_fault: str = "",
        *,
        core: str | None = ALONE,
        imports: str = "",
        deterministic: bool = True,
        **parameters: Any,
    ) -> Reply:
        folder = asker.folder / "frontend"
        fe_indexer_stand_in.write(folder, fault, deterministic=deterministic)
        monkeypatch.syspath_prepend(folder)
        asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="json"),
            "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
        }
        if core is not None:
            tree = asker.folder / "tree"
            (tree / core).parent.mkdir(parents=True)
            for package in (tree / core).parents:
                if package.is_relative_to(tree / "megatron"):
                    (package / "__init__.py").touch()
            (tree / core).write_text(CORE.format(fault=core_fault, imports=imports))
            monkeypatch.syspath_prepend(tree)
            asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40}}
            asker.components["megatron-core"] = component("f" * 40, origin="tree")
        few = {
            "device": "cpu", "rows": 20, "case": "96:16", "repeats": 4, "model": "tiny",
            "sequence_rows": 160, "core_repeats": 4,
        }  # fmt: skip
        return asker.here("topk-ties", **{**few, **parameters})

    known = set(sys.modules)
    yield asked
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in ("cudnn", "megatron"):
            del sys.modules[name]


@settings(max_examples=200)
@given(st.data())
def test_the_judgement_agrees_with_plain_python(data: st.DataObject) -> None:
    from probes.selection import cut_to_length
    from probes.topk_ties import smallest_of_ties, wrong_rows

    columns = data.draw(st.integers(1, 6))
    count = data.draw(st.integers(1, columns))
    values = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=columns,
                                max_size=columns))  # fmt: skip
    length = data.draw(st.integers(0, columns))
    scores = cut_to_length(torch, torch.tensor([values]), torch.tensor([length]).int())
    best = sorted(range(length), key=lambda place: (-values[place], place))[:count]
    right = smallest_of_ties(torch, scores, count)[0].tolist()
    assert right == sorted(best) + [-1] * (count - len(best))

    chosen = [data.draw(st.integers(-2, columns)) for _ in range(count)]
    named = [place for place in chosen if place != -1]
    plainly = (
        any(not 0 <= place < length for place in named)
        or len(set(named)) < len(named)
        or Counter(values[place] for place in named) != Counter(values[place] for place in best)
    )
    found = wrong_rows(torch, torch.tensor([chosen], dtype=torch.int32), scores, count)
    assert bool(found[0]) == plainly


@pytest.mark.parametrize("kind", ["constant", "eight values", "ties at the cut"])
def test_scores_tie_where_they_should(kind: str) -> None:
    from probes.topk_ties import make_scores

    class Probe:
        seed = 3
        parameters = {"case": "96:16", "rows": 20}  # noqa: RUF012

    probe: Any = Probe()
    scores = make_scores(probe, torch, torch.device("cpu"), kind)
    assert make_scores(probe, torch, torch.device("cpu"), kind).values.equal(scores.values)
    row = scores.values[-1]  # the longest
    cut = row.sort(descending=True).values[15]
    equal = int((row == cut).sum())
    assert equal >= (96 if kind == "constant" else 8)
    assert int((row > cut).sum()) < 16 < int((row >= cut).sum())
    if kind == "ties at the cut":
        others = row[row != cut].tolist()
        assert len(set(others)) == len(others)


def test_a_right_stand_in_passes(ask: Callable[..., Reply]) -> None:
    reply = ask()
    assert reply.end["status"] == "pass", reply.end
    kinds = ("constant", "eight values", "ties at the cut")
    ways = ("wrapper", "wrapper asked for determinism")
    assert list(reply.parts) == [
        *(f"{way}, {kind}" for kind in kinds for way in ways),
        "Megatron Core, repeated",
        "Megatron Core, without and with gradients",
    ]
    assert reply.measure["core_indexer_topk"] == "driven"
    assert reply.measure["takes_deterministic"] is True
    assert reply.controls == {
        "an equal score elsewhere": True,
        "a smaller score": True,
        "an index twice": True,
    }
    assert reply.loaded["megatron-core"]["file"] == ALONE


@pytest.mark.parametrize(
    ("fault", "core_fault", "part", "reason"),
    [
        ("ties at random", "", "wrapper, constant", "nondeterministic"),
        ("one index twice", "", "wrapper, constant", "numerics"),
        ("the first column never chosen", "", "wrapper asked for determinism, constant",
         "numerics"),
        ("a row from its neighbour", "", "wrapper, ties at the cut", "numerics"),
        ("raises", "", "wrapper, constant", "cuda:illegal-address"),
        ("", "ties turn", "Megatron Core, repeated", "nondeterministic"),
        ("", "ties turn with gradients", "Megatron Core, without and with gradients",
         "nondeterministic"),
        ("", "one lost", "Megatron Core, repeated", "numerics"),
        ("", "raises", "Megatron Core, repeated", "cuda:unknown"),
    ],
)  # fmt: skip
def test_every_planted_fault_is_found(
    ask: Callable[..., Reply], fault: str, core_fault: str, *, part: str, reason: str
) -> None:
    reply = ask(fault, core_fault)
    assert reply.parts[part]["reason"] == reason, reply.parts[part]
    assert reply.end["status"] == "fail"


def test_only_gradients_make_a_difference(ask: Callable[..., Reply]) -> None:
    reply = ask(core_fault="ties turn with gradients")
    assert reply.parts["Megatron Core, repeated"]["status"] == "pass"
    measure = reply.parts["Megatron Core, without and with gradients"]["measure"]
    assert measure["varying_rows_count"] > 50


def test_what_a_stack_cannot_be_asked_is_no_skip(ask: Callable[..., Reply]) -> None:
    reply = ask(core=None, deterministic=False)
    assert reply.end["status"] == "pass", reply.end
    assert len(reply.parts) == 3
    assert reply.measure["takes_deterministic"] is False
    assert reply.measure["core_indexer_topk"].startswith("upstream:absent: the stack has no")


def test_a_module_of_that_name_without_the_function_is_another(ask: Callable[..., Reply]) -> None:
    reply = ask(core="megatron/core/transformer/experimental_attention_variant/other.py")
    assert "has no indexer_topk" in reply.measure["core_indexer_topk"]


def test_the_newer_home_is_imported_with_its_package(ask: Callable[..., Reply]) -> None:
    reply = ask(core=PACKAGED)
    assert reply.end["status"] == "pass", reply.end
    assert reply.measure["core_indexer_topk"] == "driven"
    assert reply.loaded["megatron-core"]["file"] == PACKAGED


def test_a_package_that_needs_more_than_the_stack_has_is_no_fault(
    ask: Callable[..., Reply],
) -> None:
    reply = ask(core=PACKAGED, imports="import no_such_package_here")
    assert reply.end["status"] == "pass", reply.end
    assert "needs no_such_package_here" in reply.measure["core_indexer_topk"]


def test_a_package_that_breaks_is_a_fault(ask: Callable[..., Reply]) -> None:
    reply = ask(core=PACKAGED, imports="1 / 0")
    assert reply.parts["Megatron Core, loaded"]["reason"] == "import:ZeroDivisionError"
    assert all(reply.controls.values())
