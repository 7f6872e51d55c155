"""Few stacks that show every possible pair, or triple, of versions together at least once.

The search is covertable's; this is the one place that knows it. Nothing it says is taken on trust:
rows that the rules forbid are dropped, and what its rows do not cover is added by a search of our
own, so a defect there can make a plan longer and never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from covertable import make

from matrix.planning.space import Row, Space, places, tuples_of

_Tuple = tuple[tuple[int, int], ...]


def covering_rows(
    space: Space, strength: int, seeds: Sequence[Row] = (), prefer: Row | None = None
) -> list[Row]:
    """Rows that together have every combination of `strength` values that is possible.

    Args:
        space: the axes and what may not be combined.
        strength: 2 for pairs, 3 for triples; no more than there are axes.
        seeds: rows that are there already; they come first, and what they cover is not covered
            again. Forbidden ones are left out.
        prefer: values to take where any would do; the first of each axis without it.

    Returns:
        Allowed rows, each once. The same arguments give the same rows in the same order.
    """
    first = list(dict.fromkeys(row for row in seeds if space.allows(row)))
    wanted = dict.fromkeys(space.tuples(strength))
    for row in first:
        _cross_out(wanted, row, strength)
    searched = _searched(space, strength, first) if wanted else []
    found = [row for row in searched if _cross_out(wanted, row, strength)]
    found += _completed(space, wanted, prefer or tuple(0 for _ in space.axes))
    return [*first, *found]


def _searched(space: Space, strength: int, seeds: Sequence[Row]) -> list[Row]:
    """The library's rows that the rules allow."""
    # Axes go by number: in a name the library takes a dot for a path.
    factors = [list(range(len(axis.values))) for axis in space.axes]
    constraints = [
        {
            "operator": "or",
            "conditions": [
                {"operator": "in", "left": axis, "values": places(space.axes[axis].all & ~mask)}
                for axis, mask in nogood
            ],
        }
        for nogood in space.nogoods
    ]
    rows = make(
        factors, strength=strength, constraints=constraints, presets=[list(row) for row in seeds]
    )
    return [row for row in map(tuple, rows) if row not in seeds and space.allows(row)]


def _completed(space: Space, wanted: Iterable[_Tuple], prefer: Row) -> list[Row]:
    """Rows for what is wanted still: as many of the wanted tuples in each as go together."""
    left = dict.fromkeys(wanted)
    rows = []
    while left:
        chosen: dict[int, int] = {}
        for values in left:
            joined = {**chosen, **dict(values)}
            agrees = all(joined[axis] == place for axis, place in chosen.items())
            if agrees and space.possible(joined):
                chosen = joined
        row = space.nearest(prefer, chosen)
        if row is None:
            raise AssertionError("a possible tuple is in no row")
        _cross_out(left, row, len(next(iter(left))))
        rows.append(row)
    return rows


def _cross_out(wanted: dict[_Tuple, None], row: Row, strength: int) -> bool:
    """Strike what a row covers; whether there was anything."""
    before = len(wanted)
    for found in tuples_of(row, strength):
        wanted.pop(found, None)
    return len(wanted) < before
