"""A space of stacks says the same as writing all of its rows out."""

from __future__ import annotations

import time
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from matrix.planning.space import Axis, Nogood, Row, Space, bits, places, tuples_of


@st.composite
def spaces(draw: st.DrawFn, axes: int = 4, values: int = 4, nogoods: int = 6) -> Space:
    """A space small enough to be written out."""
    sizes = draw(st.lists(st.integers(1, values), min_size=2, max_size=axes))
    names = [
        Axis(f"a{n}", tuple(f"v{value}" for value in range(size))) for n, size in enumerate(sizes)
    ]
    rules: list[Nogood] = []
    for _ in range(draw(st.integers(0, nogoods))):
        over = sorted(draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=3)))
        rules.append(
            tuple(
                (a, bits(draw(st.sets(st.integers(0, sizes[a] - 1), min_size=1, max_size=3))))
                for a in over
            )
        )
    return Space(tuple(names), tuple(rules))


def rows(space: Space) -> list[Row]:
    return list(product(*(range(len(axis.values)) for axis in space.axes)))


def forbidden(space: Space, row: Row) -> bool:
    return any(all(row[a] in places(mask) for a, mask in rule) for rule in space.nogoods)


@given(spaces())
def test_counting_is_the_same_as_writing_out(space: Space) -> None:
    allowed = [row for row in rows(space) if not forbidden(space, row)]

    assert space.size == len(rows(space))
    assert space.allowed == len(allowed)
    assert [row for row in rows(space) if space.allows(row)] == allowed
    for strength in (1, 2, 3):
        assert set(space.tuples(strength)) == {
            found for row in allowed for found in tuples_of(row, strength)
        }


@given(spaces(), st.data())
def test_the_nearest_row_is_the_nearest(space: Space, data: st.DataObject) -> None:
    to = data.draw(st.sampled_from(rows(space)))
    axis = data.draw(st.integers(0, len(space.axes) - 1))
    chosen = {axis: data.draw(st.integers(0, len(space.axes[axis].values) - 1))}

    found = space.nearest(to, chosen)

    def far(row: Row) -> tuple[int, int]:
        apart = [
            abs(a - b) for n, (a, b) in enumerate(zip(row, to, strict=True)) if n not in chosen
        ]
        return sum(step > 0 for step in apart), sum(apart)

    able = [row for row in rows(space) if space.allows(row) and row[axis] == chosen[axis]]
    if found is None:
        assert not able
    else:
        assert found in able
        assert far(found) == min(map(far, able))


def test_a_million_rows_are_counted_at_once() -> None:
    axes = [Axis(f"a{n}", tuple(map(str, range(10)))) for n in range(6)]
    rules = tuple(((n, bits({1, 2, 3})), (n + 1, bits({4, 5}))) for n in range(5))
    space = Space(tuple(axes), rules)
    started = time.monotonic()

    assert space.size == 10**6
    assert space.allowed == sum(
        1 for row in product(range(10), repeat=6) if not forbidden_fast(row)
    )
    assert len(space.tuples(2)) == 15 * 100 - 5 * 6
    # Most of it is the writing out that it is compared with.
    assert time.monotonic() - started < 30


def forbidden_fast(row: tuple[int, ...]) -> bool:
    return any(1 <= a <= 3 and 4 <= b <= 5 for a, b in pairwise(row))
