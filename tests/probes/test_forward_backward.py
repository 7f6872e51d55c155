"""The probe `forward-backward` with a tree and a FlashMLA that stand in for the real ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probes.asking import Asker, Reply, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from probes.adapters import mcore_attention  # noqa: E402 - beside what needs torch

TREE = """
import torch
from probes.references import sparse_attention

FAULT = {fault!r}
calls = []


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, sink, indices, lengths, scale):
        calls.append(1)
        if FAULT == "forward raises":
            raise RuntimeError("CUDA Error: cudaErrorUnknown")
        if FAULT == "no FlashMLA after all":
            import flash_mla_that_is_not_there
        given = torch.full_like(sink, float("-inf")) if FAULT == "forward without sink" else sink
        out, _ = sparse_attention.forward(
            q.float(), kv.float(), given, indices=indices, lengths=lengths, scale=scale
        )
        ctx.save_for_backward(q, kv, sink, indices, lengths)
        ctx.scale = scale
        out = out.bfloat16()
        if FAULT == "output changes" and len(calls) % 2:
            out[3, 0, 0] = torch.nextafter(out[3, 0, 0], torch.tensor(9.0, dtype=out.dtype))
        if FAULT == "row of out unwritten":
            out[5] = torch.empty_like(out[5])
        return out

    @staticmethod
    def backward(ctx, dout):
        if FAULT == "backward raises":
            raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
        q, kv, sink, indices, lengths = ctx.saved_tensors
        with torch.enable_grad():
            made = sparse_attention.gradients(
                q, kv, sink, indices=indices, lengths=lengths, dout=dout, scale=ctx.scale
            )
        dq = made.dq.bfloat16()
        if FAULT == "dq of another row":
            dq[2] = dq[3]
        d_sink = made.d_sink.float() * (2 if FAULT == "d_sink twice" else 1)
        dkv = made.dkv.bfloat16()
        if FAULT == "dkv lost":
            dkv[7] = 0
        return dq, dkv, d_sink, None, None, None


def {name}(
    query, kv, attn_sink, topk_idxs, softmax_scale, topk_length=None, indexer_topk=0, is_thd=False
):
    assert is_thd and indexer_topk == 0
    out = _Function.apply(query, kv, attn_sink, topk_idxs, topk_length, softmax_scale)
    return out.reshape(len(query), -1)
"""


def write_tree(folder: Path, place: tuple[str, str], fault: str = "", head: str = "") -> Path:
    home, name = place
    file = folder / home
    file.parent.mkdir(parents=True)
    file.write_text(head + TREE.format(fault=fault, name=name), encoding="utf-8")
    for parent in list(file.parents):
        if parent == folder:
            break
        (parent / "__init__.py").touch()
    return folder


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("megatron", mcore_attention.LOADED_AS):
            del sys.modules[name]


def ask(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tree: Path, *, flash: Any = "json", **more: Any
) -> Reply:
    asker.components = {
        "torch": component("2", module="torch"),
        "nvidia-cutlass-dsl": component("4", module="json"),
        "nvidia-cudnn-frontend": component("1", module="json"),
        "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
    }
    if flash is not None:
        asker.components["flash-mla"] = component("1", module="json", **more)
    asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40, "tree": "0" * 40}}
    monkeypatch.syspath_prepend(str(tree))
    return asker.here(
        "forward-backward",
        device="cpu",
        rows=24,
        kv_rows=96,
        model="tiny",
        cases=["36:length", "36:holes", "36:full"],
    )


@pytest.mark.parametrize("place", [mcore_attention.ALONE, mcore_attention.PACKAGED])
def test_a_right_stand_in_passes_in_both_homes(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: tuple[str, str]
) -> None:
    reply = ask(asker, monkeypatch, write_tree(tmp_path / "tree", place))
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == ["K:36:length", "K:36:holes", "K:36:full"]
    assert len(reply.controls) == 3
    assert all(reply.controls.values())
    for part in reply.parts.values():
        assert part["measure"]["out_repeats"] is True
        assert part["measure"]["out_worst_row_error"] < 2.0**-7


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("forward without sink", "numerics"),
        ("row of out unwritten", "numerics"),
        ("dq of another row", "numerics"),
        ("d_sink twice", "numerics"),
        ("dkv lost", "numerics"),
        ("output changes", "nondeterministic"),
        ("forward raises", "cuda:unknown"),
        ("backward raises", "cuda:invalid-value"),
        ("no FlashMLA after all", "call:ModuleNotFoundError"),
    ],
)
def test_every_planted_fault_is_found(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, reason: str
) -> None:
    tree = write_tree(tmp_path / "tree", mcore_attention.ALONE, fault)
    reply = ask(asker, monkeypatch, tree)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason)


def test_without_flashmla_it_is_skipped_before_anything_is_imported(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reply = ask(asker, monkeypatch, tmp_path, flash=None)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")
    assert "the runner provides no FlashMLA" in reply.end["detail"]


def test_a_machine_that_can_not_provide_flashmla_is_a_miss(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reply = ask(asker, monkeypatch, tmp_path, absent="source:unreachable")
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "source:unreachable")


def test_a_tree_without_the_function_is_skipped(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = (mcore_attention.ALONE[0], "something_else")
    reply = ask(asker, monkeypatch, write_tree(tmp_path / "tree", place))
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_a_package_that_needs_what_the_stack_lacks_is_skipped(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = "import a_module_that_nobody_has\n"
    tree = write_tree(tmp_path / "tree", mcore_attention.PACKAGED, head=head)
    reply = ask(asker, monkeypatch, tree)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")
    assert "a_module_that_nobody_has" in reply.end["detail"]
