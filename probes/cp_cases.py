"""What a rank of a context-parallel group does with a batch, and whether it is right.

Two layers, with different rows, are both run forward before anything is compared, and backward in
the opposite order: a buffer that is used twice would be found out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from probes import layouts
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_ranks import Group, Member
from probes.devices import poisoned_memory
from probes.layouts import Layout
from probes.session import Session

LAYERS: Final = 2
_LARGEST: Final = 4
"""Gradients are whole numbers up to this, of either sign: their sums over the ranks and over the
places that a row goes to stay far below 256, up to which bfloat16 has all whole numbers."""


@dataclass(frozen=True)
class Case:
    """One batch for the groups of one size."""

    cp_size: int
    layout: str
    ratio: int

    @property
    def name(self) -> str:
        return f"cp {self.cp_size} {self.layout} ratio {self.ratio}"


@dataclass(frozen=True)
class Difference:
    """How results compare with the reference's."""

    elements: int
    """That were compared."""
    mismatches: int
    """Elements that differ; every element of a result with the wrong form counts."""
    detail: str


@dataclass(frozen=True)
class Layer:
    """What goes into a layer: the same in every process."""

    x: Any
    """(all rows, 1, hidden) bfloat16"""
    arriving: Any
    """`one_rank.Gradients`, in bfloat16"""


def cases(probe: Session) -> list[Case]:
    """All that the parameters ask for."""
    parameters = probe.parameters
    return [
        Case(int(size), str(name), int(ratio))
        for size in parameters["cp_sizes"]
        for ratio in parameters["ratios"]
        for name in parameters["layouts"]
    ]


def layout_of(probe: Session, case: Case) -> Layout:
    """A named layout, which needs four ranks to be made, cut into as many as the group has."""
    rows = int(probe.parameters["local_rows"])
    parts = max(4, case.cp_size)
    made = layouts.make(
        case.layout, seed=probe.seed, cp_size=parts, local_rows=case.cp_size * rows // parts
    )
    return Layout(made.name, case.cp_size, rows, made.lengths)


def batch_of(probe: Session, torch: Any, device: Any, case: Case) -> Any:
    """The case as the reference knows it."""
    from probes.references.one_rank import Batch

    layout = layout_of(probe, case)
    compressed = layouts.compress(layout, case.ratio)
    model = layouts.MODELS[probe.parameters["model"]]
    return Batch(
        cu_seqlens=torch.tensor(layout.cu_seqlens, dtype=torch.int64, device=device),
        cp_size=case.cp_size,
        rows=layout.local_rows,
        boundary=max(model.window, compressed.overlap),
        ratio=case.ratio,
        overlap=compressed.overlap,
        capacity=compressed.capacity,
    )


def generator(probe: Session, torch: Any, *labels: Any) -> Any:
    """Random numbers that depend on the seed and the labels alone."""
    label = "/".join(str(one) for one in (probe.seed, *labels))
    return torch.Generator().manual_seed(random.Random(label).getrandbits(62))  # noqa: S311


def layer_of(
    probe: Session, torch: Any, device: Any, *, case: Case, batch: Any, number: int, group: int
) -> Layer:
    """The rows of a layer and the gradients that come back, whole numbers all of them."""
    from probes.references.one_rank import Gradients

    hidden = layouts.MODELS[probe.parameters["model"]].hidden
    drawn = generator(probe, torch, case.name, number, group)

    def whole(most: int, *shape: int) -> Any:
        numbers = torch.randint(-most, most + 1, (*shape, 1, hidden), generator=drawn)
        return numbers.to(torch.bfloat16).to(device)

    rows = batch.cp_size * batch.rows
    gathered = batch.cp_size * batch.capacity
    return Layer(
        whole(128, rows),
        Gradients(
            whole(_LARGEST, rows),
            whole(_LARGEST, batch.cp_size, batch.boundary),
            whole(_LARGEST, batch.cp_size, gathered),
        ),
    )


def difference(torch: Any, found: Mapping[str, Any], right: Mapping[str, Any]) -> Difference:
    """Compare results value by value: form first, then every element. NaN is never right."""
    elements = mismatches = 0
    details = []
    for name, wanted in right.items():
        elements += wanted.numel()
        got = found.get(name)
        if got is None or got.dtype != wanted.dtype or got.shape != wanted.shape:
            mismatches += max(1, wanted.numel())
            form = "missing" if got is None else f"{got.dtype} {tuple(got.shape)}"
            details.append(f"{name} is {form}")
            continue
        wrong = got != wanted
        count = int(wrong.sum().item())
        if count:
            mismatches += count
            rows = wrong.flatten(1).any(dim=1) if wrong.ndim > 1 else wrong
            details.append(
                f"{name}: {count} of {wanted.numel()} differ, in {int(rows.sum().item())} rows, "
                f"the first {int(rows.nonzero()[0].item())}"
            )
    return Difference(elements, mismatches, "; ".join(details))


def right_results(
    probe: Session, torch: Any, *, case: Case, batch: Any, layer: Layer, rank: int
) -> dict[str, Any]:
    """What one rank must have of a layer, by the reference."""
    from probes.references import one_rank

    made = one_rank.forward(batch, layer.x)
    rows = slice(rank * batch.rows, (rank + 1) * batch.rows)
    gradient = one_rank.gradient(batch, layer.x, layer.arriving)[rows]
    compressed = layouts.compress(layout_of(probe, case), case.ratio)
    mapping = torch.tensor(compressed.seq_to_rank_row, dtype=torch.int32, device=layer.x.device)
    used = mapping[: compressed.cu_seqlens[-1]].long()
    return {
        "boundary": made.boundaries[rank],
        "compact": made.compacts[rank],
        "groups": made.groups[rank],
        "map": mapping,
        "gathered": made.gathered,
        "in sequence order": made.gathered[used],
        "gradient": gradient.to(layer.x.dtype),
    }


def one_case(member: Member, upstream: ContextParallel, case: Case) -> dict[str, Any]:
    """Run two layers of a case on this rank, in its group of that size."""
    probe, torch, device = member.probe, member.torch, member.device
    group = member.groups[case.cp_size]
    batch = batch_of(probe, torch, device, case)
    made = [
        layer_of(probe, torch, device, case=case, batch=batch, number=number, group=group.number)
        for number in range(LAYERS)
    ]
    gathers = list(upstream.gathers.items())
    results: list[dict[str, Any]] = []
    with poisoned_memory(torch):
        for number, layer in enumerate(made):
            how, gather = gathers[number % len(gathers)]
            results.append(
                _forward(
                    member, upstream, case=case, batch=batch, group=group, layer=layer, how=how,
                    gather=gather,
                )
            )  # fmt: skip
        for layer, result in reversed(list(zip(made, results, strict=True))):
            _backward(member, case, group=group, layer=layer, result=result)
    member.step(case.name, "compare")
    found = [
        difference(
            torch,
            result,
            right_results(probe, torch, case=case, batch=batch, layer=layer, rank=group.rank),
        )
        for layer, result in zip(made, results, strict=True)
    ]
    return {
        "elements": sum(one.elements for one in found),
        "mismatches": sum(one.mismatches for one in found),
        "detail": "; ".join(
            f"layer {number}: {one.detail}" for number, one in enumerate(found) if one.detail
        ),
        "gathers": len(gathers),
    }


def _forward(
    member: Member,
    upstream: ContextParallel,
    *,
    case: Case,
    batch: Any,
    group: Group,
    layer: Layer,
    how: str,
    gather: Any,
) -> dict[str, Any]:
    """The way Megatron Core's attention calls it, but for the compressor between."""
    from probes.references import one_rank

    probe, torch = member.probe, member.torch
    model = layouts.MODELS[probe.parameters["model"]]
    first = group.rank * batch.rows
    x = layer.x[first : first + batch.rows].clone().requires_grad_()
    cu_seqlens = batch.cu_seqlens.int()
    cu_compressed = compressed_sums(torch, cu_seqlens, case.ratio)
    member.step(case.name, "the boundary exchange, forward")
    with probe.tested("call", "exchange_cp_boundary_hidden"):
        boundary = upstream.exchange(x, case.ratio, model.window, group.handle)
        member.wait()
    member.step(case.name, "the compressor's input")
    with probe.tested("call", "prepare_cp_compressor_input"):
        compact, groups, mapping = upstream.prepare(
            x, boundary, cu_seqlens, cu_compressed, first, group.size, case.ratio
        )
        member.wait()
    local = one_rank.compressed(compact, case.ratio)
    member.step(case.name, f"{how}, forward")
    with probe.tested("call", how):
        gathered = gather(local, group.handle)()
        member.wait()
    return {
        "x": x,
        "boundary": boundary,
        "compact": compact,
        "groups": groups,
        "map": mapping,
        "gathered": gathered,
        "in sequence order": gathered[mapping[: int(cu_compressed[-1])].long()],
    }


def _backward(
    member: Member, case: Case, *, group: Group, layer: Layer, result: dict[str, Any]
) -> None:
    """Put the gradient of the rank's rows into the result."""
    from probes.references import one_rank

    rank, rows = group.rank, len(result["x"])
    arriving = layer.arriving
    member.step(case.name, "backward")
    outputs = [result["x"], result["boundary"], result["gathered"]]
    gradients = [
        arriving.own[rank * rows : (rank + 1) * rows],
        arriving.boundaries[rank],
        arriving.gathered[rank],
    ]
    with member.probe.tested("call", "backward of the gather and the exchange"):
        result["gradient"] = one_rank.pull_back(outputs, gradients, result["x"])
        member.wait()


def compressed_sums(torch: Any, cu_seqlens: Any, ratio: int) -> Any:
    """(n + 1,) int32: prefix sums of the sequences' numbers of whole groups."""
    counts = torch.div(cu_seqlens[1:] - cu_seqlens[:-1], ratio, rounding_mode="floor")
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
