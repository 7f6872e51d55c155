"""The layout rules once more, one row and one column at a time: a second opinion in plain Python.

Written as the rules are told (which rows may a token see, where do they lie), not as the reference
computes them, and with faults that can be switched on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FAULTS = (
    "window one too wide",
    "future group",
    "group of the next sequence",
    "boundary reversed",
    "rank swapped",
    "hole kept in front",
    "padding row empty",
    "length without groups",
)


@dataclass(frozen=True)
class Row:
    """One row's answer."""

    indices: list[int]
    length: int
    rank_major: list[int]


def row_answer(
    row: int,
    *,
    lengths: Sequence[int],
    first_row: int,
    rows: int,
    boundary: int,
    window: int,
    ratio: int,
    width: int,
    mode: int,
    chosen: Sequence[int] | None,
    mapping: Sequence[int],
    fault: str = "",
) -> Row:
    """Indices of one row of a rank, `row` being counted over all ranks."""
    start, groups_before, own = 0, 0, None
    for length in lengths:
        if start <= row < start + length:
            own = (start, length)
            break
        start += length
        groups_before += length // ratio if ratio > 1 else 0
    columns = window + width
    if own is None:
        if mode == 2 or fault == "padding row empty":
            return Row([-1] * columns, 0, [-1] * width)
        return Row([0, *[-1] * (columns - 1)], 1, [])
    start, length = own

    def buffer_row(token: int) -> int:
        if token >= first_row:
            return boundary + token - first_row
        left = first_row - token
        return left - 1 if fault == "boundary reversed" else boundary - left

    reach = window + 1 if fault == "window one too wide" else window
    seen = [token for token in range(row - reach + 1, row + 1) if token >= start][-columns:]
    seen = seen[:window] if fault == "window one too wide" else seen
    near = [buffer_row(token) for token in seen]

    count = length // ratio if ratio > 1 and width else 0
    limit = count + 1 if fault == "group of the next sequence" else count

    def gathered(group: int) -> int:
        place = groups_before + group
        found = mapping[place] if place < len(mapping) else -1
        if fault == "rank swapped" and found >= 0 and len(mapping) > 1:
            return mapping[0] if found != mapping[0] else mapping[1]
        return found

    if mode == 1:
        complete = [g for g in range(limit) if start + (g + 1) * ratio - 1 <= row]
        if fault == "future group":
            complete = list(range(min(limit, len(complete) + 1)))
        far = [gathered(group) for group in complete[:width]]
    else:
        far = [gathered(g) if 0 <= g < limit else -1 for g in chosen or []]
    base = boundary + rows
    lowered = [base + place if place >= 0 else -1 for place in far]
    if mode == 2:
        lowered += [-1] * (width - len(lowered))
        near += [-1] * (window - len(near))
        return Row(lowered + near, 0, far + [-1] * (width - len(far)))
    if mode == 0 and fault != "hole kept in front":
        lowered = [place for place in lowered if place >= 0]
    listed = near + lowered
    stated = len(near) if fault == "length without groups" else len(listed)
    return Row((listed + [-1] * (columns - len(listed)))[:columns], stated, [])
