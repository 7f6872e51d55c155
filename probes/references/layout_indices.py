"""What the attention indices of a rank must be, from the positions alone.

Plain torch on any device. Written from the meaning of the indices: a row attends to the last
`window` rows of its own sequence up to itself, and to compressed groups of its own sequence. Its
keys lie in one buffer: first the rows that came from the left neighbour, then the rank's own, then
the gathered compressed rows of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

PACKED, ALL_VISIBLE, INDEXER_LOSS = 0, 1, 2
"""Modes: chosen groups after the window; all visible groups after the window; chosen groups first,
nothing packed."""


@dataclass(frozen=True)
class Question:
    """One rank of one layout. Tensors are int64 of one device; `n` sequences."""

    cu_seqlens: Any
    """(n + 1,)"""
    first_row: int
    rows: int
    boundary: int
    """Rows from the left neighbour at the head of the buffer."""
    window: int
    ratio: int
    """0 where there is no compression."""
    width: int
    """Compressed columns."""
    mode: int
    chosen: Any | None = None
    """(rows, width) groups within each row's sequence, in modes 0 and 2; any number that is no
    group of the sequence stands for nothing."""
    cu_compressed: Any | None = None
    """(n + 1,)"""
    seq_to_rank_row: Any | None = None


@dataclass(frozen=True)
class Answer:
    """Everything a caller may read; int32."""

    indices: Any
    """(rows, window + width) rows of the buffer, -1 where there is none."""
    lengths: Any | None
    """(rows,), None in mode 2."""
    rank_major: Any | None
    """(rows, width) rows of the gathered buffer, in mode 2 only."""


def attention_indices(question: Question) -> Answer:
    """The one right answer, of which every element is defined.

    A row that belongs to no sequence gets index 0 and length 1 in modes 0 and 1, so that no row
    is empty; in mode 2 it gets -1 everywhere.
    """
    device = question.cu_seqlens.device
    rows = question.first_row + torch.arange(question.rows, device=device)
    starts, ends = question.cu_seqlens[:-1], question.cu_seqlens[1:]
    # The first sequence that ends after the row. Empty sequences end where they start, so none.
    sequence = torch.searchsorted(ends.contiguous(), rows, right=True)
    inside = sequence < len(ends)
    sequence = sequence.clamp_max(len(ends) - 1)
    start = starts[sequence]
    inside = inside & (rows >= start)

    window = _window(question, rows, start, inside)
    compressed, groups = _groups(question, rows - start, sequence, inside)
    base = question.boundary + question.rows
    lowered = torch.where(groups >= 0, groups + base, -1)
    if question.mode == INDEXER_LOSS:
        indices = torch.cat((lowered, window), dim=1)
        return Answer(indices.int(), None, groups.int())
    indices = torch.cat((window, lowered), dim=1)
    listed = torch.cat((window >= 0, compressed), dim=1)
    # Only places that are listed count; a stable sort moves them to the front in their order.
    order = torch.argsort((~listed).to(torch.uint8), dim=1, stable=True)
    indices = torch.where(listed, indices, -1).gather(1, order)
    lengths = listed.sum(dim=1)
    if indices.shape[1]:
        indices[:, 0] = torch.where(inside, indices[:, 0], 0)
        lengths = torch.where(inside, lengths, 1)
    return Answer(indices.int(), lengths.int(), None)


def _window(question: Question, rows: Any, start: Any, inside: Any) -> Any:
    """(rows, window) rows of the buffer: the window's rows in order from the left, then -1."""
    first = torch.maximum(rows - question.window + 1, start)
    position = first[:, None] + torch.arange(question.window, device=rows.device)
    # Rows left of the rank's own lie at the head of the buffer, the nearest of them last.
    lowered = position - question.first_row + question.boundary
    return torch.where(inside[:, None] & (position <= rows[:, None]), lowered, -1)


def _groups(question: Question, position: Any, sequence: Any, inside: Any) -> tuple[Any, Any]:
    """Which places of (rows, width) count, and the row of the gathered buffer of each, or -1.

    In mode 1 a visible group counts whether or not it could be found in the gathered buffer.
    """
    shape = (question.rows, question.width)
    device = position.device
    if question.ratio <= 1 or question.width == 0:
        nothing = torch.full(shape, -1, dtype=torch.int64, device=device)
        return nothing >= 0, nothing
    cu, mapping = question.cu_compressed, question.seq_to_rank_row
    if cu is None or mapping is None:
        raise ValueError("a compressed layout is needed where there are compressed columns")
    count = (cu[1:] - cu[:-1])[sequence]
    if question.chosen is None:
        # A group is visible once its last token is not in the future.
        visible = torch.minimum((position + 1) // question.ratio, count)
        group = torch.arange(question.width, device=device).expand(shape)
        counts = inside[:, None] & (group < visible[:, None])
    else:
        group = question.chosen
        counts = inside[:, None] & (group >= 0) & (group < count[:, None])
    logical = cu[sequence][:, None] + group
    known = counts & (logical < len(mapping))
    row = torch.where(known, mapping[torch.where(known, logical, 0)], -1)
    if question.chosen is not None:
        counts = counts & (row >= 0)
    return counts, row
