"""The reference against plain Python, and the probe against right and wrong stand-ins."""

from __future__ import annotations

from typing import Any

import pytest

from probes import layouts
from probes.adapters.mcore_layout import HOMES
from tests.probes.asking import Asker, Reply, component
from tests.probes.plain_indices import FAULTS, row_answer

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

CASES = ["0:4", "2:4", "1:4", "1:128", "0:128", "1:0"]

STAND_IN = '''
"""A stand-in for the upstream module: the same function, in plain Python."""
import torch
from tests.probes.plain_indices import row_answer

FAULT = {fault!r}


def build_attention_indices(
    cu_seqlens, global_start, l_local, d_window, window_size, ratio, compressed_width,
    compressed_topk=None, cu_seqlens_compressed=None, seq_to_rank_row=None, for_indexer_loss=False,
):
    mode = 2 if for_indexer_loss else int(compressed_topk is None)
    indices = torch.empty((l_local, window_size + compressed_width), dtype=torch.int32)
    lengths = torch.empty((l_local,), dtype=torch.int32)
    rank_major = torch.empty((l_local, compressed_width), dtype=torch.int32)
    cu = cu_seqlens.tolist()
    mapping = [] if seq_to_rank_row is None else seq_to_rank_row.tolist()
    chosen = None if compressed_topk is None else compressed_topk.tolist()
    if FAULT == "raises":
        raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
    for row in range(l_local):
        answer = row_answer(
            global_start + row, lengths=[b - a for a, b in zip(cu, cu[1:])],
            first_row=global_start, rows=l_local, boundary=d_window, window=window_size,
            ratio=ratio, width=compressed_width, mode=mode,
            chosen=None if chosen is None else chosen[row], mapping=mapping, fault=FAULT,
        )
        wanted = torch.tensor(answer.indices, dtype=torch.int32)
        if FAULT == "slot left unwritten":
            wanted, indices_row = wanted[:-1], indices[row][:-1]
            indices_row.copy_(wanted)
        else:
            indices[row] = wanted
        lengths[row] = answer.length
        if mode == 2 and compressed_width:
            rank_major[row] = torch.tensor(answer.rank_major, dtype=torch.int32)
    if FAULT == "wrong dtype":
        indices = indices.long()
    if for_indexer_loss:
        return indices, None, rank_major
    return indices, lengths, None
'''


def ask(
    asker: Asker, fault: str, *, home: str = HOMES[-1], more: str = "", **parameters: Any
) -> Reply:
    tree = asker.folder / "tree"
    file = tree / home
    file.parent.mkdir(parents=True)
    file.write_text(STAND_IN.format(fault=fault) + more, encoding="utf-8")
    asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40, "tree": None}}
    asker.components = {
        "torch": component("2", module="torch"),
        # Any module will do in its place: the stand-in needs no compiler.
        "nvidia-cutlass-dsl": component("4", module="json"),
        "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
    }
    few = {"cp_size": 4, "local_rows": 136, "model": "tiny", "device": "cpu"}
    return asker.here("layout-indices", **{**few, **parameters})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["short-sequences", "zero-lengths", "spanning", "padding-rank"])
def test_the_reference_agrees_with_plain_python(name: str, case: str) -> None:
    from probes.layout_indices import _questions
    from probes.references.layout_indices import attention_indices

    layout = layouts.make(name, seed=11, cp_size=4, local_rows=136)

    class Probe:
        seed = 3
        parameters = {"model": "tiny"}  # noqa: RUF012

    probe: Any = Probe()
    cpu = torch.device("cpu")
    for _, question in _questions(probe, torch, cpu, layout, case):
        answer = attention_indices(question)
        for row in range(question.rows):
            plain = row_answer(
                question.first_row + row,
                lengths=layout.lengths,
                first_row=question.first_row,
                rows=question.rows,
                boundary=question.boundary,
                window=question.window,
                ratio=question.ratio,
                width=question.width,
                mode=question.mode,
                chosen=None if question.chosen is None else question.chosen[row].tolist(),
                mapping=[] if question.seq_to_rank_row is None
                else question.seq_to_rank_row.tolist(),
            )  # fmt: skip
            assert answer.indices[row].tolist() == plain.indices
            if question.mode == 2:
                assert answer.lengths is None
                assert answer.rank_major[row].tolist() == plain.rank_major
            else:
                assert int(answer.lengths[row]) == plain.length
                assert answer.rank_major is None


def test_a_right_stand_in_passes(asker: Asker) -> None:
    reply = ask(asker, "", layouts=["ordinary", "padding-rank"])
    assert reply.end["status"] == "pass", reply.end
    assert len(reply.parts) == 8
    assert reply.measure["mismatches_count"] == 0
    assert reply.measure["rows_compared_count"] > 1000
    assert reply.measure["poison_reaches_buffers"] is True
    assert reply.controls == {
        "a shifted index": True,
        "two swapped ranks": True,
        "a stale length": True,
    }
    assert reply.loaded["megatron-core"]["origin"] == "tree"
    assert reply.loaded["megatron-core"]["file"] == HOMES[-1]


def test_the_newer_home_is_found_too(asker: Asker) -> None:
    reply = ask(asker, "", home=HOMES[0], layouts=["spanning"], cases=["1:0"])
    assert reply.end["status"] == "pass", reply.end
    assert reply.loaded["megatron-core"]["file"] == HOMES[0]


@pytest.mark.parametrize("fault", [*FAULTS, "slot left unwritten", "wrong dtype"])
def test_every_planted_fault_is_found(asker: Asker, fault: str) -> None:
    cases = {"future group": ["1:4"], "boundary reversed": ["1:0"]}.get(
        fault, ["0:4", "2:4", "1:4"]
    )
    reply = ask(asker, fault, layouts=["padding-rank"], cases=cases)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), fault
    assert "rank" in reply.end["detail"]
    assert reply.measure["mismatches_count"] > 0


def test_a_launch_error_is_the_upstreams(asker: Asker) -> None:
    reply = ask(asker, "raises", layouts=["ordinary"], cases=["1:0"])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:invalid-value")


def test_a_tree_without_the_module_is_skipped(asker: Asker) -> None:
    reply = ask(asker, "", home="megatron/core/other.py")
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_another_signature_is_our_error(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.adapters.mcore_layout.BUILD_PARAMETERS", ("other",))
    reply = ask(asker, "")
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:UnknownShape")


def test_kernels_that_upstream_lost_on_import_are_named(asker: Asker) -> None:
    reply = ask(asker, "", more="_CUTE_AVAILABLE = False")
    assert reply.end["status"] == "fail"
    assert reply.end["reason"] in ("import:ModuleNotFoundError", "import:ImportError")


def test_no_gpu_is_a_miss(asker: Asker) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    reply = ask(asker, "", device="cuda")
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:no-gpu")


@pytest.mark.parametrize("output", ["indices", "lengths", "rank_major"])
def test_one_wrong_element_of_any_output_is_noticed(output: str) -> None:
    from dataclasses import replace

    from probes.layout_indices import compare
    from probes.references.layout_indices import Answer

    right = Answer(
        torch.arange(12, dtype=torch.int32).reshape(3, 4),
        torch.arange(3, dtype=torch.int32),
        torch.arange(6, dtype=torch.int32).reshape(3, 2),
    )
    wrong = getattr(right, output).clone()
    wrong.view(-1)[1] += 1

    assert compare(torch, right, right).mismatches == 0
    assert compare(torch, replace(right, **{output: wrong}), right).mismatches == 1
    assert compare(torch, replace(right, **{output: None}), right).mismatches > 0
