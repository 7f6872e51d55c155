"""Compaction once more, one group at a time in plain Python, with faults to be switched on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

FAULTS = (
    "group of the neighbour lost",
    "group that ends in the next rank",
    "short group",
    "boundary reversed",
    "numbers from the rank's first",
    "unused rows left unwritten",
    "unused numbers zero",
    "gradient of the boundary lost",
    "gradient one row too far",
    "rows that nobody reads keep their gradient",
    "sequence that ended before the rank",
)


def groups_of(
    cu_seqlens: Sequence[int],
    *,
    first_row: int,
    rows: int,
    ratio: int,
    overlap: int,
    fault: str = "",
) -> list[tuple[int, int]]:
    """(number in its sequence, first global row) of every group that the rank lists, in order."""
    found = []
    last = first_row + rows
    reach = 0 if fault == "group of the neighbour lost" else overlap
    for start, end in pairwise(cu_seqlens):
        if end <= first_row and fault != "sequence that ended before the rank":
            continue
        limit = end if fault == "group that ends in the next rank" else min(end, last)
        number, at = 0, start
        while at + ratio <= limit + (1 if fault == "short group" else 0) and at < last:
            if at >= first_row - reach:
                found.append((number, at))
            number, at = number + 1, at + ratio
    if fault == "numbers from the rank's first" and found:
        found = [(number - found[0][0], at) for number, at in found]
    return found
