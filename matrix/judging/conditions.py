"""Conditions over versions, and the smallest ones that separate one set of stacks from another.

A condition is one or two clauses on different axes, all of which must hold. An axis is a component
or a patch. On an ordered axis a clause is an interval; on one without an order (a part that some
stacks lack, revisions of unknown date, a patch) it is one value, or all but one.

Only clauses that hold for every failing stack can be part of a condition that covers them all, and
on an ordered axis the tightest such interval is the one between the lowest and the highest failing
version. So it is enough to try those bounds, each of which may be left away.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from matrix.components import NONE, Component

#: Axis -> value, of one stack.
Point = Mapping[str, str]


@dataclass(frozen=True)
class Axis:
    """What a clause can speak of."""

    name: str
    order: tuple[str, ...] = ()
    """All known values from low to high; empty where there is no order."""
    dates: Mapping[str, dt.date] = field(default_factory=dict, compare=False)
    """Of revisions, which are ordered by them."""

    def place(self, value: str) -> int:
        """Where a value stands in the order."""
        return self.order.index(value)


@dataclass(frozen=True)
class Clause:
    """A set of values on one axis: an interval, one value, or all but one."""

    axis: Axis
    at_least: str | None = None
    at_most: str | None = None
    only: str | None = None
    all_but: str | None = None

    @property
    def bounds(self) -> int:
        """How many values it names: what makes one clause smaller than another."""
        named = (self.at_least, self.at_most, self.only, self.all_but)
        return sum(value is not None for value in named)

    def holds(self, point: Point) -> bool:
        """Whether a stack fulfils it."""
        value = point.get(self.axis.name, NONE)
        if self.only is not None:
            return value == self.only
        if self.all_but is not None:
            return value != self.all_but
        place = self.axis.place(value)
        return (self.at_least is None or place >= self.axis.place(self.at_least)) and (
            self.at_most is None or place <= self.axis.place(self.at_most)
        )


#: Clauses on different axes, all of which must hold.
Condition = tuple[Clause, ...]


def holds(condition: Condition, point: Point) -> bool:
    """Whether a stack fulfils every clause."""
    return all(clause.holds(point) for clause in condition)


def axes_of(points: Iterable[Point], components: Mapping[str, Component]) -> list[Axis]:
    """The axes on which stacks differ: components in the catalogue's order, then the rest."""
    points = list(points)
    names = [*components, *sorted({name for point in points for name in point} - {*components})]
    axes = []
    for name in names:
        values = {point.get(name, NONE) for point in points}
        if len(values) > 1:
            axes.append(_axis(name, values, components.get(name)))
    return axes


def _axis(name: str, values: set[str], component: Component | None) -> Axis:
    known = component.versions if component is not None else []
    try:
        numbers = {value: Pep440(value) for value in values}
    except InvalidVersion:
        dates = {version.version: version.date for version in known if version.date}
        if component is not None and all(value in dates for value in values):
            revisions = [v for v in dates if component.is_revision(v) or v in values]
            return Axis(name, tuple(sorted(revisions, key=lambda v: (dates[v], v))), dates)
        return Axis(name)
    if component is not None:
        for version in known:
            if not component.is_revision(version.version):
                numbers.setdefault(version.version, Pep440(version.version))
    return Axis(name, tuple(sorted(numbers, key=lambda value: (numbers[value], value))))


def smallest(
    inside: Sequence[Point],
    outside: Sequence[Point],
    axes: Sequence[Axis],
    separating: Callable[[Sequence[Condition]], list[Condition]] | None = None,
) -> list[Condition]:
    """The smallest conditions that hold for all of `inside` and for none of `outside`.

    Fewest clauses first, then fewest bounds. All of that size are returned, in the order of the
    axes; none where one or two clauses are not enough, or a side is empty.

    Args:
        inside: points for which a condition must hold.
        outside: the others.
        axes: what a condition may speak of.
        separating: chooses instead, of conditions that hold for all of `inside`, those that do.
    """
    if not inside or not outside:
        return []
    clauses = {axis.name: list(_covering(axis, inside, outside)) for axis in axes}
    for count in (1, 2):
        conditions = [
            condition
            for chosen in combinations(axes, count)
            for condition in product(*(clauses[axis.name] for axis in chosen))
        ]
        if separating is not None:
            found = separating(conditions)
        else:
            found = [c for c in conditions if not any(holds(c, point) for point in outside)]
        if found:
            least = min(_size(condition) for condition in found)
            return [condition for condition in found if _size(condition) == least]
    return []


def _size(condition: Condition) -> int:
    return sum(clause.bounds for clause in condition)


def _covering(axis: Axis, inside: Sequence[Point], outside: Sequence[Point]) -> Iterator[Clause]:
    """Clauses that hold for all of `inside`, each as tight as its form allows."""
    values = {point.get(axis.name, NONE) for point in inside}
    if axis.order:
        low, high = min(values, key=axis.place), max(values, key=axis.place)
        yield Clause(axis, at_most=high)
        yield Clause(axis, at_least=low)
        yield Clause(axis, at_least=low, at_most=high)
        return
    others = {point.get(axis.name, NONE) for point in outside} - values
    if len(values) == 1:
        yield Clause(axis, only=next(iter(values)))
        if len(others) == 1:
            return  # Of two values all but the other is the same.
    for value in sorted(others):
        yield Clause(axis, all_but=value)


def nearest(
    inside: Sequence[Point], outside: Sequence[Point], axes: Sequence[Axis]
) -> Condition | None:
    """The single clause with the fewest mistakes, where none separates the two sets.

    None where no clause does better than saying the same of every stack.
    """
    best: tuple[int, int, int] | None = None
    chosen: Condition | None = None
    for place, axis in enumerate(axes):
        for clause in _every(axis, [*inside, *outside]):
            wrong = sum(not clause.holds(point) for point in inside)
            wrong += sum(clause.holds(point) for point in outside)
            key = (wrong, clause.bounds, place)
            if best is None or key < best:
                best, chosen = key, (clause,)
    if best is None or best[0] >= min(len(inside), len(outside)):
        return None
    return chosen


def _every(axis: Axis, points: Sequence[Point]) -> Iterator[Clause]:
    values = {point.get(axis.name, NONE) for point in points}
    if not axis.order:
        for value in sorted(values):
            yield Clause(axis, only=value)
            yield Clause(axis, all_but=value)
        return
    ordered = sorted(values, key=axis.place)
    for value in ordered:
        yield Clause(axis, at_most=value)
        yield Clause(axis, at_least=value)
    for low, high in product(ordered, repeat=2):
        if axis.place(low) <= axis.place(high):
            yield Clause(axis, at_least=low, at_most=high)
