"""The nearest of several stacks: few changes, a better verdict, more runs, few releases apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from matrix.components import NONE, Component
from matrix.judging.conditions import Point, axes_of
from matrix.judging.verdicts import Verdict

#: Verdicts by rank, the best news first.
RANK: Final[dict[Verdict, int]] = {
    "supported": 0,
    "caveat": 1,
    "unknown": 2,
    "broken": 3,
    "cannot install": 4,
}


class Neighbour(NamedTuple):
    """A stack to change to."""

    stack: str
    """Its id."""
    point: Point
    """Its versions and patches."""
    verdict: Verdict
    runs: int
    """How often it showed what is wanted of it."""


def changed(own: Point, new: Point) -> list[str]:
    """Components and patches that are not the same."""
    return [name for name in {**own, **new} if own.get(name) != new.get(name)]


def nearest_of(
    own: Point,
    candidates: Iterable[Neighbour],
    components: Mapping[str, Component],
    *,
    verdict_first: bool = False,
) -> Neighbour | None:
    """The candidate that is least trouble to change to; None where there is none.

    Args:
        own: what is to be changed.
        candidates: stacks to change to.
        components: the catalogue; its releases are counted.
        verdict_first: whether a better verdict is worth any number of changes.
    """

    def trouble(one: Neighbour) -> tuple[int, ...]:
        changes, rank = len(changed(own, one.point)), RANK[one.verdict]
        return (rank, changes, -one.runs) if verdict_first else (changes, rank, -one.runs)

    candidates = list(candidates)
    least = min((trouble(one) for one in candidates), default=None)
    equal = [one for one in candidates if trouble(one) == least]
    return min(
        equal,
        key=lambda one: (_releases_apart(own, one.point, components), one.stack),
        default=None,
    )


def _releases_apart(own: Point, new: Point, components: Mapping[str, Component]) -> int:
    """Known releases from one to the other, over all components that have an order."""
    return sum(
        abs(axis.place(own.get(axis.name, NONE)) - axis.place(new.get(axis.name, NONE)))
        for axis in axes_of([own, new], components)
        if axis.order
    )
