"""Sparse attention with a sink, and its gradients by automatic differentiation.

Every row attends to listed rows of one buffer that is both keys and values, the same for all heads:

    s_j = scale * <q_h, kv_j>   for the listed j that count: j >= 0, and its place before the length
    out = sum_j exp(s_j) kv_j / (sum_j exp(s_j) + exp(sink_h))
    lse = log sum_j exp(s_j)    without the sink; plus infinity for a row with nothing listed

Only the forward is written down. The gradients are torch's own, so that no formula of a backward
kernel is repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Gradients:
    """Forward and gradients of one batch, in the dtype that was computed in."""

    out: Any
    """(rows, heads, dim)"""
    lse: Any
    """(rows, heads)"""
    dq: Any
    """(rows, heads, dim)"""
    dkv: Any
    """(buffer rows, dim)"""
    d_sink: Any
    """(heads,)"""


def forward(
    q: Any, kv: Any, sink: Any, *, indices: Any, lengths: Any | None, scale: float
) -> tuple[Any, Any]:
    """The definition above, in the dtype of `q`.

    Args:
        q: (rows, heads, dim).
        kv: (buffer rows, dim).
        sink: (heads,); minus infinity is a sink that takes nothing.
        indices: (rows, width) integers.
        lengths: (rows,) integers, or None when every place may count.
        scale: of the scores.

    Returns:
        `out` (rows, heads, dim), differentiable, and `lse` (rows, heads).
    """
    counts = indices >= 0
    if lengths is not None:
        counts = counts & (torch.arange(indices.shape[1], device=q.device) < lengths[:, None])
    listed = kv[indices.clamp_min(0).long()]
    scores = torch.einsum("rhd,rkd->rhk", q, listed) * scale
    counts = counts[:, None, :]
    with torch.no_grad():
        # Any shift gives the same result; the largest exponent keeps it in range.
        shift = torch.maximum(
            scores.masked_fill(~counts, float("-inf")).amax(dim=-1), sink.expand(scores.shape[:2])
        )
        shift = torch.where(shift.isfinite(), shift, 0)
    weights = torch.exp((scores - shift[..., None]).masked_fill(~counts, float("-inf")))
    total = weights.sum(dim=-1)
    denominator = total + torch.exp(sink - shift)
    # A row with nothing listed and no sink has nothing to divide.
    out = torch.einsum("rhk,rkd->rhd", weights, listed)
    out = out / torch.where(denominator > 0, denominator, 1)[..., None]
    with torch.no_grad():
        lse = torch.where(total > 0, torch.log(total) + shift, float("inf"))
    return out, lse


def gradients(
    q: Any,
    kv: Any,
    sink: Any,
    *,
    indices: Any,
    lengths: Any | None,
    dout: Any,
    scale: float,
    dtype: Any = torch.float32,
    chunk: int = 64,
) -> Gradients:
    """Forward and gradients, computed in `dtype` from inputs of any dtype.

    Args:
        q: (rows, heads, dim).
        kv: (buffer rows, dim).
        sink: (heads,).
        indices: (rows, width).
        lengths: (rows,) or None.
        dout: (rows, heads, dim), gradient of `out`.
        scale: of the scores.
        dtype: float32 or float64.
        chunk: rows at a time; bounds memory at about `chunk * width * dim` elements a copy.
    """
    leaf_kv = kv.detach().to(dtype).requires_grad_()
    leaf_sink = sink.detach().to(dtype).requires_grad_()
    outs, lses, dqs = [], [], []
    for start in range(0, q.shape[0], chunk):
        rows = slice(start, start + chunk)
        leaf_q = q[rows].detach().to(dtype).requires_grad_()
        out, lse = forward(
            leaf_q,
            leaf_kv,
            leaf_sink,
            indices=indices[rows],
            lengths=None if lengths is None else lengths[rows],
            scale=scale,
        )
        out.backward(dout[rows].to(dtype))
        outs.append(out.detach())
        lses.append(lse)
        dqs.append(leaf_q.grad)
    return Gradients(torch.cat(outs), torch.cat(lses), torch.cat(dqs), leaf_kv.grad, leaf_sink.grad)
