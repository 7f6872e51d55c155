"""Explanations: the smallest conditions, against an oracle that tries everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement

from matrix.components import NONE, Component, load_components
from matrix.judging.conditions import Axis, Point, axes_of, holds, nearest, smallest
from matrix.judging.constraints import constraints_file
from matrix.judging.explanations import Failure, explain_failures
from matrix.judging.findings import find
from matrix.keeping.records import Record
from matrix.keeping.store import Store
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.stacks import stack_id
from tests.site.world import MCORE, OTHER_GPU, PROJECT, REQUESTED, World

FE = "nvidia-cudnn-frontend"
DSL = "nvidia-cutlass-dsl"


# --- The search, against brute force -----------------------------------------------------------

#: Versions as their places in an order; `thing` has no order.
ORDERED = {"a": ["1", "2", "3", "4"], "b": ["1", "2", "3"], "c": ["1", "2"]}
UNORDERED = {"thing": [NONE, "x", "y"]}
AXES = [*(Axis(name, tuple(order)) for name, order in ORDERED.items()), Axis("thing")]

points = st.fixed_dictionaries(
    {name: st.sampled_from(values) for name, values in (ORDERED | UNORDERED).items()}
)


#: Stacks by the sides they are on: (failing, passing).
Sides = tuple[list[Point], list[Point]]


def distinct(least: int, most: int) -> st.SearchStrategy[list[Point]]:
    return st.lists(
        points, min_size=least, max_size=most, unique_by=lambda point: tuple(point.values())
    )


@st.composite
def worlds(draw: st.DrawFn) -> Sides:
    everything = draw(
        st.lists(points, min_size=2, max_size=9, unique_by=lambda p: tuple(p.values()))
    )
    failing = draw(st.lists(st.booleans(), min_size=len(everything), max_size=len(everything)))
    inside = [p for p, fails in zip(everything, failing, strict=True) if fails]
    outside = [p for p, fails in zip(everything, failing, strict=True) if not fails]
    return inside, outside


def ruled(
    rule: Callable[[Point], bool], chosen: Sequence[Point]
) -> tuple[list[Point], list[Point]]:
    return [p for p in chosen if rule(p)], [p for p in chosen if not rule(p)]


def every_test(name: str) -> Iterator[tuple[int, Callable[[Point], bool]]]:
    """All there are on one axis, each with its number of bounds; no cleverness."""
    if name in UNORDERED:
        for value in UNORDERED[name]:
            yield 1, lambda p, v=value: p[name] == v
            yield 1, lambda p, v=value: p[name] != v
        return
    order = ORDERED[name]
    for low, high in product([None, *order], repeat=2):
        size = (low is not None) + (high is not None)
        if size:
            yield (
                size,
                lambda p, low=low, high=high: (
                    (low is None or p[name] >= low) and (high is None or p[name] <= high)
                ),
            )


def oracle(
    inside: list[Point], outside: list[Point]
) -> tuple[int, int, set[tuple[str, ...]]] | None:
    """(clauses, bounds, the sets of axes that do) of the smallest separating conditions."""
    for count in (1, 2):
        sizes: dict[int, set[tuple[str, ...]]] = {}
        for names in combinations([*ORDERED, *UNORDERED], count):
            for tests in product(*(list(every_test(name)) for name in names)):
                fits = [all(test(p) for _, test in tests) for p in (*inside, *outside)]
                if all(fits[: len(inside)]) and not any(fits[len(inside) :]):
                    sizes.setdefault(sum(size for size, _ in tests), set()).add(names)
        if sizes:
            return count, min(sizes), sizes[min(sizes)]
    return None


@settings(max_examples=150)
@given(worlds())
@example(([{"a": "2", "b": "1", "c": "1", "thing": NONE}], []))
def test_smallest_conditions_are_those_of_the_oracle(
    world: Sides,
) -> None:
    inside, outside = world
    found = smallest(inside, outside, AXES)
    if not inside or not outside:
        assert found == []
        return
    best = oracle(inside, outside)

    assert (best is None) == (not found)
    for condition in found:
        assert all(holds(condition, point) for point in inside)
        assert not any(holds(condition, point) for point in outside)
    if best is not None:
        clauses, bounds, names = best
        assert {len(condition) for condition in found} == {clauses}
        assert {sum(clause.bounds for clause in condition) for condition in found} == {bounds}
        assert {tuple(clause.axis.name for clause in condition) for condition in found} == names


@settings(max_examples=60)
@given(
    distinct(3, 10),
    st.sampled_from(ORDERED["a"]),
    st.sampled_from(ORDERED["b"]),
)
def test_a_planted_rule_is_covered(chosen: list[Point], high: str, low: str) -> None:
    inside, outside = ruled(lambda p: p["a"] <= high and p["b"] >= low, chosen)

    if inside and outside:
        assert smallest(inside, outside, AXES)


@given(worlds(), st.randoms())
def test_the_order_of_stacks_changes_nothing(world: Sides, random: Any) -> None:
    inside, outside = world
    found = smallest(inside, outside, AXES)
    near = nearest(inside, outside, AXES)
    random.shuffle(inside)
    random.shuffle(outside)

    assert smallest(inside, outside, AXES) == found
    assert nearest(inside, outside, AXES) == near


@given(worlds())
def test_the_nearest_clause_makes_the_fewest_mistakes(
    world: Sides,
) -> None:
    inside, outside = world
    found = nearest(inside, outside, AXES)

    def mistakes(test: Callable[[Point], bool]) -> int:
        return sum(not test(p) for p in inside) + sum(test(p) for p in outside)

    least = min(mistakes(test) for name in ORDERED | UNORDERED for _, test in every_test(name))
    trivial = min(len(inside), len(outside))
    if found is None:
        assert least >= trivial
    else:
        assert mistakes(lambda p: holds(found, p)) == least < trivial


# --- What it makes of components ---------------------------------------------------------------


def parts() -> dict[str, Component]:
    return load_components(Rooms(PROJECT))


def axis(name: str, *values: str) -> Axis:
    (found,) = axes_of([{name: value} for value in values], parts())
    return found


def test_releases_are_ordered_by_number_and_know_the_catalogue() -> None:
    found = axis(FE, "1.28.0", "1.31.0")

    assert found.order.index("1.29.0") < found.order.index("1.29.1") < found.order.index("1.30.0")


def test_revisions_are_ordered_by_their_dates_where_all_are_known() -> None:
    later = "d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1"
    order = axis("megatron-core", later, MCORE).order
    assert order.index(MCORE) < order.index(later)
    assert "0.19.2" not in order
    assert axis("megatron-core", later, "c" * 40).order == ()
    assert axis("megatron-core", later, "0.19.2").order == ()


def test_a_component_that_some_stacks_lack_has_no_order() -> None:
    (found,) = axes_of([{"flash-mla": "1.0.0+b7643bd"}, {}], parts())

    assert found == Axis("flash-mla")


def test_an_axis_on_which_nothing_differs_is_none() -> None:
    assert axes_of([{FE: "1.26.0", DSL: "4.5.2"}, {FE: "1.26.0", DSL: "4.8.1"}], parts()) == [
        axis(DSL, "4.5.2", "4.8.1")
    ]


# --- Over evidence -----------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def run(world: World, versions: Mapping[str, str], reason: str | None = None, **more: Any) -> str:
    asked = REQUESTED | versions
    status = "fail" if reason else "pass"
    return world.run("layout-indices", status, reason, requested=asked, **more).stack.id


def explained(world: World, reason: str = "cuda:illegal-address") -> Failure:
    found = explain_failures(find(world.records(), world.specs), world.specs, parts())
    (failure,) = [one for one in found if one.reason == reason]
    return failure


def test_one_interval_with_its_gap_and_its_constraint(world: World) -> None:
    for version in ("1.26.0", "1.27.0", "1.28.0"):
        run(world, {FE: version}, "cuda:illegal-address")
    for version in ("1.29.1", "1.30.0"):
        run(world, {FE: version})

    found = explained(world)

    assert found.text == (
        "fails with nvidia-cudnn-frontend <= 1.28.0 (seen on 1.26.0, 1.27.0, 1.28.0), "
        "passes from 1.29.1; nvidia-cudnn-frontend 1.29.0 untested"
    )
    (explanation,) = found.explanations
    assert explanation.exact
    assert explanation.clauses[0].untested == ["1.29.0"]
    assert "1.25.0" in explanation.clauses[0].extrapolated
    assert len(explanation.witnesses) == 6
    assert found.constraints == [
        f"# layout-indices, cuda:illegal-address: {found.text}",
        "nvidia-cudnn-frontend>=1.29.1",
    ]


def test_a_failure_that_came_back(world: World) -> None:
    for version, reason in (("1.25.0", None), ("1.26.0", "x"), ("1.27.0", "x"), ("1.30.0", None)):
        run(world, {FE: version}, "numerics" if reason else None)

    found = explained(world, "numerics")

    assert found.text.startswith("fails with nvidia-cudnn-frontend >= 1.26.0, <= 1.27.0 (seen on")
    assert "passes up to 1.25.0, passes from 1.30.0" in found.text
    assert found.constraints[-1] == "nvidia-cudnn-frontend!=1.26.0,!=1.27.0"
    assert found.explanations[0].clauses[0].untested == ["1.28.0", "1.29.0", "1.29.1"]


def test_two_components_together(world: World) -> None:
    old, new = {DSL: "4.5.2"}, {DSL: "4.8.1"}
    run(world, {FE: "1.25.0", **new}, "compile:TypeError")
    run(world, {FE: "1.25.0", **old})
    run(world, {FE: "1.26.0", **new})
    run(world, {FE: "1.26.0", **old})

    found = explained(world, "compile:TypeError")

    assert found.text.startswith(
        "fails with nvidia-cudnn-frontend <= 1.25.0 together with nvidia-cutlass-dsl >= 4.8.1"
    )
    assert found.constraints[1:] == [
        "# Either of these avoids it:",
        "# nvidia-cudnn-frontend>=1.26.0",
        "# nvidia-cutlass-dsl<=4.5.2",
    ]


def test_what_evidence_cannot_tell_apart_is_said(world: World) -> None:
    run(world, {FE: "1.26.0", DSL: "4.5.2"}, "numerics")
    run(world, {FE: "1.27.0", DSL: "4.8.1"})

    found = explained(world, "numerics")

    assert [one.clauses[0].what for one in found.explanations] == [FE, DSL]
    assert found.text.endswith("(or 1 other condition that evidence can't tell from it)")
    assert all(line.startswith("#") for line in found.constraints)


def test_a_pair_that_differs_in_one_thing_settles_it(world: World) -> None:
    run(world, {FE: "1.26.0", DSL: "4.5.2"}, "numerics")
    run(world, {FE: "1.27.0", DSL: "4.8.1"})
    run(world, {FE: "1.26.0", DSL: "4.8.1"})

    found = explained(world, "numerics")

    assert [one.clauses[0].what for one in found.explanations] == [DSL]
    assert len(found.explanations[0].witnesses) == 1


def test_stacks_that_fail_otherwise_are_on_neither_side(world: World) -> None:
    run(world, {FE: "1.25.0"}, "numerics")
    other = run(world, {FE: "1.26.0"}, "call:TypeError")
    run(world, {FE: "1.27.0"})

    found = explained(world, "numerics")

    assert found.undecided == {other: "fails otherwise: call:TypeError"}
    assert found.text.endswith("passes from 1.27.0; nvidia-cudnn-frontend 1.26.0: other failures")


def test_a_part_tells_what_the_reason_of_the_run_does_not(world: World) -> None:
    both = [
        {"name": "first", "status": "fail", "reason": "call:TypeError"},
        {"name": "second", "status": "fail", "reason": "numerics"},
    ]
    run(world, {FE: "1.25.0"}, "call:TypeError", parts=both)
    run(world, {FE: "1.27.0"})

    assert explained(world, "numerics").text.startswith("fails with nvidia-cudnn-frontend <= 1.25")


def often(world: World, versions: Mapping[str, str], failed: int, passed: int) -> str:
    """Runs of one stack, in which `numerics` comes and goes."""
    for _ in range(failed):
        id_ = run(world, versions, "numerics")
    for _ in range(passed):
        id_ = run(world, versions)
    return id_


def test_what_comes_and_goes_is_explained_by_enough_runs(world: World) -> None:
    flaky = often(world, {FE: "1.25.0"}, failed=2, passed=2)
    for version in ("1.27.0", "1.28.0", "1.29.1"):
        often(world, {FE: version}, failed=0, passed=6)

    found = explained(world, "numerics")

    assert found.flaky == [flaky]
    assert found.text.startswith(
        "fails at times with nvidia-cudnn-frontend <= 1.25.0 (seen on 1.25.0), passes from 1.27.0"
    )
    assert found.explanations[0].exact
    assert found.constraints[-1] == "nvidia-cudnn-frontend>=1.27.0"


def test_few_passes_elsewhere_explain_nothing_that_comes_and_goes(world: World) -> None:
    often(world, {FE: "1.25.0"}, failed=1, passed=2)
    often(world, {FE: "1.27.0"}, failed=0, passed=2)

    found = explained(world, "numerics")

    assert found.text == (
        "fails at times: in 1 of 3 runs on 1 stack; other stacks passed in 2 runs, too few to say "
        "what it depends on"
    )
    assert (found.explanations, found.constraints) == ([], [])


def test_passes_within_a_condition_may_be_chance(world: World) -> None:
    """Or two passes with another DSL would make it a matter of the DSL."""
    often(world, {FE: "1.25.0", DSL: "4.5.2"}, failed=2, passed=2)
    often(world, {FE: "1.26.0", DSL: "4.5.2"}, failed=2, passed=2)
    lucky = often(world, {FE: "1.26.0", DSL: "4.8.1"}, failed=0, passed=1)
    # It differs from a failing one in nothing but the frontend, and yet is no witness.
    other = often(world, {FE: "1.24.1", DSL: "4.5.2"}, failed=0, passed=1)
    for dsl in ("4.5.2", "4.8.1"):
        often(world, {FE: "1.27.0", DSL: dsl}, failed=0, passed=15)

    found = explained(world, "numerics")

    (explanation,) = found.explanations
    assert explanation.by_chance == sorted([lucky, other])
    assert explanation.exact
    assert found.text == (
        "fails at times with nvidia-cudnn-frontend <= 1.26.0 (seen on 1.25.0, 1.26.0), passes from "
        "1.27.0; that 2 runs with it passed may be chance"
    )
    assert len(explanation.witnesses) == 2
    assert not {lucky, other} & {good for _, good in explanation.witnesses}
    assert found.constraints[-1] == "nvidia-cudnn-frontend>=1.27.0"


def test_passes_within_a_condition_make_the_failure_rarer(world: World) -> None:
    # Without them, 19 passes would be more than chance explains, and with them they are not.
    often(world, {FE: "1.26.0", DSL: "4.5.2"}, failed=2, passed=2)
    often(world, {FE: "1.26.0", DSL: "4.8.1"}, failed=0, passed=2)
    often(world, {FE: "1.27.0", DSL: "4.5.2"}, failed=0, passed=10)
    often(world, {FE: "1.27.0", DSL: "4.8.1"}, failed=0, passed=9)

    assert explained(world, "numerics").explanations == []


def test_many_passes_within_a_condition_are_no_chance(world: World) -> None:
    often(world, {FE: "1.26.0", DSL: "4.5.2"}, failed=4, passed=1)
    often(world, {FE: "1.26.0", DSL: "4.8.1"}, failed=0, passed=12)
    for dsl in ("4.5.2", "4.8.1"):
        often(world, {FE: "1.27.0", DSL: dsl}, failed=0, passed=12)

    found = explained(world, "numerics")

    assert found.text.startswith(
        "fails at times with nvidia-cudnn-frontend <= 1.26.0 together with nvidia-cutlass-dsl <= 4"
    )
    assert [one.by_chance for one in found.explanations] == [[]]


def test_the_more_ways_to_split_the_stacks_the_less_one_of_them_says(world: World) -> None:
    often(world, {FE: "1.25.0", DSL: "4.5.2"}, failed=2, passed=1)
    often(world, {FE: "1.27.0", DSL: "4.5.2"}, failed=0, passed=9)
    assert explained(world, "numerics").explanations

    # One more pass, and another DSL that might be what it depends on.
    often(world, {FE: "1.27.0", DSL: "4.8.1"}, failed=0, passed=1)

    assert explained(world, "numerics").explanations == []


def test_a_failure_everywhere_has_no_condition(world: World) -> None:
    run(world, {FE: "1.25.0"}, "recompiles")
    run(world, {FE: "1.27.0"}, "recompiles")

    found = explained(world, "recompiles")

    assert (found.text, found.explanations) == ("fails on 2 stacks; none is known to pass", [])
    assert found.constraints == []


def test_counter_examples_are_named_where_nothing_separates(world: World) -> None:
    odd = {"1.24.0", "1.26.0", "1.28.0"}
    for version in ("1.24.0", "1.24.1", "1.25.0", "1.26.0", "1.27.0", "1.28.0", "1.29.0"):
        run(world, {FE: version}, "numerics" if version in odd else None)

    (found,) = explained(world, "numerics").explanations

    assert not found.exact
    assert found.counter_examples
    assert found.text.endswith("counter-examples") or found.text.endswith("counter-example")
    assert found.constraints == []


def test_a_patch_can_be_the_explanation(world: World) -> None:
    pins = [{"id": "megatron-lm-6848", "head": "b" * 40, "result": "clean"}]
    id_ = stack_id(REQUESTED, (("megatron-lm-6848", "b" * 40),))
    run(world, {}, "recompiles")
    run(world, {}, stack={"id": id_, "patches": pins})

    found = explained(world, "recompiles")

    assert found.text == "fails with patch megatron-lm-6848 left out"
    assert found.constraints[-1].startswith("# No package index has it")


def test_only_runs_of_the_same_probe_are_compared(world: World) -> None:
    run(world, {FE: "1.25.0"}, "numerics")
    old = run(world, {FE: "1.27.0"}, revision="0123456789abcdef")

    found = explained(world, "numerics")

    assert found.undecided == {old: "no counted run of this version of the probe"}
    assert found.passing == []


def test_only_passes_with_the_same_inputs_are_on_the_other_side(world: World) -> None:
    def asked(record: Record, **parameters: Any) -> Record:
        facts = record.probe.model_copy(update={"parameters": parameters})
        return record.model_copy(update={"probe": facts})

    fails = world.run("layout-indices", "fail", "numerics", requested=REQUESTED | {FE: "1.25.0"})
    passed = world.run("layout-indices", requested=REQUESTED | {FE: "1.27.0"})
    records = [asked(fails, heads=32, seed=1), asked(passed, heads=64, seed=2)]

    (found,) = explain_failures(find(records, world.specs), world.specs, parts())

    assert found.passing == []
    assert found.undecided == {passed.stack.id: "was asked with other inputs"}


def test_a_probe_that_has_changed_since_is_said(world: World) -> None:
    run(world, {FE: "1.25.0"}, "numerics", revision="0123456789abcdef")

    assert explained(world, "numerics").older_probe


def test_failures_of_every_machine_count(world: World) -> None:
    run(world, {FE: "1.25.0"})
    run(world, {FE: "1.25.0"}, "numerics", machine=OTHER_GPU)

    assert len(explained(world, "numerics").flaky) == 1


def test_a_constraints_file_is_one_that_pip_reads(world: World) -> None:
    run(world, {FE: "1.26.0"}, "numerics")
    run(world, {FE: "1.29.1"})
    found = explained(world, "numerics")

    text = constraints_file([found.constraints, found.constraints])

    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [str(Requirement(line)) for line in lines] == ["nvidia-cudnn-frontend>=1.29.1"]


@pytest.mark.parametrize(
    ("probe", "reason", "says", "line"),
    [
        (
            "empty-rows",
            "cuda:illegal-address",
            "passes from 1.29.1; nvidia-cudnn-frontend 1.29.0 untested",
            "nvidia-cudnn-frontend>=1.29.1",
        ),
        ("indexer-topk", "numerics", "passes from 1.27.0", "nvidia-cudnn-frontend>=1.27.0"),
        ("streams", "nondeterministic", "passes from 1.27.0", "nvidia-cudnn-frontend>=1.27.0"),
        ("compile", "compile:TypeError", "passes from 1.26.0", "nvidia-cudnn-frontend>=1.26.0"),
    ],
)
def test_the_committed_evidence(probe: str, reason: str, says: str, line: str) -> None:
    rooms = Rooms(PROJECT)
    # As it was before other machines: later runs add to it and may find more.
    records = [
        r
        for _, r in Store(rooms).records()
        if r.machine.name == "h200-a" and r.run.id < "20261201T000000Z"
    ]
    specs = load_probe_specs(rooms)

    found = explain_failures(find(records, specs), specs, load_components(rooms))

    (failure,) = [one for one in found if (one.probe, one.reason) == (probe, reason)]
    assert says in failure.text
    assert failure.constraints[-1] == line
