"""With and without: one of seven answers for every pair of cells, and numbers above the noise."""

from __future__ import annotations

import math
from itertools import combinations, product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.components import load_components
from matrix.judging.cells import CellStatus
from matrix.judging.comparisons import (
    CHANGE_MEANING,
    Change,
    Comparison,
    compare_all,
    only_difference,
)
from matrix.judging.findings import StackFindings, find
from matrix.judging.noise import LEAST_REPEATS, Noise, differences, values
from matrix.keeping.records import Record
from matrix.keeping.store import Store
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.stacks import stack_id
from tests.site.world import OTHER_GPU, PROJECT, REQUESTED, World

NEWER = REQUESTED | {"nvidia-cutlass-dsl": "4.8.1"}
HEAD = "b" * 40
FE = "nvidia-cudnn-frontend"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def compared(world: World) -> Comparison:
    (only,) = compare_all(find(world.records(), world.specs), load_components(world.rooms))
    return only


def change(world: World, probe: str = "layout-indices") -> tuple[Change, str | None]:
    (found,) = [p for p in compared(world).probes if p.probe == probe]
    return found.change, found.why


def patched(world: World, probe: str, *args: Any, patches: tuple[str, ...], **more: Any) -> Record:
    pins = [{"id": id_, "head": HEAD, "result": "clean"} for id_ in patches]
    id_ = stack_id(REQUESTED, tuple((pin["id"], pin["head"]) for pin in pins))
    return world.run(probe, *args, stack={"id": id_, "patches": pins}, **more)


REASONS = {
    "fail": "numerics",
    "error": "probe:no-check",
    "void": "loaded:mismatch",
    "skip": "upstream:absent",
    "miss": "machine:no-gpu",
}


def make(world: World, status: CellStatus, requested: dict[str, str]) -> None:
    """Runs that make a cell of this status."""
    # Something ran on every stack, or there would be no stack to compare.
    world.run("fingerprint", requested=requested)
    if status == "flaky":
        world.run("layout-indices", requested=requested)
        world.run("layout-indices", "fail", "numerics", requested=requested)
    elif status != "not run":
        world.run("layout-indices", status, REASONS.get(status), requested=requested)


TELLS = ("pass", "fail", "flaky")
TOLD: dict[tuple[str, str], Change] = {
    ("pass", "pass"): "same (pass)",
    ("pass", "fail"): "broken",
    ("fail", "pass"): "fixed",
    ("fail", "fail"): "same (fail)",
}


@pytest.mark.parametrize(("was", "now"), list(product(get_args(CellStatus), repeat=2)))
def test_every_pair_of_cells_has_an_answer(world: World, was: CellStatus, now: CellStatus) -> None:
    make(world, was, REQUESTED)
    make(world, now, NEWER)
    if (was, now) == ("not run", "not run"):
        assert [p.probe for p in compared(world).probes] == ["fingerprint"]
        return

    found, why = change(world)

    expected: Change = TOLD.get((was, now), "flaky")
    if was not in TELLS or now not in TELLS:
        expected = "unknown"
    assert found == expected
    assert (why is not None) == (found in ("unknown", "flaky"))
    assert set(CHANGE_MEANING) == set(get_args(Change))


def test_both_sides_name_their_runs(world: World) -> None:
    failed = world.run("layout-indices", "fail", "numerics")
    passed = world.run("layout-indices", requested=NEWER)

    found = compared(world)

    assert (found.kind, found.what) == ("component", "nvidia-cutlass-dsl")
    assert (found.before_version, found.after_version) == ("4.5.2", "4.8.1")
    (probe,) = found.probes
    assert (probe.before.runs, probe.before.reasons) == ([failed.run.id], ["numerics"])
    assert (probe.after.runs, probe.after.reasons) == ([passed.run.id], [])
    assert found.counts() == {"fixed": 1}


def test_another_reason_is_told_from_the_same(world: World) -> None:
    world.run("layout-indices", "fail", "numerics")
    world.run("layout-indices", "fail", "cuda:illegal-address", requested=NEWER)

    assert change(world) == ("changed reason", None)


def test_older_comes_first_whatever_ran_first(world: World) -> None:
    world.run("layout-indices", "fail", "numerics", requested=NEWER)
    world.run("layout-indices")

    assert change(world) == ("broken", None)


def test_answers_of_different_probes_are_not_compared(world: World) -> None:
    world.run("layout-indices", revision="0123456789abcdef")
    world.run("layout-indices", requested=NEWER)

    assert change(world) == ("unknown", "the sides were asked by different versions of the probe")


def test_only_the_same_inputs_are_compared(world: World) -> None:
    def asked(record: Record, **parameters: Any) -> Record:
        facts = record.probe.model_copy(update={"parameters": parameters})
        return record.model_copy(update={"probe": facts})

    def told(records: list[Record]) -> tuple[Change, list[str]]:
        (found,) = compare_all(find(records, world.specs), load_components(world.rooms))
        return found.probes[0].change, found.probes[0].after.runs

    old = asked(world.run("layout-indices"), heads=64, seed=1)
    failing = world.run("layout-indices", "fail", "numerics", requested=NEWER)
    larger = asked(failing, heads=32, seed=3)
    assert told([old, larger]) == ("unknown", [larger.run.id])

    same = asked(world.run("layout-indices", requested=NEWER), heads=64, seed=2)
    assert told([old, larger, same]) == ("same (pass)", [same.run.id])


def test_a_patch_is_compared_with_the_stack_without_it(world: World) -> None:
    world.run("layout-indices", "fail", "recompiles")
    patched(world, "layout-indices", patches=("megatron-lm-6848",))

    found = compared(world)

    assert (found.kind, found.what, found.before_version) == ("patch", "megatron-lm-6848", "none")
    assert found.probes[0].change == "fixed"


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ((), ("a",), ("patch", "a", "none", "1")),
        (("a", "b"), ("a",), ("patch", "b", "1", "none")),
        (("a", "b"), ("b",), ("patch", "a", "1", "none")),
        (("a", "b"), ("b", "a"), None),
        ((), ("a", "b"), None),
        (("a",), ("b",), None),
        (("a", "b", "c"), ("c", "a"), None),
        (("a",), ("a",), None),
    ],
)
def test_exactly_one_patch(
    one: tuple[str, ...], other: tuple[str, ...], told: tuple[str, ...] | None
) -> None:
    def stack(patches: tuple[str, ...]) -> StackFindings:
        return StackFindings("x", REQUESTED, tuple((id_, "1") for id_ in patches), {}, {})

    assert only_difference(stack(one), stack(other)) == told


def test_another_head_of_a_patch_is_one_difference() -> None:
    one = StackFindings("x", REQUESTED, (("a", "1"), ("b", "1")), {}, {})
    other = StackFindings("y", REQUESTED, (("a", "1"), ("b", "2")), {}, {})

    assert only_difference(one, other) == ("patch", "b", "1", "2")


def test_a_patch_and_a_version_are_two_differences() -> None:
    one = StackFindings("x", REQUESTED, (), {}, {})
    other = StackFindings("y", NEWER, (("a", "1"),), {}, {})

    assert only_difference(one, other) is None


def test_parts_that_end_otherwise_are_named(world: World) -> None:
    old = [
        {"name": "mode 0", "status": "pass"},
        {"name": "mode 1", "status": "fail", "reason": "numerics"},
    ]
    new = [{"name": "mode 0", "status": "pass"}, {"name": "mode 2", "status": "pass"}]
    world.run("layout-indices", "fail", "numerics", parts=old)
    world.run("layout-indices", requested=NEWER, parts=new)

    (probe,) = compared(world).probes

    assert [(part.part, part.before, part.after) for part in probe.parts] == [
        ("mode 1", "fail numerics", "not there"),
        ("mode 2", "not there", "pass"),
    ]


def measured(world: World, seconds: float, **more: Any) -> None:
    world.run("speed", measure={"kernel_s": seconds, "flag": True, "gpu": "x"}, **more)


def test_without_repeats_no_difference_is_claimed(world: World) -> None:
    measured(world, 1.0)
    measured(world, 100.0, requested=NEWER)

    (probe,) = compared(world).probes

    assert (probe.differences, probe.within_noise, probe.unknown_noise) == ([], 0, 1)


def test_too_few_repeats_are_no_noise_floor(world: World) -> None:
    for _ in range(LEAST_REPEATS):
        measured(world, 1.0)
    measured(world, 100.0, requested=NEWER)
    assert compared(world).probes[0].unknown_noise == 1

    measured(world, 1.0)
    (probe,) = compared(world).probes
    assert [d.says for d in probe.differences] == ["more"]
    assert probe.differences[0].change == 99.0


def test_a_difference_below_the_noise_is_not_shown(world: World) -> None:
    for seconds in (1.0, 1.2, 0.9, 1.1, 1.0):
        measured(world, seconds)
    measured(world, 1.3, requested=NEWER)
    (probe,) = compared(world).probes
    assert (probe.differences, probe.within_noise) == ([], 1)

    world.moment = world.moment.replace(day=2)
    for seconds in (3.0, 3.1, 2.9):
        measured(world, seconds, requested=NEWER)
    (probe,) = compared(world).probes
    assert [(d.measure, d.says, d.runs) for d in probe.differences] == [
        ("kernel_s", "more", (5, 4))
    ]


def test_repeats_on_any_stack_tell_the_noise_of_a_machine(world: World) -> None:
    third = REQUESTED | {"nvidia-cutlass-dsl": "4.6.0", "nvidia-cudnn-frontend": "1.29.0"}
    for seconds in (1.0, 1.01, 0.99, 1.0):
        measured(world, seconds, requested=third)
    measured(world, 1.0)
    measured(world, 2.0, requested=NEWER)
    measured(world, 1.0, machine=OTHER_GPU)
    measured(world, 2.0, machine=OTHER_GPU, requested=NEWER)

    (probe,) = compared(world).probes

    assert [(d.machine, d.repeats) for d in probe.differences] == [("h200-a", 3)]
    assert probe.unknown_noise == 1


def test_the_floor_is_students() -> None:
    records = {"a": [_record(x) for x in (0.9, 1.0, 1.1, 1.0)], "b": [_record(1.0)]}

    (found,) = differences(values(records["a"]), values(records["b"]), _noise(records))

    # Three degrees of freedom: 5.840909 deviations of sqrt(0.02 / 3), for means of 4 runs and of 1.
    deviation = math.sqrt(0.02 / 3)
    assert found.floor == pytest.approx(5.840909 * deviation * math.sqrt(1 / 4 + 1), rel=1e-6)


def test_measures_of_different_machines_are_not_compared(world: World) -> None:
    for _ in range(6):
        measured(world, 1.0)
    measured(world, 2.0, machine=OTHER_GPU, requested=NEWER)

    (probe,) = compared(world).probes

    assert (probe.differences, probe.within_noise, probe.unknown_noise) == ([], 0, 0)
    assert probe.change == "same (pass)"


def test_the_floor_holds_its_promise() -> None:
    """Equal stacks with noisy times: about one of a hundred differences is claimed."""
    random = np.random.default_rng(20261130)
    claimed = trials = 0
    for _ in range(150):
        records = {
            "a": [_record(float(x)) for x in random.lognormal(0, 0.05, size=5)],
            "b": [_record(float(x)) for x in random.lognormal(0, 0.05, size=4)],
        }
        noise = _noise(records)
        for found in differences(values(records["a"]), values(records["b"]), noise):
            trials += 1
            claimed += found.says in ("more", "less")

    assert trials == 150
    assert claimed <= 6  # Of 150 at 1 %, more than 6 come about once in a thousand times.


def _record(seconds: float) -> Record:
    return Record.model_construct(
        machine=type("M", (), {"name": "m"}),
        probe=type("P", (), {"id": "speed", "revision": "r", "parameters": {}}),
        measure={"kernel_s": seconds},
        parts=[],
    )


def _noise(records: dict[str, list[Record]]) -> Noise:
    class Fixed(StackFindings):
        def counted(self, probe: str) -> list[Record]:
            return records[self.id]

    cells: Any = {"speed": None}
    return Noise({name: Fixed(name, {}, (), cells, {}) for name in records})


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=6), st.floats(-1e6, 1e6))
def test_no_measure_makes_it_fall_over(before: list[float], after: float) -> None:
    records = {"a": [_record(x) for x in before], "b": [_record(after)]}

    found = list(differences(values(records["a"]), values(records["b"]), _noise(records)))

    assert len(found) == (len(before) > LEAST_REPEATS)


def test_the_committed_evidence_tells_what_1_29_1_mends() -> None:
    rooms = Rooms(PROJECT)
    records = [r for _, r in Store(rooms).records() if r.machine.name == "h200-a"]
    everything = compare_all(find(records, load_probe_specs(rooms)), load_components(rooms))

    (found,) = [
        c
        for c in everything
        if c.what == "nvidia-cudnn-frontend"
        and (c.before_version, c.after_version) == ("1.28.0", "1.29.1")
    ]
    changes = {probe.probe: probe.change for probe in found.probes}
    assert changes["empty-rows"] == changes["index-bounds"] == "fixed"
    assert changes["topk-ties"] == "same (fail)"
    assert "broken" not in changes.values()


versions = st.fixed_dictionaries(
    {"torch": st.sampled_from(["2.11.0", "2.13.0"])},
    optional={"flash-mla": st.just("1.0.0"), FE: st.sampled_from(["1.26.0", "1.27.0"])},
)
patch_lists = st.sampled_from(
    [(), (("a", "1"),), (("a", "2"),), (("b", "1"),), (("a", "1"), ("b", "1"))]
)


@given(st.lists(st.tuples(versions, patch_lists), max_size=8, unique_by=repr))
def test_no_pair_is_missed_or_compared_twice(
    chosen: list[tuple[dict[str, str], tuple[tuple[str, str], ...]]],
) -> None:
    findings = {
        f"{number:012d}": StackFindings(f"{number:012d}", asked, patches, {}, {})
        for number, (asked, patches) in enumerate(chosen)
    }

    found = [frozenset((c.before, c.after)) for c in compare_all(findings, {})]

    expected = {
        frozenset((one.id, other.id))
        for one, other in combinations(findings.values(), 2)
        if only_difference(one, other) is not None
    }
    assert len(found) == len(set(found))
    assert set(found) == expected
