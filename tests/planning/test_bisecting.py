"""Bisection: steady probes against a naive oracle, flaky ones against simulated faults."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.components import Component
from matrix.planning.bisect_runs import between
from matrix.planning.bisecting import (
    Answer,
    Run,
    Stuck,
    Tally,
    chance_of_a_higher_rate,
    change_probabilities,
    in_order,
    most_telling,
    next_step,
    undated,
)


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """What each version does: pass up to a change, fail from there, and some can't be tested."""
    good, bad = draw(st.integers(1, 15)), draw(st.integers(1, 15))
    inside = ["pass"] * (good - 1) + ["fail"] * (bad - 1)
    marked = draw(st.sets(st.integers(0, max(len(inside) - 1, 0))))
    return [
        "pass",
        *("unknown" if place in marked else what for place, what in enumerate(inside)),
        "fail",
    ]


def names(count: int) -> list[str]:
    return [f"v{number}" for number in range(count)]


def search(truth: list[str]) -> tuple[Answer | Stuck, int]:
    """Follow the steps to the end; the answer, and how many versions were run."""
    results: dict[str, Tally] = {}
    versions = names(len(truth))
    while True:
        step = next_step(versions, results)
        if not isinstance(step, Run):
            return step, len(results)
        for version in step.versions:
            assert version not in results, "a steady probe is asked once for each version"
            what = truth[versions.index(version)]
            results[version] = Tally(
                passed=int(what == "pass"),
                failed=int(what == "fail"),
                untestable=what == "unknown",
            )


@given(histories())
def test_a_steady_search_finds_what_running_everything_finds(truth: list[str]) -> None:
    found, runs = search(truth)

    last = max(place for place, what in enumerate(truth) if what == "pass")
    first = min(place for place, what in enumerate(truth) if what == "fail")
    versions = names(len(truth))
    assert found == Answer(versions[last], versions[first], tuple(versions[last + 1 : first]))
    # Halving, and one more run for each version that could not be tested.
    assert runs <= 2 + math.ceil(math.log2(len(truth))) + truth.count("unknown")


@given(st.lists(st.sampled_from(["pass", "fail", "unknown"]), max_size=12))
def test_whatever_the_answers_the_ends_of_the_answer_are_what_they_are_said_to_be(
    inside: list[str],
) -> None:
    truth = ["pass", *inside, "fail"]

    found, _ = search(truth)

    assert isinstance(found, Answer)
    versions = names(len(truth))
    last, first = versions.index(found.last), versions.index(found.first)
    assert (truth[last], truth[first]) == ("pass", "fail")
    assert all(what == "unknown" for what in truth[last + 1 : first])
    assert found.between == tuple(versions[last + 1 : first])


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"v0": Tally(failed=1), "v3": Tally(failed=1)}, "v0 was to be the good end, and it fails"),
        ({"v0": Tally(passed=1), "v3": Tally(passed=1)}, "v3 was to be the bad end, and it passes"),
        ({"v3": Tally(untestable=True)}, "v3 can't be tested, and it is one of the two ends"),
    ],
)
def test_ends_that_are_not_what_they_were_said_to_be(results: dict[str, Tally], words: str) -> None:
    step = next_step(names(4), results)

    assert isinstance(step, Stuck)
    assert step.why == words


def test_both_ends_come_first_and_at_once() -> None:
    step = next_step(names(9), {})

    assert isinstance(step, Run)
    assert step.versions == ("v0", "v8")
    assert next_step(names(9), {"v0": Tally(passed=1)}) == Run(("v8",), "both ends come first")


def test_a_run_that_was_made_counts_even_where_another_try_could_not_be() -> None:
    results = {"v0": Tally(passed=1, untestable=True), "v1": Tally(failed=1)}

    assert next_step(names(2), results) == Answer("v0", "v1")


@pytest.mark.parametrize("versions", [[], ["a"], ["a", "a"]])
def test_what_is_no_range(versions: list[str]) -> None:
    with pytest.raises(ValueError, match="between two versions"):
        next_step(versions, {})


def flaky_search(
    change: int,
    count: int,
    *,
    rates: tuple[float, float],
    seed: int,
    unknown: frozenset[int] = frozenset(),
) -> tuple[Answer | Stuck, int]:
    """Bisect a simulated probe that fails at one rate before a change and at another from there."""
    draws = random.Random(seed)  # noqa: S311 - a simulation
    versions = names(count)
    results: dict[str, Tally] = {}
    runs = 0
    while True:
        step = next_step(versions, results, flaky=True, confidence=0.95, most_runs=600)
        if not isinstance(step, Run):
            return step, runs
        for version in step.versions:
            place = versions.index(version)
            before = results.get(version, Tally())
            assert not before.untestable
            if place in unknown:
                results[version] = Tally(untestable=True)
                continue
            runs += 1
            failed = draws.random() < rates[place >= change]
            results[version] = Tally(before.passed + (not failed), before.failed + failed)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 0.5), (0.05, 0.6), (0.3, 0.9)])
def test_a_flaky_search_is_as_often_right_as_it_says(low: float, high: float) -> None:
    wrong, runs = 0, []
    for seed in range(40):
        count = 4 + seed % 9
        change = 1 + seed % (count - 1)
        found, spent = flaky_search(change, count, rates=(low, high), seed=seed)
        runs.append(spent)
        wrong += not (isinstance(found, Answer) and found.first == f"v{change}")

    # At 95 % two of forty are expected to be wrong; seven or more happen once in 300 times.
    assert wrong <= 6
    assert sorted(runs)[20] < {1.0: 25, 0.5: 60, 0.6: 60, 0.9: 80}[high]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(3, 9), st.integers(0, 2**32))
def test_a_flaky_search_steps_around_what_can_not_be_tested(
    data: st.DataObject, count: int, seed: int
) -> None:
    unknown = data.draw(st.frozensets(st.integers(1, count - 2)))
    change = data.draw(st.integers(1, count - 1))

    found, _ = flaky_search(change, count, rates=(0.0, 1.0), seed=seed, unknown=unknown)

    assert isinstance(found, Answer)
    assert found.probability is not None
    assert found.probability >= 0.95
    able = [place for place in range(count) if place not in unknown]
    first = min(place for place in able if place >= change)
    last = max(place for place in able if place < change)
    assert (found.last, found.first) == (f"v{last}", f"v{first}")
    assert found.between == tuple(f"v{place}" for place in range(last + 1, first))


def test_a_steady_search_becomes_a_flaky_one_when_a_version_answers_both_ways() -> None:
    steady = {"v0": Tally(passed=1), "v1": Tally(failed=1), "v2": Tally(failed=1)}
    mixed = {**steady, "v1": Tally(passed=1, failed=1)}

    assert next_step(names(3), steady) == Answer("v0", "v1")
    assert isinstance(next_step(names(3), mixed), Run)


def test_a_change_in_the_other_direction_is_no_answer() -> None:
    results = {"v0": Tally(failed=30), "v1": Tally(passed=30), "v2": Tally(passed=30)}

    step = next_step(names(3), results, flaky=True)

    assert isinstance(step, Stuck)
    assert "v0 was to be the good end, yet versions up to v0 fail more often" in step.why


def test_a_fault_that_does_not_change_ends_the_search_at_last() -> None:
    results = {f"v{n}": Tally(passed=10, failed=10) for n in range(4)}

    step = next_step(names(4), results, most_runs=80)

    assert isinstance(step, Stuck)
    assert "80 runs did not place the change" in step.why


@given(
    st.lists(
        st.builds(Tally, passed=st.integers(0, 20), failed=st.integers(0, 20)),
        min_size=2,
        max_size=10,
    )
)
def test_probabilities_are_those_of_the_model(tallies: list[Tally]) -> None:
    found = change_probabilities(tallies)

    assert sum(found) == pytest.approx(1)
    # By Bayes with each side's rate integrated over a grid of Jeffreys' prior.
    angles = [(n + 0.5) / 4000 * math.pi / 2 for n in range(4000)]

    def evidence(side: list[Tally]) -> float:
        failed = sum(tally.failed for tally in side)
        passed = sum(tally.passed for tally in side)
        rates = (math.sin(angle) ** 2 for angle in angles)
        return sum(rate**failed * (1 - rate) ** passed for rate in rates) / 4000

    weights = [
        evidence(tallies[: n + 1]) * evidence(tallies[n + 1 :]) for n in range(len(tallies) - 1)
    ]
    assert found == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-6)
    assert 0 <= most_telling(tallies) < len(tallies)


@given(
    st.builds(Tally, passed=st.integers(0, 40), failed=st.integers(0, 40)),
    st.builds(Tally, passed=st.integers(0, 40), failed=st.integers(0, 40)),
)
def test_the_chance_of_a_higher_rate(one: Tally, other: Tally) -> None:
    from scipy.integrate import quad
    from scipy.stats import beta

    found = chance_of_a_higher_rate([one], [other])

    low = beta(one.failed + 0.5, one.passed + 0.5)
    high = beta(other.failed + 0.5, other.passed + 0.5)
    expected, _ = quad(
        lambda angle: (
            high.pdf(math.sin(angle) ** 2) * low.cdf(math.sin(angle) ** 2) * math.sin(2 * angle)
        ),
        0,
        math.pi / 2,
        limit=400,
    )
    assert found == pytest.approx(expected, abs=2e-3)
    assert found + chance_of_a_higher_rate([other], [one]) == pytest.approx(1)


def test_two_versions_are_told_apart_before_one_is_called_bad() -> None:
    same = {"v0": Tally(passed=2), "v1": Tally(passed=2)}
    apart = {"v0": Tally(passed=20), "v1": Tally(passed=10, failed=10)}

    step = next_step(names(2), same, flaky=True)
    assert isinstance(step, Run)
    assert len(step.versions) == 1
    assert isinstance(next_step(names(2), apart, flaky=True), Answer)


def component(dates: dict[str, str | None]) -> Component:
    versions = [
        {"version": version, "reason": "r", "link": "https://example.org"}
        | ({"date": date} if date else {})
        for version, date in dates.items()
    ]
    return Component.model_validate(
        {
            "name": "a",
            "title": "a",
            "short": "a",
            "kind": "package",
            "reason": "r",
            "link": "https://example.org",
            "version": versions,
        }
    )


def test_versions_are_in_the_order_in_which_they_came() -> None:
    dates = {"1.29.1": "2026-10-15", "1.30.0": "2026-09-23", "1.31.0": "2026-10-08"}
    some = {**dates, "1.30.0": None}
    listed = ["1.29.1", "1.30.0", "1.31.0"]

    assert in_order(component(dates), listed) == ["1.30.0", "1.31.0", "1.29.1"]
    assert in_order(component(some), ["1.30.0", "1.9.0", "1.29.1"]) == ["1.9.0", "1.29.1", "1.30.0"]
    assert undated(component(some), listed) == ["1.30.0"]
    revisions = ["b" * 40, "a" * 40]
    assert in_order(component({}), revisions) == revisions


def test_the_bad_version_may_be_the_older_one() -> None:
    assert between(["1", "2", "3", "4"], "2", "4") == ["2", "3", "4"]
    assert between(["1", "2", "3", "4"], "4", "2") == ["4", "3", "2"]
