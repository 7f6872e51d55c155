"""How long the rest of a campaign takes, told from what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.reporting.pace import Pace, expected_seconds, shown_seconds


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_cells_own_newest_run_tells_most_then_its_probe_elsewhere() -> None:
    measured = [("a", "p", 9.0), ("a", "p", 3.0), ("b", "p", 5.0), ("c", "p", 0.0)]

    expected = expected_seconds([("a", "p"), ("z", "p"), ("z", "never")], measured)

    assert expected == {("a", "p"): 3.0, ("z", "p"): 5.0}


def test_nothing_is_said_where_nothing_is_known() -> None:
    pace = Pace(3)

    assert pace.seconds_per_cell() is None
    assert pace.seconds_left() is None


def test_what_runs_side_by_side_ends_sooner() -> None:
    clock = Clock()
    names = [("s", str(number)) for number in range(4)]
    pace = Pace(4, dict.fromkeys(names, 10.0), clock)
    pace.began(names[0])
    pace.began(names[1])
    clock.now += 10
    pace.ended(names[0], 10.0)
    pace.ended(names[1], 10.0)

    assert pace.seconds_per_cell() == pytest.approx(5.0)
    assert pace.seconds_left() == pytest.approx(10.0)


def test_a_run_that_outlasts_its_estimate_never_counts_below_nothing() -> None:
    clock = Clock()
    pace = Pace(2, {("s", "a"): 1.0, ("s", "b"): 4.0}, clock)
    pace.began(("s", "a"))
    clock.now += 50

    assert pace.seconds_left() == pytest.approx(4.0)


def test_an_unknown_cell_counts_as_the_mean_of_those_that_ran() -> None:
    clock = Clock()
    pace = Pace(3, {}, clock)
    pace.began(("s", "a"))
    clock.now += 6
    pace.ended(("s", "a"), 6.0)

    assert pace.seconds_left() == pytest.approx(12.0)


@given(
    expected=st.dictionaries(
        st.tuples(st.just("s"), st.sampled_from("abcdef")), st.floats(0.1, 1e4)
    ),
    ended=st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0, 1e4))),
)
def test_the_time_left_is_never_negative_and_ends_at_nothing(
    expected: dict[tuple[str, str], float], ended: list[tuple[str, float]]
) -> None:
    clock = Clock()
    pace = Pace(len(ended), expected, clock)
    for probe, seconds in ended:
        pace.began(("s", probe))
        clock.now += seconds
        left = pace.seconds_left()
        assert left is None or left >= 0
        pace.ended(("s", probe), seconds)
    assert pace.seconds_left() == 0


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0.0 s"), (8.46, "8.5 s"), (99, "99 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_seconds_for_people(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
