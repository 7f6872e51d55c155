"""What the indexer's scores must be, which groups they may name, and the largest of them.

Plain torch on any device. A row at place `p` of its sequence sees the sequence's first
`(p + 1) // ratio` groups, those that are complete, and gives each the score

    sum over heads h of  max(0, <q_h, k>) * w_h

A row that belongs to no sequence sees nothing. What is not seen has the score minus infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_CHUNK_ELEMENTS = 1 << 27


@dataclass(frozen=True)
class Question:
    """One rank of one layout; `n` sequences."""

    cu_seqlens: tuple[int, ...]
    """`n + 1` numbers."""
    cu_groups: tuple[int, ...]
    """`n + 1` numbers."""
    first_row: int
    rows: int
    ratio: int
    columns: int
    """As many as the longest sequence has groups."""


@dataclass(frozen=True)
class Scores:
    """Right scores and what their errors are measured with; (rows, columns) float32."""

    values: Any
    scale: Any
    """Sum over heads of |w| |q| |k|, with Euclidean norms: no partial sum on the way to a score can
    be larger. Zero where nothing is seen."""


def limits(question: Question, device: Any) -> Any:
    """(rows,) int64: how many of its sequence's groups each row sees."""
    found = torch.zeros(question.rows, dtype=torch.int64, device=device)
    for sequence, local, place in _segments(question):
        groups = question.cu_groups[sequence + 1] - question.cu_groups[sequence]
        places = place + torch.arange(len(local), device=device)
        found[local.start : local.stop] = ((places + 1) // question.ratio).clamp_max(groups)
    return found


def scores(question: Question, q: Any, k: Any, w: Any, *, limit: Any | None = None) -> Scores:
    """Scores in float32 from inputs of any dtype.

    Args:
        question: which rank.
        q: (rows, heads, dim).
        k: (groups of all sequences, or more, dim), in the order of sequences.
        w: (rows, heads).
        limit: (rows,) how many groups each row sees, instead of the right number.
    """
    limit = limits(question, q.device) if limit is None else limit
    shape = (question.rows, question.columns)
    values = torch.full(shape, float("-inf"), dtype=torch.float32, device=q.device)
    scale = torch.zeros(shape, dtype=torch.float32, device=q.device)
    for sequence, local, _ in _segments(question):
        keys = k[question.cu_groups[sequence] : question.cu_groups[sequence + 1]].float()
        if not len(keys):
            continue
        step = max(1, _CHUNK_ELEMENTS // (q.shape[1] * len(keys)))
        for start in range(local.start, local.stop, step):
            rows = slice(start, min(start + step, local.stop))
            queries, weights = q[rows].float(), w[rows].float()
            dots = torch.einsum("rhd,kd->rhk", queries, keys).relu_()
            seen = torch.arange(len(keys), device=q.device) < limit[rows, None]
            made = torch.einsum("rhk,rh->rk", dots, weights)
            values[rows, : len(keys)] = made.masked_fill(~seen, float("-inf"))
            size = (weights.abs() * queries.norm(dim=2)).sum(dim=1)
            scale[rows, : len(keys)] = size[:, None] * keys.norm(dim=1) * seen
    return Scores(values, scale)


def _segments(question: Question) -> list[tuple[int, range, int]]:
    """For each sequence with rows here: its number, the local rows, the first one's place in it."""
    found = []
    last = question.first_row + question.rows
    for sequence, start in enumerate(question.cu_seqlens[:-1]):
        first = max(start, question.first_row)
        stop = min(question.cu_seqlens[sequence + 1], last)
        if first < stop:
            local = range(first - question.first_row, stop - question.first_row)
            found.append((sequence, local, first - start))
    return found


@dataclass(frozen=True)
class Selection:
    """Which of a row's scores are to be chosen."""

    wanted: Any
    """(rows, columns) bool: the finite scores that must be chosen."""
    spare: Any
    """(rows,) int64: places left over, since a row has fewer finite scores than places."""


def selection(values: Any, lengths: Any, count: int) -> Selection:
    """The largest `count` finite scores of each row's first `length` ones; scores are distinct.

    Args:
        values: (rows, columns).
        lengths: (rows,) integers.
        count: of places.
    """
    inside = torch.arange(values.shape[1], device=values.device) < lengths[:, None]
    finite = inside & values.isfinite()
    masked = values.masked_fill(~finite, float("-inf"))
    chosen = masked.topk(min(count, values.shape[1]), dim=1)
    wanted = torch.zeros_like(finite)
    wanted.scatter_(1, chosen.indices, chosen.values.isfinite())
    return Selection(wanted, count - wanted.sum(dim=1))
