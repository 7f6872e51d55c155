"""Verdicts, each from a tiny world of real records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.judging.findings import find
from matrix.judging.verdicts import CellVerdict, StackVerdict, judge, judge_stack
from matrix.keeping.records import Record
from tests.site.world import BLACKWELL, CPU, GPU, OTHER_GPU, REQUESTED, World

CLAIM = {"claim": "frontend[cutedsl] requires dsl==4.5.0", "asked": "dsl 4.5.2"}
OLD = "0123456789abcdef"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def verdict(world: World) -> StackVerdict:
    (only,) = judge(world.records(), world.specs)
    return only


def cell(world: World, probe: str) -> CellVerdict:
    found = verdict(world).cell(probe)
    assert found is not None
    return found


def test_supported_when_every_required_probe_passed(world: World) -> None:
    world.passes()

    found = verdict(world)

    assert found.verdict == "supported"
    assert found.notes == []
    assert found.weakest == "layout-indices"
    assert "0 of 1 failed: failure rate below 95 % at 95 % confidence (weak)" in found.summary


def test_strength_is_that_of_the_required_probe_with_the_fewest_runs(world: World) -> None:
    world.passes("fingerprint")
    world.passes("compile", times=2)
    world.passes("layout-indices", times=4)

    found = verdict(world)

    assert found.weakest == "compile"
    assert found.strength is not None
    assert found.strength.runs == 2


def test_broken_names_the_first_failing_required_probe(world: World) -> None:
    world.passes("fingerprint")
    world.run("layout-indices", "fail", "numerics")
    world.run("compile", "fail", "compile:TypeError", detail="no overload")

    found = verdict(world)

    assert found.verdict == "broken"
    assert (found.probe, found.reason) == ("compile", "compile:TypeError")
    assert "1 of 1 run failed" in found.summary
    assert "seen on one machine (h200-a)" in found.summary


def test_broken_even_while_other_probes_are_missing(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:illegal-address")

    assert verdict(world).verdict == "broken"


def test_cannot_install(world: World) -> None:
    world.run("fingerprint", "fail", "resolve:conflict", machine=CPU, detail="a needs b")

    found = verdict(world)

    assert found.verdict == "cannot install"
    assert found.reason == "resolve:conflict"


def test_a_conflict_counts_although_the_machine_lacks_a_component(world: World) -> None:
    world.run(
        "fingerprint",
        "fail",
        "resolve:conflict",
        machine=CPU,
        stack={"absent": {"torch": "machine:no-torch"}},
    )

    assert verdict(world).verdict == "cannot install"


def test_unknown_names_what_is_missing(world: World) -> None:
    world.passes("fingerprint", "compile", machine=CPU)
    world.run("layout-indices", "miss", "machine:no-gpu", machine=CPU)

    found = verdict(world)

    assert found.verdict == "unknown"
    assert found.missing == ["layout-indices (not run, machine:no-gpu)"]
    assert cell(world, "layout-indices").words == "not run"


def test_a_planned_stack_without_evidence_is_unknown(world: World) -> None:
    (found,) = judge([], world.specs, ["aaaaaaaaaaaa"])

    assert found.verdict == "unknown"
    assert {c.status for c in found.cells} == {"not run"}
    assert found.newest is None


def test_no_required_probe_is_never_supported(world: World) -> None:
    world.run("speed")

    (found,) = judge(world.records(), {"speed": world.specs["speed"]})

    assert found.verdict == "unknown"


def test_flaky_required_probe_is_a_caveat_with_numbers(world: World) -> None:
    world.passes(times=9)
    world.run("layout-indices", "fail", "cuda:invalid-value", machine=OTHER_GPU)

    found = verdict(world)
    flaky = cell(world, "layout-indices")

    assert found.verdict == "caveat"
    assert (flaky.status, flaky.words) == ("flaky", "flaky, 1 of 10 failed")
    assert flaky.reasons == {"cuda:invalid-value": 1}
    assert flaky.failed_on == ["h200-b"]
    assert found.notes[0].text == (
        "layout-indices: 1 of 10 runs failed (cuda:invalid-value), seen on one machine (h200-b)."
    )


def test_a_majority_of_failures_is_still_flaky(world: World) -> None:
    world.passes()
    for _ in range(9):
        world.run("layout-indices", "fail", "numerics")

    assert cell(world, "layout-indices").status == "flaky"


def test_failure_on_two_machines_is_not_marked(world: World) -> None:
    world.run("layout-indices", "fail", "numerics")
    world.run("layout-indices", "fail", "numerics", machine=OTHER_GPU)

    found = cell(world, "layout-indices")

    assert not found.one_machine
    assert "seen on one machine" not in verdict(world).summary


def test_failing_informative_probe_is_a_caveat(world: World) -> None:
    world.passes()
    world.run("speed", "fail", "recompiles")

    found = verdict(world)

    assert found.verdict == "caveat"
    assert [(note.kind, note.probes) for note in found.notes] == [("informative", ["speed"])]


def test_missing_informative_probe_is_no_caveat(world: World) -> None:
    world.passes()
    world.run("speed", "miss", "machine:no-gpu", machine=CPU)

    assert verdict(world).verdict == "supported"


def test_contradicted_claim_is_a_note_and_no_downgrade(world: World) -> None:
    world.passes(stack={"contradicted": [CLAIM]})

    found = verdict(world)

    assert found.verdict == "supported"
    (note,) = found.notes
    assert (note.number, note.kind) == (1, "contradicted")
    assert "dsl==4.5.0. This stack has dsl 4.5.2." in note.text


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("error", "probe:ValueError"),
        ("void", "loaded:mismatch"),
        ("miss", "machine:killed"),
        ("skip", "upstream:absent"),
    ],
)
def test_other_statuses_count_neither_for_nor_against(
    world: World, status: str, reason: str
) -> None:
    world.passes("fingerprint", "compile")
    world.run("layout-indices", status, reason)

    alone = cell(world, "layout-indices")
    unknown = verdict(world).verdict
    world.passes("layout-indices")
    beside = cell(world, "layout-indices")

    assert (alone.status, alone.counted, alone.reason) == (status, 0, reason)
    assert unknown == "unknown"
    assert (beside.status, beside.counted, beside.uncounted) == ("pass", 1, {status: 1})
    assert verdict(world).verdict == "supported"


def test_the_most_telling_uncounted_status_is_shown(world: World) -> None:
    world.run("layout-indices", "void", "loaded:mismatch")
    world.run("layout-indices", "miss", "machine:no-gpu", machine=CPU)

    assert cell(world, "layout-indices").status == "void"


def test_a_run_that_missed_a_wrong_answer_does_not_count(world: World) -> None:
    world.passes()
    blind = {"name": "rows swapped", "failed": False}
    world.run("layout-indices", "fail", "numerics", control=[blind])

    found = cell(world, "layout-indices")

    assert (found.status, found.counted, found.failed) == ("pass", 1, 0)
    assert found.runs[0].why_not == "a wrong answer went unnoticed: rows swapped"


def test_runs_of_an_older_probe_are_listed_but_not_counted(world: World) -> None:
    world.run("layout-indices", "fail", "numerics", revision=OLD)
    world.passes()

    found = cell(world, "layout-indices")

    assert (found.status, found.counted, len(found.runs)) == ("pass", 1, 2)
    assert found.runs[1].why_not == "made with another version of the probe"
    assert not found.probe_changed
    assert verdict(world).verdict == "supported"


def test_evidence_of_a_changed_probe_stands_with_a_note(world: World) -> None:
    world.passes("fingerprint", "compile")
    world.run("layout-indices", revision=OLD)

    found = verdict(world)

    assert found.verdict == "supported"
    assert [note.kind for note in found.notes] == ["older-probe"]


def test_a_machine_without_gpu_does_not_hide_what_a_gpu_showed(world: World) -> None:
    world.run("layout-indices", "fail", "numerics", revision=OLD)
    world.run("layout-indices", "miss", "machine:no-gpu", machine=CPU)

    assert cell(world, "layout-indices").status == "fail"


def test_gpu_probe_is_judged_on_its_architecture_alone(world: World) -> None:
    world.passes("fingerprint", "compile")
    world.run("layout-indices", machine=BLACKWELL)

    found = cell(world, "layout-indices")

    assert (found.status, found.counted) == ("not run", 0)
    assert found.words == "1 run not counted"
    assert found.detail == "the probe needs sm90; this machine has sm100"
    assert verdict(world).verdict == "unknown"


def test_a_failure_on_another_architecture_is_no_failure_here(world: World) -> None:
    world.passes()
    world.run("layout-indices", "fail", "numerics", machine=BLACKWELL)

    assert verdict(world).verdict == "supported"


def test_under_a_sanitizer_only_what_it_finds_counts(world: World) -> None:
    world.passes()
    crash = world.run("layout-indices", "fail", "exit:86")
    found = world.run("compile", "fail", "sanitizer:memcheck")
    records = [
        record.model_copy(
            update={
                "probe": record.probe.model_copy(update={"parameters": {"sanitize": "memcheck"}})
            }
        )
        if record in (crash, found)
        else record
        for record in world.records()
    ]

    judged = judge_stack(crash.stack.id, records, world.specs)

    assert [cell.status for cell in judged.cells if cell.probe == "layout-indices"] == ["pass"]
    assert [cell.status for cell in judged.cells if cell.probe == "compile"] == ["flaky"]


def test_a_run_without_a_needed_component_is_not_counted(world: World) -> None:
    world.run("compile", "pass", stack={"absent": {"nvidia-cutlass-dsl": "install:failed"}})

    found = cell(world, "compile")

    assert found.status == "not run"
    assert found.runs[0].why_not == "the machine could not provide nvidia-cutlass-dsl"


def test_a_stack_run_without_a_component_is_not_supported(world: World) -> None:
    world.passes("fingerprint", "layout-indices")
    world.run("compile", machine=CPU, stack={"absent": {"torch": "machine:no-torch"}})

    found = verdict(world)

    assert cell(world, "compile").lacked == ["torch"]
    assert found.verdict == "unknown"
    assert found.missing == ["compile (run only without torch)"]


def test_a_retired_probe_is_shown_but_judges_nothing(world: World) -> None:
    world.passes()
    world.run("old-probe", "fail", "numerics", revision=OLD)

    found = verdict(world)

    assert found.cells[-1].probe == "old-probe"
    assert found.verdict == "supported"


def test_a_health_probe_judges_no_stack(world: World) -> None:
    world.probe("health", group="health", required=True, needs=["gpu:sm90", "torch"])
    world.passes()
    world.run("health", "fail", "numerics")

    found = verdict(world)

    assert found.verdict == "supported"
    assert found.cell("health") is None


def test_stacks_are_kept_apart(world: World) -> None:
    world.passes()
    world.run("compile", "fail", "numerics", requested=REQUESTED | {"torch": "2.12.0"})

    assert sorted(v.verdict for v in judge(world.records(), world.specs)) == ["broken", "supported"]


OUTCOMES = [
    ("pass", None),
    ("fail", "numerics"),
    ("error", "probe:KeyError"),
    ("void", "loaded:mismatch"),
    ("miss", "machine:killed"),
    ("skip", "upstream:absent"),
]
RUNS = st.lists(
    st.tuples(
        st.sampled_from(["fingerprint", "compile", "layout-indices", "speed"]),
        st.sampled_from(OUTCOMES),
        st.sampled_from([GPU, OTHER_GPU, BLACKWELL, CPU]),
        st.sampled_from([None, OLD]),
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("property") / "project")


@given(data=st.data(), runs=RUNS)
def test_green_needs_evidence_whatever_happened(
    template: World, data: st.DataObject, runs: list[tuple[str, tuple[str, str | None], dict, str]]
) -> None:
    """No stack is supported without a counted pass in every required cell, in any order of runs."""
    specs = template.specs
    records: list[Record] = []
    base = _base(template)
    for number, (probe, (status, reason), machine, revision) in enumerate(runs):
        changed = base | {
            "run": {
                "id": f"20261101T000000Z-{number:08x}",
                "started": "2026-11-01T00:00:00Z",
                "seconds": 1,
            },
            "machine": machine,
            "probe": {"id": probe, "revision": revision or specs[probe].revision, "parameters": {}},
            "status": status,
            "reason": reason,
        }
        records.append(Record.model_validate(changed))

    found = judge(records, specs, ["aaaaaaaaaaaa"])
    shuffled = judge(data.draw(st.permutations(records)), specs, ["aaaaaaaaaaaa"])

    assert found == shuffled
    for stack in found:
        for one in stack.cells:
            assert one.counted + sum(one.uncounted.values()) == len(one.runs)
            assert (one.status in ("pass", "flaky", "fail")) == (one.counted > 0)
            assert one.status != "pass" or one.failed == 0
            if one.probe in ("layout-indices", "speed"):
                assert all(run.sm == "sm90" for run in one.runs if run.counted)
        if stack.verdict == "supported":
            assert all(c.status == "pass" for c in stack.cells if c.required)


def _base(world: World) -> dict:
    if not world.made:
        world.run("compile")
    return world.records()[0].model_dump(mode="json", by_alias=True)


def test_what_ran_where_chance_decided_whose_files_stand_does_not_count(world: World) -> None:
    def gate(text: str) -> None:
        loaded = {
            "nvidia-cutlass-dsl": {
                "version": "4.5.2",
                "origin": "environment",
                "notes": {"overwrites: libs-base + libs-cu13": text},
            }
        }
        world.run("fingerprint", stack={"loaded": loaded})

    gate("99 paths: libs-base won 24, libs-cu13 won 75; such as x.so")
    world.run("compile", "fail", "compile:TypeError")
    mixed, line = verdict(world), cell(world, "compile").runs[0]
    gate("99 paths: libs-cu13 won 99; such as x.so")
    world.passes("compile", "layout-indices")
    settled = verdict(world)

    assert (mixed.verdict, cell(world, "compile").failed) == ("unknown", 0)
    assert not line.counted
    assert line.why_not == (
        "its environment was left to chance: 99 paths: libs-base won 24, libs-cu13 won 75"
    )
    assert settled.verdict == "supported"
    assert [note.kind for note in settled.notes] == ["overwritten"]
    assert "libs-base and libs-cu13 write 99 of the same paths" in settled.notes[0].text
    assert find(world.records(), world.specs)[settled.stack].cells["compile"].counted == 1
