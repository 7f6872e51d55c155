"""The whole attention of each rank's slice, forward and backward, against the batch on one rank.

A rank's rows are both what it exchanges and its keys: they go through the boundary exchange, the
compaction, a compressor that copies one token's channel into each channel of a compressed row, and
the gather, and make the buffer of keys as the tree's attention does. Final indices are the tree's
own. Chosen groups are random visible ones, the same for all processes.

The reference knows no ranks: one buffer of all rows and all groups, float32 and automatic
differentiation. Where the tree's attention has no forward here, the reference's output and
log-sum are given to the frontend's backward.

Tolerances of the output, the queries' gradient and the sink's are those of
`probes/sparse_gradients.py`, which allow for four roundings to bfloat16. On the way to the gradient
of a row lie as many, one more for each rank whose share is added up, and three for its parts: that
tolerance is larger in proportion. Rows that belong to no sequence have no gradient, and their
output, which nobody reads, is not compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from probes import cp_lowering, layouts
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import Case, compressed_sums, generator, layout_of
from probes.cp_ranks import Group, Member
from probes.devices import poisoned_memory
from probes.sparse_gradients import ELEMENT_TOLERANCE, ROW_TOLERANCE, closeness


@dataclass(frozen=True)
class Inputs:
    """Of all ranks together, the same in every process."""

    x: Any
    """(all rows, 1, dim) bfloat16: rows and keys."""
    q: Any
    """(all rows, heads, dim) bfloat16"""
    dout: Any
    """(all rows, heads, dim) bfloat16, zero where a row belongs to no sequence."""
    sink: Any
    """(heads,) float32"""
    chosen: Any | None
    """(all rows, width) int64, or None where all visible groups are attended to."""
    inside: Any
    """(all rows,) bool: of some sequence."""


def name(case: Case) -> str:
    """The task's name."""
    return f"cp {case.cp_size} {case.layout} ratio {case.ratio} attention"


def draw(member: Member, case: Case, group: int) -> Inputs:
    """Random inputs of one group's batch."""
    torch, probe, device = member.torch, member.probe, member.device
    model = layouts.MODELS[probe.parameters["model"]]
    layout = layout_of(probe, case)
    rows = layout.total_rows
    drawn = generator(probe, torch, name(case), group)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=drawn).to(torch.bfloat16)

    x, q = normal(rows, 1, model.head_dim), normal(rows, model.heads, model.head_dim)
    dout = normal(rows, model.heads, model.head_dim)
    inside = torch.arange(rows) < layout.covered_rows
    dout[~inside] = 0
    # Around the log of a window's width, where a sink takes half of the weight.
    sink = math.log(model.window) - 1 + 2 * torch.rand(model.heads, generator=drawn)
    chosen = None
    width = min(model.top_k, layout.max_seqlen // case.ratio)
    if case.ratio == 4 and width:
        chosen = _chosen(torch, layout, case.ratio, torch.rand((rows, width), generator=drawn))
    return Inputs(
        x.to(device),
        q.to(device),
        dout.to(device),
        sink.float().to(device),
        None if chosen is None else chosen.to(device),
        inside.to(device),
    )


def _chosen(torch: Any, layout: layouts.Layout, ratio: int, place: Any) -> Any:
    """(rows, width) int64: different visible groups for each row, as many as there are, then -1."""
    cu = torch.tensor(layout.cu_seqlens)
    rows = torch.arange(layout.total_rows)
    sequence = torch.searchsorted(cu[1:].contiguous(), rows, right=True)
    sequence = sequence.clamp_max(len(layout.lengths) - 1)
    visible = torch.where(rows < layout.covered_rows, (rows - cu[sequence] + 1) // ratio, 0)
    # Some of the last ones, each once, in a random order.
    order = place.argsort(dim=1)
    group = visible[:, None] - 1 - order
    return torch.where(group >= 0, group, -1)


def one_case(member: Member, upstream: ContextParallel, case: Case) -> dict[str, Any]:
    """Forward and backward on this rank, and both compared."""
    group = member.groups[case.cp_size]
    inputs = draw(member, case, group.number)
    found = run(member, upstream, case, group, inputs)
    member.step(name(case), "compare")
    right = expected(member, case, group.rank, inputs)
    rows = _rows(inputs, group)
    details = compare(member.torch, found, right, inside=inputs.inside[rows], cp_size=group.size)
    return {
        "elements": sum(one.numel() for one in right.values()),
        "mismatches": len(details),
        "detail": "; ".join(details),
    }


def _rows(inputs: Inputs, group: Group) -> slice:
    count = len(inputs.x) // group.size
    return slice(group.rank * count, (group.rank + 1) * count)


def run(
    member: Member, upstream: ContextParallel, case: Case, group: Group, inputs: Inputs
) -> dict[str, Any]:
    """What the group makes of this rank's rows, called as the tree's attention calls it."""
    from probes.references import one_rank

    torch, probe = member.torch, member.probe
    assert upstream.attend is not None
    model = layouts.MODELS[probe.parameters["model"]]
    layout = layout_of(probe, case)
    rows = _rows(inputs, group)
    x, q = (one[rows].clone().requires_grad_() for one in (inputs.x, inputs.q))
    sink = inputs.sink.clone().requires_grad_()
    cu_seqlens = torch.tensor(layout.cu_seqlens, dtype=torch.int32, device=member.device)
    with poisoned_memory(torch):
        member.step(name(case), "exchange, compress and gather")
        with probe.tested("call", "exchange, compress and gather"):
            boundary = upstream.exchange(x, case.ratio, model.window, group.handle)
            compact, _, mapping = upstream.prepare(
                x, boundary, cu_seqlens, compressed_sums(torch, cu_seqlens, case.ratio),
                rows.start, group.size, case.ratio,
            )  # fmt: skip
            *_, gather = upstream.gathers.values()
            gathered = gather(one_rank.compressed(compact, case.ratio), group.handle)()
            member.wait()
        question = cp_lowering.question_of(
            member, case, rank=group.rank, cp_size=group.size,
            mode=0 if inputs.chosen is not None else 1,
            chosen=None if inputs.chosen is None else inputs.chosen[rows],
        )  # fmt: skip
        member.step(name(case), "attend, forward")
        with probe.tested("call", "attend, forward"):
            indices, lengths, _ = cp_lowering.build(member, upstream, question, mapping)
            buffer = torch.cat((boundary[:, 0], x[:, 0], gathered[:, 0]))
            out = upstream.attend(
                q, buffer, sink, indices, model.softmax_scale,
                topk_length=lengths, indexer_topk=0, is_thd=True,
            ).reshape(q.shape)  # fmt: skip
            member.wait()
        member.step(name(case), "attend, backward")
        with probe.tested("call", "attend, backward"):
            # A gradient of its own for the output, as one_rank.pull_back explains.
            loss = (out * inputs.dout[rows]).sum()
            dx, dq, d_sink = torch.autograd.grad(loss, (x, q, sink))
            member.wait()
    return {"out": out.detach(), "dq": dq, "dx": dx, "d_sink": d_sink}


def expected(member: Member, case: Case, rank: int, inputs: Inputs) -> dict[str, Any]:
    """What a rank must have of it, computed on one rank from all rows."""
    from probes.references import layout_indices, one_rank, sparse_attention

    torch, probe = member.torch, member.probe
    model = layouts.MODELS[probe.parameters["model"]]
    question = cp_lowering.question_of(
        member, case, rank=0, cp_size=1, mode=0 if inputs.chosen is not None else 1,
        chosen=inputs.chosen,
    )  # fmt: skip
    layout = layout_of(probe, case)
    whole = layouts.Layout(layout.name, 1, layout.total_rows, layout.lengths)
    compressed = layouts.compress(whole, case.ratio)
    batch = one_rank.Batch(
        question.cu_seqlens, 1, whole.total_rows, question.boundary, case.ratio,
        compressed.overlap, compressed.capacity,
    )  # fmt: skip
    x = inputs.x.float().requires_grad_()
    made = one_rank.forward(batch, x)
    buffer = torch.cat((made.boundaries[0][:, 0], x[:, 0], made.gathered[:, 0]))
    answer = layout_indices.attention_indices(question)
    lengths: Any = answer.lengths
    count = layout.local_rows
    found: dict[str, Any] = {}
    shares = torch.zeros_like(buffer)
    for other in range(case.cp_size):
        rows = slice(other * count, (other + 1) * count)
        part = sparse_attention.gradients(
            inputs.q[rows], buffer, inputs.sink, indices=answer.indices[rows],
            lengths=lengths[rows], dout=inputs.dout[rows], scale=model.softmax_scale,
        )  # fmt: skip
        shares += part.dkv
        if other == rank:
            found = {"out": part.out, "dq": part.dq, "d_sink": part.d_sink}
    gradient = one_rank.pull_back([buffer], [shares], x)
    return {**found, "dx": gradient[rank * count : (rank + 1) * count]}


def compare(
    torch: Any, found: Mapping[str, Any], right: Mapping[str, Any], *, inside: Any, cp_size: int
) -> list[str]:
    """What is wrong, a sentence for each result; nothing where nothing is."""
    details = []
    for label, wanted in right.items():
        got = found[label]
        if got.shape != wanted.shape:
            details.append(f"{label} is {got.dtype} {tuple(got.shape)}")
            continue
        # As (rows, heads, elements); of the output, rows that somebody reads.
        places: Any = {"out": inside, "d_sink": (None, None)}.get(label, ...)
        if not wanted[places].numel():
            continue
        close = closeness(torch, got[places], wanted[places])
        factor = (4 + cp_size + 3) / 4 if label == "dx" else 1.0
        row, element = ROW_TOLERANCE * factor, ELEMENT_TOLERANCE * factor
        if not (close.worst_row <= row and close.worst_element <= element):
            details.append(
                f"{label}: a row is off by {close.worst_row:.3g} and may be by {row:.3g}, an "
                f"element by {close.worst_element:.3g} and may be by {element:.3g}"
            )
    return details


def with_reference_forward(torch: Any, backward: Callable[..., Any]) -> Callable[..., Any]:
    """The attention where there is no forward kernel: the reference's, and a backward kernel."""
    from probes.references import sparse_attention

    class Attention(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
        @staticmethod
        def forward(  # noqa: PLR0917 - as autograd gives arguments
            ctx: Any, q: Any, kv: Any, sink: Any, indices: Any, lengths: Any, scale: float
        ) -> Any:
            outs, lses = [], []
            for start in range(0, len(q), 64):
                rows = slice(start, start + 64)
                out, lse = sparse_attention.forward(
                    q[rows].float(), kv.float(), sink, indices=indices[rows],
                    lengths=None if lengths is None else lengths[rows], scale=scale,
                )  # fmt: skip
                outs.append(out.to(q.dtype))
                lses.append(lse)
            out = torch.cat(outs)
            ctx.save_for_backward(q, kv, sink, indices, lengths, out, torch.cat(lses))
            ctx.scale = scale
            return out

        @staticmethod
        def backward(ctx: Any, dout: Any) -> Any:
            q, kv, sink, indices, lengths, out, lse = ctx.saved_tensors
            made = backward(
                q=q, kv=kv, out=out, dout=dout.contiguous(), lse=lse.contiguous(), attn_sink=sink,
                topk_idxs=indices, softmax_scale=ctx.scale, topk_length=lengths,
            )  # fmt: skip
            return made["dq"], made["dkv"], made["d_sink"], None, None, None

    def attend(  # noqa: PLR0917 - as the function that it stands for is called
        query: Any, kv: Any, attn_sink: Any, topk_idxs: Any, softmax_scale: float,
        topk_length: Any = None, indexer_topk: int = 0, *, is_thd: Any = False,
    ) -> Any:  # fmt: skip
        assert is_thd
        assert indexer_topk == 0
        return Attention.apply(query, kv, attn_sink, topk_idxs, topk_length, softmax_scale)

    return attend
