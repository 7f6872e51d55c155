"""Are the attention indices of every context-parallel rank exactly right?

Drives Megatron Core's `build_attention_indices` (packed THD, contiguous partition) as its CSA
layers do: int32 prefix sums on the device, `local_rows` rows of one of `cp_size` ranks at a time,
the window's width and the number of rows from the left neighbour both `window`. A case `M:R` is
mode M at compression ratio R: 0 packs chosen groups after the window, 1 lists all visible groups
(ratio 0: the window alone), 2 keeps chosen groups in place for the indexer's loss. Chosen groups
are random visible ones, some missing (-1) and some beyond the sequence's end.

Every element is compared bit for bit with a plain reference, so there is no tolerance. All
elements of what is returned are defined, as reading the kernel shows: modes 1 and 2 write every
column of a row in one strided loop, and mode 0 first sets a row to -1; the length is written with
column 0 in mode 1 and always in mode 0; in mode 2 the rank-major table is written with the index
table. Buffers that the function allocates are poisoned first, by torch's own switch.

Controls: one shifted index, a map in which two ranks are swapped, and the lengths of another rank
must each be noticed by the same comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from probes import layouts
from probes.adapters import mcore_layout
from probes.adapters.shapes import expect_parameters, member
from probes.devices import poison_works, poisoned_memory, use_device, wait
from probes.layouts import Layout
from probes.session import Session

PROBE: Final = {
    "id": "layout-indices",
    "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl", "megatron-core"],
    "required": True,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 8192,
            "model": "dsv4-flash",
            "alignment": 1,
            "cases": ["0:4", "2:4", "1:128", "1:0"],
            "layouts": [
                "ordinary",
                "one-sequence",
                "many-sequences",
                "short-sequences",
                "zero-lengths",
                "no-whole-sequence",
                "padding-rank",
                "odd-lengths",
            ],
        },
        "thorough": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 8192,
            "model": "dsv4-flash",
            "alignment": 1,
            "cases": ["0:4", "2:4", "0:128", "2:128", "1:128", "1:0"],
            "layouts": [
                "ordinary",
                "one-sequence",
                "many-sequences",
                "short-sequences",
                "zero-lengths",
                "spanning",
                "no-whole-sequence",
                "padding-rank",
                "padding-tail",
                "odd-lengths",
            ],
        },
    },
}


@dataclass
class _Totals:
    rows: int = 0
    mismatches: int = 0


@dataclass(frozen=True)
class Comparison:
    """How an answer compares with the reference."""

    mismatches: int
    """Elements that differ; every element of an output with the wrong form counts."""
    detail: str


def run(probe: Session) -> None:
    """Every layout and case, each over the ranks that tell most."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    module = mcore_layout.load(probe)
    build = member(module, "build_attention_indices")
    expect_parameters("build_attention_indices", build, mcore_layout.BUILD_PARAMETERS)
    totals = _Totals()
    for name in probe.parameters["layouts"]:
        layout = layouts.make(
            name,
            seed=probe.seed,
            cp_size=int(probe.parameters["cp_size"]),
            local_rows=int(probe.parameters["local_rows"]),
            alignment=int(probe.parameters["alignment"]),
        )
        for case in probe.parameters["cases"]:
            _part(
                probe,
                torch,
                device=device,
                build=build,
                layout=layout,
                case=str(case),
                totals=totals,
            )
    probe.measure(
        rows_compared_count=totals.rows,
        mismatches_count=totals.mismatches,
        compiles_count=len(getattr(module, "_COMPILED_LAUNCH_CACHE", ())),
        poison_reaches_buffers=poison_works(torch, device),
    )
    _controls(probe, torch, device)


def _part(
    probe: Session,
    torch: Any,
    *,
    device: Any,
    build: Any,
    layout: Layout,
    case: str,
    totals: _Totals,
) -> None:
    from probes.references.layout_indices import attention_indices

    name = f"{layout.name} mode {case}"
    with probe.check(name) as check:
        worst = Comparison(0, "")
        rows = 0
        for rank, question in _questions(probe, torch, device, layout, case):
            probe.step(f"{name} rank {rank}")
            with (
                probe.tested("call", f"build_attention_indices, {name}, rank {rank}"),
                poisoned_memory(torch),
            ):
                answer = _ask(torch, build, question)
                wait(torch, device)
            compared = compare(torch, answer, attention_indices(question))
            rows += question.rows
            if compared.mismatches > worst.mismatches:
                worst = Comparison(compared.mismatches, f"rank {rank}: {compared.detail}")
            totals.mismatches += compared.mismatches
        totals.rows += rows
        check.measure["rows_compared_count"] = rows
        check.measure["sequences_count"] = len(layout.lengths)
        check.measure["worst_rank_mismatches_count"] = worst.mismatches
        check.expect(rows > 0, "probe:NoRows", "no rank was compared", status="error")
        check.expect(worst.mismatches == 0, "numerics", worst.detail)


def _questions(
    probe: Session, torch: Any, device: Any, layout: Layout, case: str
) -> Iterator[tuple[int, Any]]:
    """A question for each telling rank of a layout."""
    from probes.references.layout_indices import ALL_VISIBLE, Question

    mode, ratio = (int(number) for number in case.split(":"))
    model = layouts.MODELS[probe.parameters["model"]]
    window = model.window
    whole = {"dtype": torch.int64, "device": device}
    common: dict[str, Any] = {
        "cu_seqlens": torch.tensor(layout.cu_seqlens, **whole),
        "rows": layout.local_rows,
        "boundary": window,
        "window": window,
        "ratio": ratio,
        "mode": mode,
        "width": 0,
    }
    if ratio > 1:
        compressed = layouts.compress(layout, ratio)
        widest = layout.max_seqlen // ratio
        common |= {
            "cu_compressed": torch.tensor(compressed.cu_seqlens, **whole),
            "seq_to_rank_row": torch.tensor(compressed.seq_to_rank_row, **whole),
            # Callers narrow the table of chosen groups to what the longest sequence has.
            "width": widest if mode == ALL_VISIBLE else min(model.top_k, widest),
        }
    # Drawn on the CPU: generators of devices differ, and the seed must mean one input. The same
    # draws serve every rank; what they come to depends on the rank's rows.
    random = torch.Generator().manual_seed(probe.seed)
    shape = (layout.local_rows, common["width"] if mode != ALL_VISIBLE else 0)
    draws = [torch.rand(shape, generator=random).to(device) for _ in range(2)]
    for rank in layout.telling_ranks():
        question = Question(first_row=layout.rank_rows(rank).start, **common)
        if mode != ALL_VISIBLE:
            question = replace(question, chosen=_chosen(torch, question, *draws))
        yield rank, question


def _chosen(torch: Any, question: Any, place: Any, kind: Any) -> Any:
    """Random groups of each row's sequence that the row may see, some missing, some too large.

    Args:
        torch: the module.
        question: with everything but the chosen groups.
        place: (rows, width) in [0, 1): which of the visible groups.
        kind: (rows, width) in [0, 1): below 1/8 there is no group, above 0.98 one beyond the end.

    Returns:
        (rows, width) int64.
    """
    cu, counts = question.cu_seqlens, question.cu_compressed.diff()
    rows = question.first_row + torch.arange(question.rows, device=cu.device)
    sequence = torch.searchsorted(cu[1:].contiguous(), rows, right=True).clamp_max(len(counts) - 1)
    count = counts[sequence]
    visible = torch.minimum((rows - cu[sequence] + 1) // question.ratio, count).clamp_min(0)
    group = (place * visible[:, None]).long()
    group = torch.where((kind < 0.125) | (visible[:, None] == 0), -1, group)
    beyond = count[:, None] + (kind * 1024).long() % 5
    return torch.where(kind > 0.98, beyond, group)


def _ask(torch: Any, build: Any, question: Any) -> Any:
    """Call the function under test the way its caller does."""
    from probes.references.layout_indices import INDEXER_LOSS, Answer

    def narrow(tensor: Any) -> Any:
        return None if tensor is None else tensor.to(torch.int32).contiguous()

    indices, lengths, rank_major = build(
        narrow(question.cu_seqlens),
        question.first_row,
        question.rows,
        question.boundary,
        question.window,
        question.ratio,
        question.width,
        narrow(question.chosen),
        cu_seqlens_compressed=narrow(question.cu_compressed),
        seq_to_rank_row=narrow(question.seq_to_rank_row),
        for_indexer_loss=question.mode == INDEXER_LOSS,
    )
    return Answer(indices, lengths, rank_major)


def compare(torch: Any, answer: Any, expected: Any) -> Comparison:
    """Compare two answers bit for bit: form first, then every element."""
    total = 0
    details = []
    for name in ("indices", "lengths", "rank_major"):
        found, wanted = getattr(answer, name), getattr(expected, name)
        if wanted is None and found is None:
            continue
        if wanted is None or found is None:
            total += 1
            details.append(f"{name} is {'missing' if found is None else 'unexpected'}")
            continue
        if found.dtype != torch.int32 or found.shape != wanted.shape:
            total += max(1, wanted.numel())
            details.append(f"{name} is {found.dtype} {tuple(found.shape)}")
            continue
        wrong = (found != wanted).nonzero()
        if len(wrong):
            total += len(wrong)
            place = tuple(wrong[0].tolist())
            details.append(
                f"{name}: {len(wrong)} of {wanted.numel()} differ, the first at {list(place)}: "
                f"{int(found[place])} instead of {int(wanted[place])}"
            )
    return Comparison(total, "; ".join(details))


def _controls(probe: Session, torch: Any, device: Any) -> None:
    """Plant faults into right answers and compare them with the right answers."""
    from probes.references.layout_indices import attention_indices

    probe.step("controls")
    layout = layouts.make(
        "spanning",
        seed=probe.seed,
        cp_size=int(probe.parameters["cp_size"]),
        local_rows=int(probe.parameters["local_rows"]),
    )
    caught: dict[str, list[str]] = {}
    for case in probe.parameters["cases"]:
        questions = _questions(probe, torch, device, layout, str(case))
        _, first = next(questions)
        rank, question = next(questions)
        right = attention_indices(question)
        wrong = {"a shifted index": replace(right, indices=_shifted(torch, right.indices))}
        if question.ratio > 1 and question.width:
            swapped = _swap_ranks(torch, layout, question)
            wrong["two swapped ranks"] = attention_indices(swapped)
        if right.lengths is not None:
            # The first rank begins with a sequence, whose first rows have short windows; in the
            # next one, inside a long sequence, no window is short.
            stale = attention_indices(first).lengths
            wrong["a stale length"] = replace(right, lengths=stale)
        for name, answer in wrong.items():
            if not compare(torch, answer, right).mismatches:
                caught.setdefault(name, []).append(f"mode {case} rank {rank}")
            else:
                caught.setdefault(name, [])
    for name, missed in caught.items():
        probe.control(name, failed=not missed, detail="; ".join(missed) or None)


def _shifted(torch: Any, indices: Any) -> Any:
    """One index in the middle of the table, moved to its right neighbour."""
    place = (indices >= 0).nonzero()
    row, column = place[len(place) // 2].tolist()
    shifted = indices.clone()
    shifted[row, column] += 1
    return shifted


def _swap_ranks(torch: Any, layout: Layout, question: Any) -> Any:
    """The question with the compressed rows of the first two ranks exchanged."""
    capacity = layouts.compress(layout, question.ratio).capacity
    mapping = question.seq_to_rank_row
    rank = torch.div(mapping, capacity, rounding_mode="floor")
    moved = torch.where(rank == 0, mapping + capacity, mapping)
    moved = torch.where(rank == 1, mapping - capacity, moved)
    return replace(question, seq_to_rank_row=moved)
