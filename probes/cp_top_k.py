"""The indexer's choice on each rank's slice, by Megatron Core's own function, and its segments.

The keys of all groups are gathered from the ranks that own them. Scores are those of
`probes/references/indexer.py`, in float32 on both sides: a choice is right if it has as many
visible groups as it should, each once, and no group that was left out is better than one that was
chosen by more than the errors of two float32 sums. Where the frontend's kernels choose, the error
of a score is theirs, by the tolerance of `indexer-scores`. Where the layout kernels run, what a
rank chose is lowered to final indices, packed and for the indexer's loss.
"""

from __future__ import annotations

from typing import Any, Final

from probes import cp_lowering, layouts
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import Case, compressed_sums, generator, layout_of
from probes.cp_ranks import Member

RATIO: Final = 4
"""The indexer's; with another one every visible group is attended to."""
ROUNDOFF: Final = 2.0**-24
FUSED_TOLERANCE: Final = 2.0**-18
"""Of a score, by the largest that its sum could be."""
SEGMENTS: Final = ("cu_queries", "cu_keys", "offsets")


def case_of(cp_size: int, layout: str) -> Case:
    """The case of that size and layout."""
    return Case(cp_size, layout, RATIO)


def name(case: Case) -> str:
    """The task's name."""
    return f"cp {case.cp_size} {case.layout} top-k"


def judge(
    torch: Any, chosen: Any, scores: Any, *, width: int, terms: int, fused: bool = False
) -> str:
    """What is wrong with a choice; empty if nothing.

    Args:
        torch: the module.
        chosen: (rows, width) int32, -1 where nothing is chosen.
        scores: `references.indexer.Scores`.
        width: places of a row.
        terms: products and sums on the way to a score.
        fused: whether scores were made by a kernel.
    """
    values = scores.values
    rows, columns = values.shape
    if chosen.dtype != torch.int32 or chosen.shape != (rows, width):
        return f"the choice is {chosen.dtype} {tuple(chosen.shape)}"
    found = chosen.long()
    named = (found >= 0) & (found < columns)
    times = torch.zeros((rows, columns + 1), dtype=torch.int64, device=values.device)
    times.scatter_add_(1, torch.where(named, found, columns), torch.ones_like(found))
    times = times[:, :columns]
    visible = values.isfinite()
    wanted = visible.sum(dim=1).clamp_max(width)
    strange = (~named & (found != -1)).any(dim=1) | ((times > 0) & ~visible).any(dim=1)
    twice = (times > 1).any(dim=1)
    number = (times > 0).sum(dim=1) != wanted
    share = 2 * FUSED_TOLERANCE if fused else 4 * (terms + 2) * ROUNDOFF
    error = share * scores.scale.max(dim=1).values
    # The worst that was chosen, and the best that was not.
    worst = torch.where(times > 0, values, float("inf")).min(dim=1).values
    best = torch.where(visible & (times == 0), values, float("-inf")).max(dim=1).values
    worse = best - worst > error
    wrong = strange | twice | number | worse
    count = int(wrong.sum().item())
    if not count:
        return ""
    return (
        f"{count} of {rows} rows are wrong, the first {int(wrong.nonzero()[0].item())}: in "
        f"{int(strange.sum().item())} a group is none of theirs, in {int(twice.sum().item())} one "
        f"is there twice, in {int(number.sum().item())} there are too many or too few, in "
        f"{int(worse.sum().item())} a better one was left out"
    )


def one_case(member: Member, upstream: ContextParallel, case: Case) -> dict[str, Any]:
    """Gather the keys, choose on this rank's slice, and judge."""
    from probes.references import indexer

    probe, torch, device = member.probe, member.torch, member.device
    model = layouts.MODELS[probe.parameters["model"]]
    group = member.groups[case.cp_size]
    layout = layout_of(probe, case)
    compressed = layouts.compress(layout, case.ratio)
    first = group.rank * layout.local_rows
    rows = slice(first, first + layout.local_rows)
    drawn = generator(probe, torch, name(case), group.number)

    def numbers(*shape: int) -> Any:
        return torch.randn(shape, generator=drawn).to(torch.bfloat16).to(device)

    q = numbers(layout.total_rows, model.indexer_heads, model.indexer_dim)[rows]
    w = numbers(layout.total_rows, model.indexer_heads)[rows]
    keys = numbers(max(1, compressed.cu_seqlens[-1]), model.indexer_dim)
    local = keys.new_zeros((compressed.capacity, model.indexer_dim))
    for slot, (sequence, number) in enumerate(compressed.rank_groups[group.rank]):
        local[slot] = keys[compressed.cu_seqlens[sequence] + number]
    member.step(name(case), "gather")
    with probe.tested("call", "gather"):
        gathered = upstream.gathers["gather"](local, group.handle)()
        member.wait()
    mapping = torch.tensor(compressed.seq_to_rank_row, dtype=torch.int32, device=device)
    in_order = gathered.index_select(0, mapping.clamp_min(0))
    cu_seqlens = torch.tensor(layout.cu_seqlens, dtype=torch.int32, device=device)
    cu_groups = compressed_sums(torch, cu_seqlens, case.ratio)
    member.step(name(case), "choose")
    with probe.tested("call", "compute_cp_indexer_topk"):
        chosen, segments = upstream.top_k(
            q_indexer_local=q,
            weights_indexer_local=w,
            k_indexer_seq_major=in_order,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_compressed=cu_groups,
            global_start=first,
            ratio=case.ratio,
            topk_width=model.top_k,
            indexer_softmax_scale=1.0,
            max_seqlen_q=layout.max_seqlen,
            use_fused=upstream.fused,
        )
        member.wait()
    member.step(name(case), "compare")
    columns = layout.max_seqlen // case.ratio
    if columns == 0:
        wrong = "" if chosen is None else "something was chosen where no group is whole"
        return {"elements": 1, "mismatches": int(bool(wrong)), "detail": wrong}
    if chosen is None:
        return {"elements": 1, "mismatches": 1, "detail": "nothing was chosen"}
    question = indexer.Question(
        layout.cu_seqlens,
        compressed.cu_seqlens,
        first,
        layout.local_rows,
        case.ratio,
        columns,
    )
    details = []
    wrong = judge(
        torch,
        chosen,
        indexer.scores(question, q, keys, w),
        width=model.top_k,
        terms=model.indexer_dim + model.indexer_heads,
        fused=upstream.fused,
    )
    if wrong:
        details.append(wrong)
    right = layouts.indexer_segments(layout, case.ratio, group.rank)
    for label, got in zip(SEGMENTS, segments, strict=True):
        if tuple(got.tolist()) != getattr(right, label):
            details.append(f"{label} of the segments are wrong")
    elements = chosen.numel() + sum(one.numel() for one in segments)
    if upstream.build is not None:
        for mode in (0, 2):
            lowered = cp_lowering.lower(
                member, upstream, case=case, group=group, mode=mode, chosen=chosen,
                mapping=mapping, task=name(case),
            )  # fmt: skip
            elements += lowered.elements
            details += [lowered.detail] if lowered.detail else []
    return {
        "elements": elements,
        "mismatches": len(details),
        "detail": "; ".join(details),
    }
