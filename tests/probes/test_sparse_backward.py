"""The reference against a loop in float64, and the probe against right and wrong stand-ins."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.probes.asking import Asker, Reply, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

FAULTS = (
    "index shifted",
    "no sink",
    "lengths ignored",
    "holes read as row 0",
    "scale left out of dq",
    "lse read as base 2",
    "duplicates lost",
    "row of dq unwritten",
    "dkv in float32",
    "d_sink has the wrong sign",
    "last columns dropped",
    "one row of dq from its neighbour",
)


def stand_in(fault: str = "") -> Any:
    """The backward by the formulas, with the roundings that a bfloat16 kernel makes."""
    calls = []

    def bf16(tensor: Any) -> Any:
        return tensor.to(torch.bfloat16).float()

    def wrapper(
        *, q: Any, kv: Any, out: Any, dout: Any, lse: Any, attn_sink: Any, topk_idxs: Any,
        softmax_scale: float, topk_length: Any = None,
    ) -> dict[str, Any]:  # fmt: skip
        calls.append(1)
        if fault == "raises":
            raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
        queries, keys, douts = q.float(), kv.float(), dout.float()
        counts = topk_idxs >= 0
        if topk_length is not None and fault != "lengths ignored":
            counts &= torch.arange(topk_idxs.shape[1]) < topk_length[:, None]
        if fault == "holes read as row 0" or (
            fault == "lengths ignored" and topk_length is not None
        ):
            counts = torch.ones_like(counts)
        if fault == "last columns dropped":
            counts[:, counts.shape[1] // 8 * 8 :] = False
        indices = topk_idxs.clamp_min(0).long()
        if fault == "index shifted":
            indices = (indices + 1) % kv.shape[0]
        listed = keys[indices]
        scores = softmax_scale * torch.einsum("rhd,rkd->rhk", queries, listed)
        scores = scores.masked_fill(~counts[:, None, :], -math.inf)
        sink = torch.full_like(attn_sink, -math.inf) if fault == "no sink" else attn_sink
        base = lse * math.log(2) if fault == "lse read as base 2" else lse
        total = torch.logaddexp(base, sink)
        weights = torch.exp(scores - total[..., None])
        inner = (out.float() * douts).sum(-1)
        ds = weights * (torch.einsum("rhd,rkd->rhk", douts, listed) - inner[..., None])
        ds = bf16(ds * (1 if fault == "scale left out of dq" else softmax_scale))
        dq = torch.empty_like(q)
        made = torch.einsum("rhk,rkd->rhd", ds, listed).to(torch.bfloat16)
        rows = slice(0, -1) if fault == "row of dq unwritten" else slice(None)
        dq[rows] = made[rows]
        if fault == "one row of dq from its neighbour":
            dq[3] = dq[4]
        if fault == "nondeterministic" and len(calls) % 2 == 0:
            dq[0, 0, 0] = torch.nextafter(dq[0, 0, 0], torch.tensor(9.0, dtype=torch.bfloat16))
        spread = torch.einsum("rhk,rhd->rkd", bf16(weights), douts)
        spread = spread + torch.einsum("rhk,rhd->rkd", ds, queries)
        dkv = torch.zeros_like(keys)
        flat = (indices.flatten(), spread.flatten(0, 1))
        if fault == "duplicates lost":
            dkv[flat[0]] = flat[1]
        else:
            dkv.index_add_(0, *flat)
        d_sink = -(torch.exp(attn_sink - torch.logaddexp(lse, attn_sink)) * inner).sum(0)
        if fault == "d_sink has the wrong sign":
            d_sink = -d_sink
        dkv = dkv if fault == "dkv in float32" else dkv.to(torch.bfloat16)
        return {"dq": dq, "dkv": dkv, "d_sink": d_sink}

    return wrapper


def ask(
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    wrapper: Any,
    path: list[str] | None = None,
    probe: str = "sparse-backward",
    **parameters: Any,
) -> Reply:
    package = types.ModuleType("cudnn")
    package.__version__ = "1.26.0"  # type: ignore[attr-defined]
    package.__path__ = path or []
    monkeypatch.setitem(sys.modules, "cudnn", package)
    if wrapper is not None:
        inner = types.ModuleType("cudnn.deepseek_sparse_attention")
        inner.DSA = types.SimpleNamespace(  # type: ignore[attr-defined]
            sparse_attention_backward_wrapper=wrapper
        )
        monkeypatch.setitem(sys.modules, inner.__name__, inner)
    asker.components = {
        "torch": component("2", module="torch"),
        "nvidia-cutlass-dsl": component("4", module="json"),
        "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
    }
    few = {
        "device": "cpu",
        "rows": 24,
        "kv_rows": 96,
        "model": "tiny",
        "heads": [4],
        "cases": ["36:length", "36:holes", "36:full"],
    }
    return asker.here(probe, **{**few, **parameters})


def test_a_right_stand_in_passes_with_room_to_spare(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probes.sparse_gradients import ELEMENT_TOLERANCE, ROW_TOLERANCE

    reply = ask(asker, monkeypatch, stand_in())
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == [f"heads 4 K:36:{kind}" for kind in ("length", "holes", "full")]
    assert reply.controls == {
        "one row's indices shifted": True,
        "two rows of dq swapped": True,
        "no sink": True,
    }
    for part in reply.parts.values():
        measure = part["measure"]
        assert measure["dkv_repeats"] is True
        for name in ("dq", "dkv", "d_sink"):
            assert 0 < measure[f"{name}_relative_error"] < ROW_TOLERANCE / 2
            assert measure[f"{name}_worst_row_error"] < ROW_TOLERANCE / 1.5
            assert measure[f"{name}_worst_element_error"] < ELEMENT_TOLERANCE / 1.5


def test_the_tolerance_fits_the_real_head_size(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from probes.sparse_gradients import ROW_TOLERANCE

    size = {
        "rows": 16,
        "kv_rows": 400,
        "model": "dsv4-flash",
        "heads": [64],
        "cases": ["128:length"],
    }
    reply = ask(asker, monkeypatch, stand_in(), **size)
    assert reply.end["status"] == "pass", reply.end
    (part,) = reply.parts.values()
    assert part["measure"]["dq_worst_row_error"] < ROW_TOLERANCE / 2


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    reply = ask(asker, monkeypatch, stand_in(fault))
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), fault


def test_a_result_that_changes_is_found(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, stand_in("nondeterministic"))
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "nondeterministic")


def test_a_launch_error_is_the_upstreams(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, stand_in("raises"))
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:invalid-value")
    assert reply.end["detail"].startswith("sparse_attention_backward_wrapper, first call: ")


def test_a_frontend_without_the_package_is_skipped(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch, None)
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")


def test_a_wrapper_that_lost_an_argument_is_our_error(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch, lambda q, kv: None)
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:UnknownShape")


REFUSING = """
def refuse(q):
    heads = q.shape[1]
    if heads == 6:
        raise ValueError(f"num_heads must be a multiple of 4, got {heads}")
    if heads == 7:
        assert heads % 4 == 0
    if heads == 8:
        raise KeyError("heads")
    if heads == 9:
        raise ValueError("something else")
    if heads == 10:
        raise RuntimeError("with 10 heads: CUDA error: an illegal memory access was encountered")
    if heads == 11:
        import json
        json.loads("heads")
"""


@pytest.mark.parametrize(
    ("heads", "status", "reason"),
    [
        (6, "skip", "upstream:absent"),
        (7, "skip", "upstream:absent"),
        (8, "fail", "call:KeyError"),
        (9, "fail", "call:ValueError"),
        (10, "fail", "cuda:illegal-address"),
        (11, "fail", "call:JSONDecodeError"),
    ],
)
def test_a_number_of_heads_may_be_refused_and_nothing_else(
    *,
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    heads: int,
    status: str,
    reason: str,
) -> None:
    file = tmp_path / "cudnn" / "gate.py"
    file.parent.mkdir()
    file.write_text(REFUSING, encoding="utf-8")
    gate: dict[str, Any] = {}
    exec(compile(REFUSING, str(file), "exec"), gate)  # noqa: S102 - a file of the stand-in package
    right = stand_in()

    def refusing(
        *, q: Any, kv: Any, out: Any, dout: Any, lse: Any, attn_sink: Any, topk_idxs: Any,
        softmax_scale: float, topk_length: Any = None,
    ) -> Any:  # fmt: skip
        gate["refuse"](q)
        return right(
            q=q, kv=kv, out=out, dout=dout, lse=lse, attn_sink=attn_sink, topk_idxs=topk_idxs,
            softmax_scale=softmax_scale, topk_length=topk_length,
        )  # fmt: skip

    reply = ask(
        asker, monkeypatch, refusing, path=[str(file.parent)], other_heads=[heads, 5],
        other_cases=["36:holes"],
    )  # fmt: skip
    part = reply.parts[f"heads {heads} K:36:holes"]
    assert (part["status"], part["reason"]) == (status, reason)
    if reason != "cuda:illegal-address":  # after which nothing more can be asked
        assert reply.parts["heads 5 K:36:holes"]["status"] == "pass"


def test_the_models_own_number_of_heads_may_not_be_refused(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refusing(
        *, q: Any, kv: Any, out: Any, dout: Any, lse: Any, attn_sink: Any, topk_idxs: Any,
        softmax_scale: float, topk_length: Any = None,
    ) -> Any:  # fmt: skip
        raise ValueError("4 heads are not supported")

    reply = ask(asker, monkeypatch, refusing, path=[str(Path(__file__).parent)])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "call:ValueError")


def test_another_seed_is_another_input(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {
        ask(asker, monkeypatch, stand_in(), seed=seed, cases=["36:full"])
        .parts["heads 4 K:36:full"]["measure"]["dq_relative_error"]
        for seed in (1, 2)
    }  # fmt: skip
    assert len(errors) == 2


def by_loops(q: Any, kv: Any, sink: Any, indices: Any, lengths: Any) -> tuple[Any, Any]:
    """The definition, one row and one head at a time, with softmax over the sink as well."""
    outs, lses = [], []
    for row in range(q.shape[0]):
        limit = indices.shape[1] if lengths is None else int(lengths[row])
        listed = [int(j) for j in indices[row][:limit] if j >= 0]
        for head in range(q.shape[1]):
            if not listed:
                outs.append(torch.zeros(kv.shape[1], dtype=q.dtype))
                lses.append(torch.tensor(math.inf, dtype=q.dtype))
                continue
            scores = torch.stack([q[row, head] @ kv[j] for j in listed]) * 0.3
            weights = torch.cat((scores, sink[head][None])).softmax(0)[:-1]
            outs.append(sum(weight * kv[j] for weight, j in zip(weights, listed, strict=True)))
            lses.append(scores.logsumexp(0))
    shape = q.shape[:2]
    return torch.stack(outs).view(*shape, -1), torch.stack(lses).view(shape)


@pytest.mark.parametrize("with_lengths", [True, False])
def test_the_reference_agrees_with_loops(with_lengths: bool) -> None:
    from probes.references.sparse_attention import gradients

    random = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    q, kv, sink, dout = normal(7, 3, 5), normal(11, 5), normal(3), normal(7, 3, 5)
    indices = torch.randint(-1, 11, (7, 6), generator=random)  # holes and duplicates
    indices[2] = -1  # an empty row
    lengths = torch.tensor([6, 1, 3, 0, 2, 5, 4]) if with_lengths else None
    leaves = [tensor.clone().requires_grad_() for tensor in (q, kv, sink)]
    out, lse = by_loops(*leaves, indices, lengths)
    out.backward(dout)
    made = gradients(
        q, kv, sink, indices=indices, lengths=lengths, dout=dout, scale=0.3,
        dtype=torch.float64, chunk=3,
    )  # fmt: skip
    torch.testing.assert_close(made.out, out.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(made.lse, lse.detach(), rtol=1e-12, atol=1e-12)
    for name, leaf in zip(("dq", "dkv", "d_sink"), leaves, strict=True):
        torch.testing.assert_close(getattr(made, name), leaf.grad, rtol=1e-11, atol=1e-12)


def test_the_reference_stands_extreme_scores_and_no_sink() -> None:
    from probes.references.sparse_attention import gradients

    q = torch.full((2, 2, 4), 200.0)
    kv = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)) * 10
    sink = torch.full((2,), -math.inf)
    indices = torch.tensor([[0, 1, 2], [3, 4, -1]])
    made = gradients(
        q, kv, sink, indices=indices, lengths=None, dout=torch.ones(2, 2, 4), scale=1.0
    )
    for name in ("out", "lse", "dq", "dkv", "d_sink"):
        assert bool(getattr(made, name).isfinite().all()), name


def test_same_bits_tells_signs_of_zero_and_accepts_nan() -> None:
    from probes.sparse_gradients import same_bits

    nan = torch.tensor([math.nan, 0.0])
    assert same_bits(torch, nan, nan.clone())
    assert not same_bits(torch, torch.tensor([0.0]), torch.tensor([-0.0]))
