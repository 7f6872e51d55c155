"""Answers to a report's questions: what mends a failure, and which stack to change to."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.site import load_matrix
from matrix.site.derived import Mended, Reported
from matrix.stacks import stack_id
from tests.site.golden import REPORTS
from tests.site.world import REQUESTED, World

FE = "nvidia-cudnn-frontend"
DSL = "nvidia-cutlass-dsl"


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project")
    world.campaign(reported=REQUESTED[DSL])
    (world.rooms.catalogue / "reports.toml").write_text(REPORTS)
    return world


def reported(world: World) -> Reported:
    (found,) = load_matrix(world.rooms).reports
    return found


def mended(world: World, probe: str = "layout-indices") -> Mended:
    (found,) = [one for one in reported(world).fails if one.probe == probe]
    return found


def asked(**versions: str) -> dict[str, str]:
    return REQUESTED | {name.replace("_", "-"): version for name, version in versions.items()}


def test_what_fails_always_is_mended_by_the_nearest_stack_that_passes(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")
    near, far = asked(nvidia_cudnn_frontend="1.29.1"), asked(nvidia_cudnn_frontend="1.32.0")
    for versions in (far, near):
        world.run("layout-indices", requested=versions)

    found = mended(world)

    assert (found.nearest, found.differs, found.passed) == (stack_id(near), [FE], 1)


@pytest.mark.parametrize(("passes", "named"), [(2, False), (60, True)])
def test_passes_that_may_be_chance_mend_nothing(world: World, passes: int, *, named: bool) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")
    world.run("layout-indices")
    other = asked(nvidia_cudnn_frontend="1.29.1")
    for _ in range(passes):
        world.run("layout-indices", requested=other)

    found = mended(world)

    assert found.nearest == (stack_id(other) if named else None)
    assert found.passed == (passes if named else 0)


def test_the_better_stack_is_the_best_then_the_nearest_then_the_one_with_more_runs(
    world: World,
) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")
    once = asked(nvidia_cudnn_frontend="1.28.0")
    twice = asked(nvidia_cudnn_frontend="1.31.0")
    world.passes(requested=once)
    for _ in range(2):
        world.passes(requested=twice)
    assert reported(world).better == stack_id(twice)

    # A required probe that ran once there makes it no better known than the other.
    world.run("compile", requested=once)
    assert reported(world).better == stack_id(twice)

    # Two caveats, one of them nearer: what has none is better, however far.
    for versions in (once, twice):
        world.run("speed", "fail", "numerics", requested=versions)
    assert reported(world).better == stack_id(twice)
    best = asked(nvidia_cudnn_frontend="1.32.0", nvidia_cutlass_dsl="4.8.1")
    world.passes(requested=best)

    assert reported(world).better == stack_id(best)
    assert reported(world).better_differs == [FE, DSL]
