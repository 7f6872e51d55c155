"""The probe `index-bounds` against stand-ins that check indices and such that do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.probes.asking import Asker, Reply
from tests.probes.inline import inline_children

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from probes import guards  # noqa: E402 - beside what needs torch
from tests.probes import test_sparse_backward  # noqa: E402 - it needs torch

__all__ = ["inline_children"]
pytestmark = pytest.mark.usefixtures("inline_children")

SMALL = {
    "rows": 9,
    "kv_rows": 60,
    "guard_rows": 1100,
    "model": "tiny",
    "widths": [20],
    "at_once": 1,
    "heads": [],
    "cases": ["length:-1", "length:rows", "length:rows+1000", "full:-1000", "full:largest"],
}


def faulty(fault: str = "") -> Any:
    right = test_sparse_backward.stand_in()

    def wrapper(
        *, q: Any, kv: Any, out: Any, dout: Any, lse: Any, attn_sink: Any, topk_idxs: Any,
        softmax_scale: float, topk_length: Any = None,
    ) -> Any:  # fmt: skip
        rows = kv.shape[0]
        inside = torch.ones_like(topk_idxs, dtype=torch.bool)
        if topk_length is not None:
            inside = torch.arange(topk_idxs.shape[1]) < topk_length[:, None]
        bad = ((topk_idxs < 0) | (topk_idxs >= rows)) & inside
        cleaned = topk_idxs.masked_fill(bad, -1)
        if bad.any() and fault == "illegal address" and int(topk_idxs.max()) > rows + 2000:
            raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")
        if fault == "clamps":
            cleaned = torch.where(bad, topk_idxs.clamp(0, rows - 1), topk_idxs)
        answer = right(
            q=q, kv=kv, out=out, dout=dout, lse=lse, attn_sink=attn_sink, topk_idxs=cleaned,
            softmax_scale=softmax_scale, topk_length=topk_length,
        )  # fmt: skip
        sums = torch.zeros(kv.shape, dtype=torch.float32)
        for index in topk_idxs[bad].tolist():
            if fault == "writes outside" and abs(index) < 2000:
                offset = sums.storage_offset() + index * kv.shape[1]
                torch.as_strided(sums, (kv.shape[1],), (1,), offset).add_(0.25)
            if fault == "reads outside" and abs(index) < 2000:
                offset = kv.storage_offset() + index * kv.shape[1]
                row = torch.as_strided(kv, (kv.shape[1],), (1,), offset)
                answer["dq"][1, 0, :] += row
        return answer

    return wrapper


def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str = "", **more: Any) -> Reply:
    return test_sparse_backward.ask(
        asker, monkeypatch, faulty(fault), probe="index-bounds", **{**SMALL, **more}
    )


def test_a_stand_in_that_ignores_bad_indices_passes(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch)
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == [f"K=20 {case}" for case in SMALL["cases"]]  # type: ignore[attr-defined]
    assert reply.controls == {
        "counting the row before kv": True,
        "writing before a buffer": True,
        "writing after a buffer": True,
    }
    for part in reply.parts.values():
        assert part["measure"]["guarded_buffers_count"] >= 2
        assert part["measure"]["buffers_written_outside_count"] == 0


@pytest.mark.parametrize(
    ("fault", "reason", "bad"),
    [
        ("writes outside", "numerics", SMALL["cases"][:4]),  # type: ignore[index]
        ("reads outside", "numerics", SMALL["cases"][:4]),  # type: ignore[index]
        ("clamps", "numerics", SMALL["cases"]),
        ("illegal address", "cuda:illegal-address", ["full:largest"]),
    ],
)
def test_every_planted_fault_is_found_in_its_cases_only(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str, bad: list[str]
) -> None:
    reply = ask(asker, monkeypatch, fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason)
    found = {name: part["reason"] for name, part in reply.parts.items()}
    assert found == {
        f"K=20 {case}": reason if case in bad else None
        for case in SMALL["cases"]  # type: ignore[attr-defined]
    }


def test_what_was_written_outside_is_named(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, "writes outside", cases=["length:-1"])
    assert "256 bytes before and 0 after zeros float32 (60, 64)" in reply.end["detail"]


def test_guards_reach_every_factory_and_leave_values_alone() -> None:
    cpu = torch.device("cpu")
    with guards.guarded_allocations(torch, cpu, 100) as found:
        made = {
            "empty": torch.empty(3, 5, dtype=torch.bfloat16),
            "zeros": torch.zeros((7,), dtype=torch.int32, device="cpu"),
            "full_like": torch.full_like(torch.tensor([1.0, 2.0]), 4.0),
            "nothing": torch.empty(0),
        }
    assert [buffer.what for buffer in found.buffers] == [
        "empty bfloat16 (3, 5)",
        "zeros int32 (7,)",
        "full_like float32 (2,)",
    ]
    assert made["zeros"].eq(0).all()
    assert made["full_like"].tolist() == [4.0, 4.0]
    assert all(tensor.is_contiguous() for tensor in made.values())
    assert all(buffer.start == guards.ALIGNMENT for buffer in found.buffers)
    assert found.damages() == []
    made["zeros"] += 1
    assert found.damages() == []
    torch.as_strided(made["zeros"], (1,), (1,), made["zeros"].storage_offset() + 7).add_(1)
    assert found.damages() == ["0 bytes before and 1 after zeros int32 (7,)"]
