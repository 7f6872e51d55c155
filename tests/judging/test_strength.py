"""Strength: the numbers readers and the planner rely on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.judging.strength import (
    bounds,
    clean_runs_to_exclude,
    percent,
    strength,
    when_to_stop,
)


@pytest.mark.parametrize(
    ("runs", "shown"),
    [(1, "95 %"), (3, "63 %"), (10, "26 %"), (29, "10 %"), (59, "5 %"), (299, "1 %")],
)
def test_clean_runs_in_words(runs: int, shown: str) -> None:
    found = strength(runs, 0)

    assert found is not None
    assert (
        f"0 of {runs} failed: failure rate below {shown} at 95 % confidence"
        == found.text.removesuffix(" (weak)")
    )


@pytest.mark.parametrize(("runs", "weak"), [(1, True), (28, True), (29, False), (299, False)])
def test_weak_until_one_in_ten_is_excluded(runs: int, weak: bool) -> None:
    found = strength(runs, 0)

    assert found is not None
    assert weak == found.weak
    assert weak == found.text.endswith("(weak)")


@pytest.mark.parametrize(("rate", "runs"), [(0.5, 5), (0.1, 29), (0.05, 59), (0.01, 299)])
def test_clean_runs_to_exclude(rate: float, runs: int) -> None:
    assert runs == clean_runs_to_exclude(rate)
    assert bounds(runs, 0)[1] <= rate < bounds(runs - 1, 0)[1]


# Reference values: scipy.stats.binomtest(k, n).proportion_ci(method="exact").
@pytest.mark.parametrize(
    ("failed", "runs", "lower", "upper"),
    [
        (1, 29, 0.0008726469, 0.1776442955),
        (2, 10, 0.0252107263, 0.5560954623),
        (5, 10, 0.1870860284, 0.8129139716),
        (9, 10, 0.5549838830, 0.9974714215),
        (3, 1000, 0.0006190999, 0.0087420232),
    ],
)
def test_bounds_with_failures_are_clopper_pearson(
    failed: int, runs: int, lower: float, upper: float
) -> None:
    found = bounds(runs, failed)

    assert math.isclose(lower, found[0], abs_tol=1e-9)
    assert math.isclose(upper, found[1], abs_tol=1e-9)


def test_words_with_failures() -> None:
    some, every = strength(29, 1), strength(3, 3)

    assert some is not None
    assert every is not None
    assert some.text == "1 of 29 failed: failure rate between 0.09 % and 18 % at 95 % confidence"
    assert every.text == "3 of 3 failed: failure rate above 37 % at 95 % confidence"


def test_nothing_counted_has_no_strength() -> None:
    assert strength(0, 0) is None


@pytest.mark.parametrize(("runs", "failed"), [(0, 1), (3, 4), (3, -1)])
def test_impossible_counts_are_refused(runs: int, failed: int) -> None:
    with pytest.raises(ValueError, match="can't have failed"):
        strength(runs, failed)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 2.0])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="lies between 0 and 1"):
        clean_runs_to_exclude(rate)


@pytest.mark.parametrize(
    ("rate", "shown"),
    [(0, "0 %"), (0.0999, "10 %"), (0.0099, "1 %"), (0.003, "0.3 %"), (1, "100 %")],
)
def test_percent(rate: float, shown: str) -> None:
    assert shown == percent(rate)


@given(st.integers(1, 400), st.data())
def test_bounds_hold_the_observed_rate_and_tighten(runs: int, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, runs))
    lower, upper = bounds(runs, failed)
    narrower = bounds(runs * 2, failed * 2)

    assert 0 <= lower <= failed / runs <= upper <= 1
    assert narrower[1] - narrower[0] < upper - lower


@given(st.floats(1e-5, 0.999))
def test_clean_runs_to_exclude_is_the_least_number(rate: float) -> None:
    runs = clean_runs_to_exclude(rate)

    assert bounds(runs, 0)[1] <= rate * (1 + 1e-9)
    assert runs == 1 or bounds(runs - 1, 0)[1] > rate * (1 - 1e-9)


@pytest.mark.parametrize(
    ("counts", "decided", "more", "says"),
    [
        ((0, 0, 0), False, 29, "29 more clean runs would exclude failure rates above 10 %"),
        ((28, 0, 0), False, 1, "1 more clean run would exclude"),
        ((29, 0, 0), True, 0, "failure rates above 10 % are excluded"),
        ((300, 1, 1), True, 0, "it fails at times"),
        ((3, 3, 1), False, 1, "a run on a second machine would tell"),
        ((3, 3, 2), True, 0, "on more than one machine"),
    ],
)
def test_when_to_stop(counts: tuple[int, int, int], decided: bool, more: int, says: str) -> None:
    found = when_to_stop(*counts)

    assert (found.decided, found.more_runs) == (decided, more)
    assert says in found.text


@given(st.integers(0, 60))
def test_the_runs_it_asks_for_do_decide(runs: int) -> None:
    asked = when_to_stop(runs, 0, 0)

    assert when_to_stop(runs + asked.more_runs, 0, 0).decided
    assert asked.decided or not when_to_stop(runs + asked.more_runs - 1, 0, 0).decided


@pytest.mark.parametrize("counts", [(1, 2, 1), (3, 1, 0), (3, 1, 2), (3, -1, 0)])
def test_impossible_counts_stop_nothing(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="is impossible"):
        when_to_stop(*counts)
