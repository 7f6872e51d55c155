"""Which of several stacks is the least trouble to change to."""

from __future__ import annotations

import pytest

from matrix.components import load_components
from matrix.judging.neighbours import Neighbour, changed, nearest_of
from matrix.rooms import Rooms
from tests.site.world import PROJECT

FE = "nvidia-cudnn-frontend"
DSL = "nvidia-cutlass-dsl"
OWN = {FE: "1.26.0", DSL: "4.5.2"}
COMPONENTS = load_components(Rooms(PROJECT))

FAR = Neighbour("a", {FE: "1.32.0", DSL: "4.8.1"}, "supported", 9)
ONE_CHANGE = Neighbour("f", {FE: "1.32.0", DSL: "4.5.2"}, "broken", 1)
BETTER = Neighbour("e", {FE: "1.31.0", DSL: "4.5.2"}, "caveat", 1)
MORE_RUNS = Neighbour("d", {FE: "1.30.0", DSL: "4.5.2"}, "caveat", 2)
NEARER = Neighbour("c", {FE: "1.28.0", DSL: "4.5.2"}, "caveat", 2)
SAME_DISTANCE = Neighbour("b", {FE: "1.24.1", DSL: "4.5.2"}, "caveat", 2)


@pytest.mark.parametrize(
    ("candidates", "nearest"),
    [
        ([FAR, ONE_CHANGE], ONE_CHANGE),
        ([FAR, ONE_CHANGE, BETTER], BETTER),
        ([BETTER, MORE_RUNS], MORE_RUNS),
        ([MORE_RUNS, NEARER], NEARER),
        ([NEARER, SAME_DISTANCE], SAME_DISTANCE),
        ([SAME_DISTANCE, NEARER, MORE_RUNS, BETTER, ONE_CHANGE, FAR], SAME_DISTANCE),
        ([], None),
    ],
)
def test_the_nearest(candidates: list[Neighbour], nearest: Neighbour | None) -> None:
    assert nearest_of(OWN, candidates, COMPONENTS) == nearest


def test_a_better_verdict_can_be_worth_any_change() -> None:
    candidates = [MORE_RUNS, FAR, ONE_CHANGE]

    assert nearest_of(OWN, candidates, COMPONENTS, verdict_first=True) == FAR
    equal = [BETTER, MORE_RUNS]
    assert nearest_of(OWN, equal, COMPONENTS, verdict_first=True) == MORE_RUNS


def test_what_has_no_order_is_as_far_as_anything_else() -> None:
    with_part = {**OWN, "flash-mla": "1.0.0+b7643bd", "patch megatron-lm-6848": "b" * 40}
    near = Neighbour("z", with_part | {FE: "1.27.0"}, "caveat", 1)
    far = Neighbour("y", with_part | {FE: "1.32.0"}, "caveat", 1)

    assert changed(OWN, near.point) == [FE, "flash-mla", "patch megatron-lm-6848"]
    assert nearest_of(OWN, [far, near], COMPONENTS) == near
