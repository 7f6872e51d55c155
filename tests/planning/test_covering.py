"""Covering rows cover: checked by writing everything out, never by asking the library."""

from __future__ import annotations

import resource
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.planning import covering
from matrix.planning.covering import covering_rows
from matrix.planning.space import Axis, Row, Space, bits, tuples_of
from tests.planning.test_space import rows, spaces


@settings(max_examples=150, deadline=None)
@given(spaces(nogoods=5), st.sampled_from([2, 3]), st.data())
def test_all_that_is_possible_is_covered_and_nothing_else(
    space: Space, strength: int, data: st.DataObject
) -> None:
    strength = min(strength, len(space.axes))
    seeds = data.draw(st.lists(st.sampled_from(rows(space)), max_size=3))

    found = covering_rows(space, strength, seeds)

    assert all(space.allows(row) for row in found)
    assert len(set(found)) == len(found)
    possible = {t for row in rows(space) if space.allows(row) for t in tuples_of(row, strength)}
    assert {t for row in found for t in tuples_of(row, strength)} == possible | {
        t for row in seeds if space.allows(row) for t in tuples_of(row, strength)
    }
    kept = [row for row in dict.fromkeys(seeds) if space.allows(row)]
    assert found[: len(kept)] == kept
    assert found == covering_rows(space, strength, seeds)
    # Each row is there for something that no earlier one shows.
    for place, row in enumerate(found[len(kept) :], start=len(kept)):
        earlier = {t for other in found[:place] for t in tuples_of(other, strength)}
        assert set(tuples_of(row, strength)) - earlier


@settings(max_examples=80, deadline=None)
@given(spaces(nogoods=5), st.data())
def test_a_library_that_is_wrong_is_put_right(space: Space, data: st.DataObject) -> None:
    given_rows = data.draw(st.lists(st.sampled_from(rows(space)), max_size=5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(covering, "make", lambda *_, **__: [list(row) for row in given_rows])
        found = covering_rows(space, 2)

    assert all(space.allows(row) for row in found)
    possible = {t for row in rows(space) if space.allows(row) for t in tuples_of(row, 2)}
    assert {t for row in found for t in tuples_of(row, 2)} == possible


def wide() -> Space:
    """As many stacks as the widest campaign: 9 x 8 x 4 x 4 x 3 versions and 8 optional patches."""
    sizes = [9, 8, 4, 4, 3, *[2] * 8]
    axes = tuple(Axis(f"a{n}", tuple(map(str, range(size)))) for n, size in enumerate(sizes))
    rules = [
        ((0, bits(range(5, 9))), (1, bits(range(3)))),
        ((0, bits([8])), (1, bits(range(6)))),
        ((0, bits([0, 1])), (1, bits(range(3, 8)))),
        *(((4, bits([patch % 3])), (5 + patch, 0b10)) for patch in range(8)),
        ((5, 0b01), (6, 0b10)),
        ((7, 0b10), (8, 0b10)),
    ]
    return Space(axes, tuple(rules))


def test_many_stacks_are_planned_in_little_time_and_memory() -> None:
    space = wide()
    assert space.size == 884_736
    started = time.process_time()

    found = covering_rows(space, 2)

    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 500 * 1024
    assert {t for row in found for t in tuples_of(row, 2)} == set(space.tuples(2))
    # 9 x 8 pairs of the two widest axes, less those that are forbidden, are the least there can be.
    assert len(found) <= 72


def test_stacks_with_evidence_are_not_planned_again() -> None:
    space = wide()
    before = covering_rows(space, 2)
    seeds: list[Row] = before[:20]

    after = covering_rows(space, 2, seeds)

    assert after[:20] == seeds
    assert len(after) <= len(before) + 8
    assert covering_rows(space, 2, before) == before
