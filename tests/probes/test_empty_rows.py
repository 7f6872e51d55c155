"""The probe `empty-rows` against stand-ins that are right, that hang, and that are wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.probes.asking import Asker, Reply
from tests.probes.inline import Dies, Hangs, inline_children

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from tests.probes import test_sparse_backward  # noqa: E402 - it needs torch

__all__ = ["inline_children"]
pytestmark = pytest.mark.usefixtures("inline_children")

SMALL = {
    "rows": 12,
    "kv_rows": 60,
    "model": "tiny",
    "widths": [20],
    "at_once": 1,
    "heads": [],
    "cases": [],
}
PARTS = [
    f"K=20 {kind}: {place}"
    for kind in ("length", "holes")
    for place in ("some", "all", "first", "last")
]


def faulty(fault: str = "") -> Any:
    right = test_sparse_backward.stand_in()

    def wrapper(
        *, q: Any, kv: Any, out: Any, dout: Any, lse: Any, attn_sink: Any, topk_idxs: Any,
        softmax_scale: float, topk_length: Any = None,
    ) -> Any:  # fmt: skip
        empty = (topk_idxs < 0).all(dim=1) if topk_length is None else topk_length <= 0
        if empty.any():
            if fault == "hangs at length 0" and topk_length is not None:
                raise Hangs
            if fault == "dies when all are empty" and empty.all():
                raise Dies
            if fault == "illegal address in the last row" and empty[-1]:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
        answer = right(
            q=q, kv=kv, out=out, dout=dout, lse=lse, attn_sink=attn_sink, topk_idxs=topk_idxs,
            softmax_scale=softmax_scale, topk_length=topk_length,
        )  # fmt: skip
        if empty.any():
            if fault == "NaN in dq":
                answer["dq"][empty] = math.nan
            if fault == "dq left unwritten":
                answer["dq"][empty] = torch.empty_like(answer["dq"][empty])
            if fault == "dq is tiny":
                answer["dq"][empty] = 2.0**-30
            if fault == "d_sink counts empty rows":
                answer["d_sink"] -= dout[empty].float().sum((0, 2))
            if fault == "dkv row 0":
                answer["dkv"][0] += 1
        return answer

    return wrapper


def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str = "", **more: Any) -> Reply:
    return test_sparse_backward.ask(
        asker, monkeypatch, faulty(fault), probe="empty-rows", **{**SMALL, **more}
    )


def test_a_right_stand_in_passes(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch)
    assert (reply.end["status"], list(reply.parts)) == ("pass", PARTS), reply.end
    assert len(reply.controls) == 3
    assert all(reply.controls.values())
    assert reply.parts["K=20 length: first"]["measure"]["empty_rows_count"] == 1
    assert reply.parts["K=20 holes: all"]["measure"]["empty_rows_count"] == 12


@pytest.mark.parametrize(
    ("fault", "reason", "bad"),
    [
        ("hangs at length 0", "timeout", [name for name in PARTS if "length" in name]),
        ("dies when all are empty", "signal:SIGSEGV", [name for name in PARTS if "all" in name]),
        (
            "illegal address in the last row",
            "cuda:illegal-address",
            [name for name in PARTS if "all" in name or "last" in name],
        ),
        ("NaN in dq", "numerics", PARTS),
        ("dq left unwritten", "numerics", PARTS),
        ("dq is tiny", "numerics", PARTS),
        ("d_sink counts empty rows", "numerics", PARTS),
        ("dkv row 0", "numerics", PARTS),
    ],
)
def test_every_planted_fault_is_found_in_its_cases_only(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str, bad: list[str]
) -> None:
    reply = ask(asker, monkeypatch, fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason)
    found = {name: part["reason"] for name, part in reply.parts.items()}
    assert found == {name: reason if name in bad else None for name in PARTS}


def test_a_hang_names_its_step(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, "hangs at length 0", places=["first"], kinds=["length"])
    assert reply.end["detail"] == "hangs during: the call with empty rows"


def test_a_frontend_without_the_function_is_skipped(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = test_sparse_backward.ask(asker, monkeypatch, None, probe="empty-rows", **SMALL)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")
