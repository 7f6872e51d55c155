"""All the stacks that a campaign could run, as a space that is never enumerated.

A stack of the space is a row: for each axis the place of one of its values. What rules forbid is a
list of nogoods: combinations of sets of values that no row may have at once. Counting and searching
split values into classes that no nogood tells apart, and axes into groups that no nogood joins, so
a space of 10**6 rows is counted in milliseconds. In theory either can take exponential time, as any
exact method; in practice rules join few axes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod

#: For each axis the place of one of its values.
Row = tuple[int, ...]
#: (axis, set of its values as bits), in order of axes: forbidden where a row is in every set.
Nogood = tuple[tuple[int, int], ...]

#: The two values of an optional patch.
WITHOUT, WITH = "without", "with"


@dataclass(frozen=True)
class Axis:
    """One part of a stack that varies."""

    name: str
    """A component, or the id of an optional patch."""
    values: tuple[str, ...]
    """Versions in the campaign's order; `without` and `with` of a patch."""
    patch: bool = False

    @property
    def all(self) -> int:
        """Every value, as bits."""
        return (1 << len(self.values)) - 1


def bits(places: Iterable[int]) -> int:
    """A set of places as bits of a number."""
    return sum(1 << place for place in set(places))


def places(mask: int) -> list[int]:
    """The places whose bits are set, ascending."""
    return [place for place in range(mask.bit_length()) if mask >> place & 1]


@dataclass(frozen=True)
class Space:
    """Axes and what may not be combined."""

    axes: tuple[Axis, ...]
    nogoods: tuple[Nogood, ...] = ()

    @property
    def size(self) -> int:
        """How many rows there are, forbidden ones included."""
        return prod(len(axis.values) for axis in self.axes)

    @cached_property
    def allowed(self) -> int:
        """How many rows no nogood forbids."""
        return self.count({})

    def allows(self, row: Row) -> bool:
        """Whether no nogood forbids a row."""
        return not any(self._broken(nogood, row) for nogood in self.nogoods)

    def count(self, chosen: Mapping[int, int]) -> int:
        """How many allowed rows have the chosen values (axis to place)."""
        domains = [axis.all for axis in self.axes]
        for axis, place in chosen.items():
            domains[axis] = 1 << place
        return self._counter.count(tuple(domains), self.nogoods)

    def possible(self, chosen: Mapping[int, int]) -> bool:
        """Whether some allowed row has the chosen values."""
        if any(all(a in chosen and m >> chosen[a] & 1 for a, m in n) for n in self.nogoods):
            return False
        return self.count(chosen) > 0

    def all_tuples(self, strength: int) -> list[tuple[tuple[int, int], ...]]:
        """Every combination of values of `strength` different axes, possible or not."""
        return [
            tuple(zip(axes, values, strict=True))
            for axes in combinations(range(len(self.axes)), strength)
            for values in product(*(range(len(self.axes[axis].values)) for axis in axes))
        ]

    def tuples(self, strength: int) -> list[tuple[tuple[int, int], ...]]:
        """Every combination of values of `strength` different axes that some allowed row has."""
        return [found for found in self.all_tuples(strength) if self.possible(dict(found))]

    def nearest(self, to: Row, chosen: Mapping[int, int]) -> Row | None:
        """The allowed row with the chosen values that differs least from another row.

        Fewest axes first, then the least distance along them, then the order of values. None where
        no allowed row has the chosen values.
        """
        if not self.possible(chosen):
            return None
        start = tuple(chosen.get(axis, place) for axis, place in enumerate(to))
        # Uniform-cost search: a broken nogood is left only by moving one of its axes.
        heap: list[tuple[int, int, Row, frozenset[int]]] = [(0, 0, start, frozenset(chosen))]
        known: set[tuple[Row, frozenset[int]]] = set()
        while heap:
            moves, distance, row, held = heapq.heappop(heap)
            if (row, held) in known:
                continue
            known.add((row, held))
            broken = next((n for n in self.nogoods if self._broken(n, row)), None)
            if broken is None:
                return row
            for axis, mask in broken:
                if axis in held:
                    continue
                for place in places(self.axes[axis].all & ~mask):
                    moved = (*row[:axis], place, *row[axis + 1 :])
                    far = distance + abs(place - to[axis])
                    heapq.heappush(heap, (moves + 1, far, moved, held | {axis}))
        return None

    @cached_property
    def _counter(self) -> _Counter:
        return _Counter()

    @staticmethod
    def _broken(nogood: Nogood, row: Row) -> bool:
        return all(mask >> row[axis] & 1 for axis, mask in nogood)


def tuples_of(row: Row, strength: int) -> list[tuple[tuple[int, int], ...]]:
    """Every combination of `strength` values of a row, each with its axis."""
    return list(combinations(enumerate(row), strength))


class _Counter:
    """Counts rows; remembers what it counted."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[tuple[int, int], ...], frozenset[Nogood]], int] = {}

    def count(self, domains: tuple[int, ...], nogoods: Iterable[Nogood]) -> int:
        left = list(domains)
        rules = _simplified(left, nogoods)
        if rules is None:
            return 0
        total = 1
        joined = {axis for rule in rules for axis, _ in rule}
        for axis, domain in enumerate(left):
            if axis not in joined:
                total *= domain.bit_count()
        for group in _groups(rules):
            axes = sorted({axis for rule in group for axis, _ in rule})
            total *= self._group({axis: left[axis] for axis in axes}, group)
            if not total:
                return 0
        return total

    def _group(self, domains: dict[int, int], rules: list[Nogood]) -> int:
        key = (tuple(sorted(domains.items())), frozenset(rules))
        if key not in self._known:
            # The axis that most rules name leaves the least behind.
            axis = max(domains, key=lambda a: (sum(a in dict(rule) for rule in rules), -a))
            found = 0
            for values in _classes(domains[axis], [dict(rule).get(axis, 0) for rule in rules]):
                lone = [0] * (max(domains) + 1)
                for other, domain in domains.items():
                    lone[other] = domain
                lone[axis] = values
                # Axes outside the group stand for one value each.
                filled = tuple(domain or 1 for domain in lone)
                found += self.count(filled, rules)
            self._known[key] = found
        return self._known[key]


def _simplified(domains: list[int], nogoods: Iterable[Nogood]) -> list[Nogood] | None:
    """What the nogoods still say within the domains, which are narrowed; None: nothing is left."""
    rules = list(nogoods)
    narrowed = True
    while narrowed:
        narrowed = False
        kept: dict[Nogood, None] = {}
        for rule in rules:
            open_: list[tuple[int, int]] = []
            for axis, mask in rule:
                inside = domains[axis] & mask
                if not inside:
                    break
                if inside != domains[axis]:
                    open_.append((axis, inside))
            else:
                if not open_:
                    return None
                if len(open_) == 1:
                    axis, inside = open_[0]
                    domains[axis] &= ~inside
                    narrowed = True
                else:
                    kept[tuple(open_)] = None
        rules = list(kept)
    return rules


def _groups(rules: Sequence[Nogood]) -> list[list[Nogood]]:
    """Rules that share axes, directly or through others, together."""
    groups: list[tuple[set[int], list[Nogood]]] = []
    for rule in rules:
        axes = {axis for axis, _ in rule}
        members = [rule]
        apart = []
        for other, listed in groups:
            if other & axes:
                axes |= other
                members += listed
            else:
                apart.append((other, listed))
        groups = [*apart, (axes, members)]
    return [members for _, members in groups]


def _classes(domain: int, masks: Iterable[int]) -> list[int]:
    """The domain split into sets of values that no mask tells apart."""
    classes = [domain]
    for mask in masks:
        classes = [part for old in classes for part in (old & mask, old & ~mask) if part]
    return classes
