"""What a context-parallel group must compute, computed by one process from the whole batch.

Plain torch on any device. Rank `r` of the group owns the rows `[r * rows, (r + 1) * rows)` and gets
the last rows of rank `r - 1`, or zeros. It compacts the groups that end in its rows, compresses
each into one row, and every rank gets the compressed rows of all.

The compressor here only copies: channel `h` of a compressed row is channel `h` of one token of the
group, another one for each channel, first and last included. So nothing is rounded on the way, and
with gradients that are small whole numbers all sums are exact in bfloat16 too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from probes.references import compaction


@dataclass(frozen=True)
class Batch:
    """One batch of one group."""

    cu_seqlens: Any
    """(n + 1,) int64"""
    cp_size: int
    rows: int
    """Of a rank."""
    boundary: int
    """Rows from the left neighbour."""
    ratio: int
    overlap: int
    capacity: int
    """Compressed rows that a rank has room for."""

    def question(self, rank: int) -> compaction.Question:
        return compaction.Question(
            self.cu_seqlens,
            rank * self.rows,
            self.rows,
            self.boundary,
            self.ratio,
            self.overlap,
            self.capacity,
        )


@dataclass(frozen=True)
class Forward:
    """What each rank has, by rank; and what every rank has."""

    boundaries: list[Any]
    """(boundary rows, …)"""
    compacts: list[Any]
    """(capacity * ratio, …)"""
    groups: list[Any]
    """(capacity,) int32"""
    gathered: Any
    """(cp_size * capacity, …)"""


@dataclass(frozen=True)
class Gradients:
    """Gradients that arrive from the rest of a model."""

    own: Any
    """(all rows, …) of the rows themselves."""
    boundaries: Any
    """(cp_size, boundary rows, …) of what each rank got from its neighbour."""
    gathered: Any
    """(cp_size, cp_size * capacity, …) of each rank's gathered rows."""


def boundary(batch: Batch, x: Any, rank: int) -> Any:
    """The rows that a rank gets."""
    first = rank * batch.rows
    if rank == 0:
        return x.new_zeros((batch.boundary, *x.shape[1:]))
    return x[first - batch.boundary : first]


def compressed(compact: Any, ratio: int) -> Any:
    """(groups * ratio, …, hidden) to (groups, …, hidden)."""
    tokens = compact.unflatten(0, (-1, ratio))
    hidden = compact.shape[-1]
    channels = torch.arange(hidden, device=compact.device)
    token = channels * (ratio - 1) // max(1, hidden - 1)
    return tokens[:, token, ..., channels].movedim(0, -1)


def forward(batch: Batch, x: Any) -> Forward:
    """Everything that goes forward, from all rows (cp_size * rows, …)."""
    boundaries, compacts, groups = [], [], []
    for rank in range(batch.cp_size):
        plan = compaction.plan(batch.question(rank))
        own = x[rank * batch.rows : (rank + 1) * batch.rows]
        boundaries.append(boundary(batch, x, rank))
        compacts.append(compaction.forward(plan, own, boundaries[-1]))
        groups.append(plan.groups)
    gathered = torch.cat([compressed(compact, batch.ratio) for compact in compacts])
    return Forward(boundaries, compacts, groups, gathered)


def gradient(batch: Batch, x: Any, arriving: Gradients) -> Any:
    """(all rows, …) float64: the gradient of all rows, summed up over the ranks."""
    whole = x.double().requires_grad_()
    made = forward(batch, whole)
    ranks = range(1, batch.cp_size)
    outputs = [whole, made.gathered, *(made.boundaries[rank] for rank in ranks)]
    gradients = [
        arriving.own.double(),
        arriving.gathered.double().sum(dim=0),
        *(arriving.boundaries[rank].double() for rank in ranks),
    ]
    return pull_back(outputs, gradients, whole)


def pull_back(outputs: list[Any], gradients: list[Any], of: Any) -> Any:
    """The gradient of a tensor, from those of its outputs, bits unchanged.

    Each output is multiplied by its gradient and summed up. To hand gradients to autograd would
    have it import torch's machinery for shapes that are symbols, in every process, for seconds.
    """
    pairs = zip(outputs, gradients, strict=True)
    loss = sum((output * gradient).sum() for output, gradient in pairs)
    return torch.autograd.grad(loss, of)[0]


def without_boundaries(arriving: Gradients) -> Gradients:
    """The same gradients, but for those of the rows that came from a neighbour."""
    return replace(arriving, boundaries=torch.zeros_like(arriving.boundaries))


class Kernels:
    """In place of the module of layout kernels where there is no GPU: the same by the reference."""

    class CompressorInputCompact:
        """Called as the autograd function of that name is."""

        @staticmethod
        def apply(  # noqa: PLR0917 - the arguments of the function it stands for
            hidden_local: Any,
            boundary_hidden: Any,
            cu_seqlens: Any,
            global_start: int,
            ratio: int,
            d_comp: int,
            c_cap: int,
        ) -> tuple[Any, Any]:
            plan = compaction.plan(
                compaction.Question(
                    cu_seqlens.long(),
                    global_start,
                    len(hidden_local),
                    len(boundary_hidden),
                    ratio,
                    d_comp,
                    c_cap,
                )
            )
            return compaction.forward(plan, hidden_local, boundary_hidden), plan.groups
