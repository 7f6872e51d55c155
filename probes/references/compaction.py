"""Which rows a rank's compressor reads, and where their gradients go.

Plain torch on any device. A group is `ratio` consecutive rows of one sequence, counted from the
sequence's start. A rank reads, in order of rows, every group that begins at or after its first row
less the overlap, ends in its rows, and is of a sequence that reaches into its rows. Rows left of
the rank's own are the last ones of its left neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Question:
    """One rank of one layout."""

    cu_seqlens: Any
    """(n + 1,) int64"""
    first_row: int
    rows: int
    boundary: int
    """Rows from the left neighbour."""
    ratio: int
    overlap: int
    capacity: int
    """Groups that there is room for."""


@dataclass(frozen=True)
class Plan:
    """Where each row of the compacted buffer comes from."""

    source: Any
    """(capacity * ratio,) int64: row of the buffer of boundary rows, then own rows; -1 for none."""
    groups: Any
    """(capacity,) int32: the group's number in its sequence, -1 in unused places."""


def plan(question: Question) -> Plan:
    """The one right plan.

    Raises:
        ValueError: more groups than there is room for, or rows that nobody sent.
    """
    device = question.cu_seqlens.device
    ends = question.cu_seqlens[1:].contiguous()
    last = question.first_row + question.rows
    rows = torch.arange(max(0, question.first_row - question.overlap), last, device=device)
    # The first sequence that ends after the row. Empty sequences end where they start, so none.
    sequence = torch.searchsorted(ends, rows, right=True)
    inside = sequence < len(ends)
    sequence = sequence.clamp_max(len(ends) - 1)
    place = rows - question.cu_seqlens[sequence]
    begins = inside & (place % question.ratio == 0)
    whole = rows + question.ratio <= torch.minimum(ends[sequence], ends.new_tensor(last))
    reaches = ends[sequence] > question.first_row
    chosen = (begins & whole & reaches).nonzero().squeeze(1)
    if len(chosen) > question.capacity:
        raise ValueError(f"{len(chosen)} groups, and room for {question.capacity}")
    first = rows[chosen] - question.first_row + question.boundary
    if len(first) and int(first.min()) < 0:
        raise ValueError("a group begins left of the rows that the neighbour sent")
    source = ends.new_full((question.capacity, question.ratio), -1)
    source[: len(chosen)] = first[:, None] + torch.arange(question.ratio, device=device)
    groups = ends.new_full((question.capacity,), -1)
    groups[: len(chosen)] = place[chosen] // question.ratio
    return Plan(source.flatten(), groups.int())


def forward(made: Plan, own: Any, boundary: Any) -> Any:
    """The compacted rows, bits unchanged; unused rows are zero.

    Args:
        made: the plan.
        own: (rows, …) of any dtype.
        boundary: (boundary rows, …) of the same.

    Returns:
        (capacity * ratio, …).
    """
    buffer = torch.cat((boundary, own))
    used = made.source >= 0
    out = buffer.new_zeros((len(made.source), *buffer.shape[1:]))
    out[used] = buffer[made.source[used]]
    return out


def backward(made: Plan, gradient: Any, *, rows: int, boundary: int) -> tuple[Any, Any]:
    """Gradients of the rank's own rows and of the boundary rows, bits unchanged.

    No row is read twice, so nothing is added up. Rows that nobody reads get zero.
    """
    used = made.source >= 0
    buffer = gradient.new_zeros((boundary + rows, *gradient.shape[1:]))
    buffer[made.source[used]] = gradient[used]
    return buffer[boundary:], buffer[:boundary]
