"""Final indices of a rank's rows, by the layout kernel, in the group that the rank is in."""

from __future__ import annotations

from typing import Any

from probes import layout_indices, layouts
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import Case, Difference, layout_of
from probes.cp_ranks import Group, Member
from probes.devices import poisoned_memory


def name(case: Case) -> str:
    """The task's name, of indices to all visible rows."""
    return f"cp {case.cp_size} {case.layout} ratio {case.ratio} indices"


def question_of(
    member: Member, case: Case, *, rank: int, cp_size: int, mode: int, chosen: Any | None
) -> Any:
    """A rank's rows as the reference knows them.

    Args:
        member: who asks.
        case: the batch.
        rank: of the group.
        cp_size: the case's own; 1 for all rows on one rank.
        mode: of the reference.
        chosen: (rows, width), in modes 0 and 2.
    """
    from probes.references.layout_indices import ALL_VISIBLE, Question

    torch, probe = member.torch, member.probe
    model = layouts.MODELS[probe.parameters["model"]]
    whole = layout_of(probe, case)
    layout = layouts.Layout(whole.name, cp_size, whole.total_rows // cp_size, whole.lengths)
    compressed = layouts.compress(layout, case.ratio)
    long: dict[str, Any] = {"dtype": torch.int64, "device": member.device}
    widest = layout.max_seqlen // case.ratio
    return Question(
        cu_seqlens=torch.tensor(layout.cu_seqlens, **long),
        first_row=rank * layout.local_rows,
        rows=layout.local_rows,
        boundary=max(model.window, compressed.overlap),
        window=model.window,
        ratio=case.ratio,
        width=widest if mode == ALL_VISIBLE else chosen.shape[1] if chosen is not None else 0,
        mode=mode,
        chosen=None if chosen is None else chosen.long(),
        cu_compressed=torch.tensor(compressed.cu_seqlens, **long),
        seq_to_rank_row=torch.tensor(compressed.seq_to_rank_row, **long),
    )


def build(
    member: Member, upstream: ContextParallel, question: Any, mapping: Any
) -> tuple[Any, Any, Any]:
    """Call the kernel as the attention does; `mapping` is the one that the group works with."""
    from probes.references.layout_indices import INDEXER_LOSS

    assert upstream.build is not None

    def narrow(tensor: Any) -> Any:
        return None if tensor is None else tensor.int().contiguous()

    with member.probe.tested("call", "build_attention_indices"):
        found: tuple[Any, Any, Any] = upstream.build(
            narrow(question.cu_seqlens),
            question.first_row,
            question.rows,
            question.boundary,
            question.window,
            question.ratio,
            question.width,
            narrow(question.chosen),
            cu_seqlens_compressed=narrow(question.cu_compressed),
            seq_to_rank_row=mapping,
            for_indexer_loss=question.mode == INDEXER_LOSS,
        )
    return found


def lower(
    member: Member, upstream: ContextParallel, *, case: Case, group: Group, mode: int,
    chosen: Any | None, mapping: Any, task: str,
) -> Difference:  # fmt: skip
    """Lower what this rank attends to, and compare with the reference."""
    from probes.references.layout_indices import Answer, attention_indices

    torch = member.torch
    question = question_of(
        member, case, rank=group.rank, cp_size=group.size, mode=mode, chosen=chosen
    )
    member.step(task, f"lower the indices, mode {mode}")
    with poisoned_memory(torch), member.probe.tested("call", f"indices, mode {mode}"):
        found = Answer(*build(member, upstream, question, mapping))
        member.wait()
    right = attention_indices(question)
    compared = layout_indices.compare(torch, found, right)
    said = f"mode {mode}: {compared.detail}" if compared.mismatches else ""
    return Difference(right.indices.numel(), compared.mismatches, said)


def one_case(member: Member, upstream: ContextParallel, case: Case) -> dict[str, Any]:
    """Lower all visible rows, with the map that the tree itself makes in this group."""
    from probes.references.layout_indices import ALL_VISIBLE

    torch, device = member.torch, member.device
    group = member.groups[case.cp_size]
    compressed = layouts.compress(layout_of(member.probe, case), case.ratio)
    mapping = torch.tensor(compressed.seq_to_rank_row, dtype=torch.int32, device=device)
    made = lower(
        member, upstream, case=case, group=group, mode=ALL_VISIBLE, chosen=None, mapping=mapping,
        task=name(case),
    )  # fmt: skip
    return {"elements": made.elements, "mismatches": made.mismatches, "detail": made.detail}
