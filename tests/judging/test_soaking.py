"""Soaks: rates per GPU-step, and how long it takes to exclude that of the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, poisson

from matrix.components import load_components
from matrix.judging import intervals
from matrix.judging.claims import load_claims
from matrix.judging.findings import find
from matrix.judging.soaking import Soak, needed, reported_rates, soaks
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from tests.site.world import OTHER_GPU, PROJECT, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project")
    world.probe("soak", group="soak", required=False, needs=["gpu:sm90", "torch"])
    return world


def steps(count: int, failures: int = 0, seconds: float | None = 10.0) -> dict[str, Any]:
    measured = {"gpu_steps_count": count, "failures_count": failures, "soak_s": seconds}
    return {"measure": {name: value for name, value in measured.items() if value is not None}}


def soaked(world: World) -> Soak:
    (soak,) = soaks(find(world.records(), world.specs)).values()
    return soak


def test_clean_soaks_add_up(world: World) -> None:
    world.run("soak", **steps(1000))
    world.run("soak", machine=OTHER_GPU, **steps(2000, seconds=20.0))

    found = soaked(world)

    assert (found.gpu_steps_count, found.failures_count, found.lower) == (3000, 0, 0.0)
    assert found.upper == pytest.approx(-math.log(0.05) / 3000)
    assert found.steps_per_second == pytest.approx(100)
    assert found.machines == ["h200-a", "h200-b"]
    assert found.text == (
        "0 failures in 3000 GPU-steps: rate below 0.001 per GPU-step at 95 % confidence"
    )


def test_failures_give_both_bounds(world: World) -> None:
    world.run("soak", **steps(200_000))
    world.run("soak", "fail", "cuda:invalid-value", **steps(160_448, failures=1))
    world.run("soak", "fail", "cuda:unknown", **steps(0))

    found = soaked(world)

    assert (found.gpu_steps_count, found.failures_count) == (360_448, 2)
    # Garwood's exact bounds of two events, 0.2422 and 7.2247, are in every table of them.
    assert found.lower == pytest.approx(0.242209 / 360_448, rel=1e-5)
    assert found.upper == pytest.approx(7.224688 / 360_448, rel=1e-5)


def test_a_soak_that_died_without_its_count_is_named_and_not_guessed(world: World) -> None:
    world.run("soak", **steps(100))
    died = world.run("soak", "fail", "timeout")

    found = soaked(world)

    assert (found.gpu_steps_count, found.failures_count) == (100, 0)
    assert found.died == [died.run.id]
    assert found.text.endswith("1 run died without saying how far it came")
    assert needed(1e-3, found).left_count is None


def test_runs_that_do_not_count_are_left_out(world: World) -> None:
    world.run("soak", "error", "probe:no-check", **steps(500))

    assert soaks(find(world.records(), world.specs)) == {}


def test_what_excludes_the_rate_of_the_report(world: World) -> None:
    components, rooms = load_components(world.rooms), Rooms(PROJECT)
    reported = load_claims(rooms, components, load_probe_specs(rooms)).reported
    assert reported is not None
    lower, rate, upper = reported_rates(reported)
    assert lower < rate < upper
    assert rate == pytest.approx(5.55e-6, rel=1e-3)

    assert needed(rate).clean_steps_count == 539_903
    assert needed(lower).clean_steps_count == pytest.approx(2.995732 / 0.242209 * 360_448, rel=1e-5)
    world.run("soak", **steps(100_000, seconds=1000.0))
    found = needed(rate, soaked(world))
    assert (found.left_count, found.left_s) == (439_903, pytest.approx(4399.03))
    assert found.text.endswith("exclude 5.5e-06 per GPU-step; 439903 are left")


@given(st.floats(1e-9, 0.5))
def test_needed_steps_exclude_the_rate_and_one_less_does_not(rate: float) -> None:
    count = needed(rate).clean_steps_count

    assert intervals.poisson(0, count, 0.95)[1] <= rate * (1 + 1e-12)
    assert count == 1 or intervals.poisson(0, count - 1, 0.95)[1] > rate * (1 - 1e-12)


@given(st.integers(1, 60), st.integers(0, 400))
def test_binomial_bounds_are_where_the_tails_are_half_the_doubt(events: int, others: int) -> None:
    trials = events + others + 1
    lower, upper = intervals.binomial(events, trials, 0.95)

    assert binom.sf(events - 1, trials, lower) == pytest.approx(0.025, rel=1e-6)
    assert binom.cdf(events, trials, upper) == pytest.approx(0.025, rel=1e-6)


@given(st.integers(1, 200), st.floats(1.0, 1e9))
def test_poisson_bounds_are_where_the_tails_are_half_the_doubt(
    events: int, exposure: float
) -> None:
    lower, upper = intervals.poisson(events, exposure, 0.95)

    assert poisson.sf(events - 1, lower * exposure) == pytest.approx(0.025, rel=1e-6)
    assert poisson.cdf(events, upper * exposure) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(("events", "exposure"), [(-1, 1.0), (0, 0.0), (0, math.inf)])
def test_impossible_exposures_are_refused(events: int, exposure: float) -> None:
    with pytest.raises(ValueError, match="impossible"):
        intervals.poisson(events, exposure, 0.95)


def test_without_a_repeat_there_is_no_noise_to_know() -> None:
    with pytest.raises(ValueError, match="degree of freedom"):
        intervals.student(0, 0.99)
    assert intervals.student(10, 0.95) == pytest.approx(2.228139, rel=1e-6)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_to_exclude_is_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        needed(rate)
