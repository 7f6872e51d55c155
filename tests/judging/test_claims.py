"""Claims: read, refused, and judged by evidence alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.components import load_components
from matrix.errors import DataError
from matrix.judging.claim_judging import ClaimOnStack, judge_claim, judge_claims
from matrix.judging.claims import Claim, load_claims
from matrix.judging.findings import StackFindings, find
from matrix.keeping.store import Store
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.stacks import Stack
from tests.site.world import BLACKWELL, PROJECT, REQUESTED, World

HEAD = """
[[claim]]
id = "empty-rows"
statement = "Rows of length zero crash."
links = ["https://example.org/pull/785"]
date = 2026-08-28
level = "risk"
basis = "thread"
contradiction = "They do not."
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def claim(when: dict[str, Any] | None = None, *expect: dict[str, Any]) -> Claim:
    return Claim.model_validate(
        {
            "id": "one",
            "statement": "it breaks",
            "links": ["https://example.org/1"],
            "date": "2026-08-28",
            "level": "risk",
            "basis": "thread",
            "contradiction": "it holds",
            "when": when or {},
            "expect": list(expect)
            or [{"probe": "layout-indices", "status": "fail", "reasons": ["cuda:*"]}],
        }
    )


def judged(world: World, asked: Claim) -> ClaimOnStack:
    (stack,) = find(world.records(), world.specs).values()
    return judge_claim(asked, stack, load_components(world.rooms))


FAILS = {"probe": "layout-indices", "status": "fail", "reasons": ["cuda:*", "timeout"]}
PASSES = {"probe": "layout-indices", "status": "pass"}


def test_a_failure_as_foretold_confirms_with_its_run(world: World) -> None:
    run = world.run("layout-indices", "fail", "cuda:illegal-address")

    found = judged(world, claim({}, FAILS))

    assert (found.outcome, found.runs_for) == ("confirmed", [run.run.id])
    assert found.reason == "layout-indices: fail cuda:* or timeout, in 1 of 1 run"


def test_one_failure_among_passes_still_confirms(world: World) -> None:
    world.passes("layout-indices", times=5)
    world.run("layout-indices", "fail", "cuda:unknown")

    assert judged(world, claim({}, FAILS)).outcome == "confirmed"
    assert judged(world, claim({}, FAILS | {"each_time": True})).outcome == "confirmed"
    assert judged(world, claim({}, PASSES)).outcome == "contradicted"


def test_a_possible_failure_is_not_contradicted_by_its_absence(world: World) -> None:
    world.passes("layout-indices", times=50)

    found = judged(world, claim({}, FAILS))

    assert found.outcome == "untested"
    assert found.reason.endswith("not seen in 50 runs, which excludes nothing")


def test_a_failure_each_time_is_contradicted_by_a_pass(world: World) -> None:
    world.passes("layout-indices")

    found = judged(world, claim({}, FAILS | {"each_time": True}))

    assert found.outcome == "contradicted"
    assert len(found.runs_against) == 1


@pytest.mark.parametrize("wanted", [FAILS, FAILS | {"each_time": True}])
def test_a_failure_of_another_kind_tells_nothing(world: World, wanted: dict[str, Any]) -> None:
    world.run("layout-indices", "fail", "call:TypeError")

    found = judged(world, claim({}, wanted))

    assert found.outcome == "untested"
    assert found.reason.endswith("1 run ended otherwise and can't tell")


@pytest.mark.parametrize(
    ("status", "reason"),
    [("error", "control:not-caught"), ("void", "loaded:mismatch"), ("miss", "machine:no-gpu")],
)
def test_what_says_nothing_of_the_software_confirms_nothing(
    world: World, status: str, reason: str
) -> None:
    world.run("layout-indices", status, reason)

    for expected in (FAILS | {"each_time": True}, PASSES):
        assert judged(world, claim({}, expected)).outcome == "untested"


def test_only_named_failures_contradict_a_pass(world: World) -> None:
    world.run("layout-indices", "fail", "numerics")

    narrow = PASSES | {"reasons": ["cuda:*"]}
    assert judged(world, claim({}, narrow)).outcome == "untested"
    assert judged(world, claim({}, PASSES)).outcome == "contradicted"


def test_a_part_can_tell_what_the_run_as_a_whole_does_not(world: World) -> None:
    parts = [
        {"name": "mode 0", "status": "fail", "reason": "numerics"},
        {"name": "mode 1", "status": "fail", "reason": "recompiles"},
        {"name": "mode 2", "status": "pass"},
    ]
    world.run("layout-indices", "fail", "numerics", parts=parts)

    wanted = {"probe": "layout-indices", "status": "fail", "reasons": ["recompiles"]}
    assert judged(world, claim({}, wanted)).outcome == "untested"
    assert judged(world, claim({}, wanted | {"part": "mode *"})).outcome == "confirmed"
    assert judged(world, claim({}, PASSES | {"part": "mode 2"})).outcome == "confirmed"
    assert judged(world, claim({}, PASSES | {"part": "mode *"})).outcome == "contradicted"
    assert judged(world, claim({}, PASSES | {"part": "mode 9"})).outcome == "untested"


def test_a_question_that_does_not_apply_can_be_expected(world: World) -> None:
    world.run("layout-indices", "skip", "upstream:absent")
    wanted = {"probe": "layout-indices", "status": "skip", "reasons": ["upstream:absent"]}

    assert judged(world, claim({}, wanted)).outcome == "confirmed"


def test_an_answer_contradicts_that_a_question_does_not_apply(world: World) -> None:
    world.run("layout-indices")

    wanted = {"probe": "layout-indices", "status": "skip"}
    assert judged(world, claim({}, wanted)).outcome == "contradicted"


@pytest.mark.parametrize(
    ("expected", "outcome"),
    [
        ({"equals": True}, "contradicted"),
        ({"equals": False}, "confirmed"),
        ({"measure": "compiles_count", "at_least": 3}, "confirmed"),
        ({"measure": "compiles_count", "at_most": 2}, "contradicted"),
        ({"measure": "never_measured", "equals": 1}, "untested"),
    ],
)
def test_measures(world: World, expected: dict[str, Any], outcome: str) -> None:
    world.run("layout-indices", measure={"takes_offsets": False, "compiles_count": 3})

    wanted = {"probe": "layout-indices", "measure": "takes_offsets"} | expected
    assert judged(world, claim({}, wanted)).outcome == outcome


def test_a_lock(world: World) -> None:
    world.passes("fingerprint")

    has = {"package": "nvidia-cutlass-dsl", "versions": ">=4.5"}
    lacks = {"package": "nvidia-cutlass-dsl-libs-cu13", "versions": "any"}
    assert judged(world, claim({}, has)).outcome == "confirmed"
    assert judged(world, claim({}, lacks)).outcome == "contradicted"
    assert judged(world, claim({}, lacks | {"versions": "none"})).outcome == "confirmed"
    assert judged(world, claim({"locked": {lacks["package"]: "any"}}, has)).outcome == "untested"


@pytest.mark.parametrize(
    ("when", "applies"),
    [
        ({"versions": {"nvidia-cudnn-frontend": ">=1.24.0,<=1.28.0"}}, True),
        ({"versions": {"nvidia-cudnn-frontend": ">1.26.0"}}, False),
        ({"versions": {"flash-mla": "none"}}, True),
        ({"versions": {"flash-mla": "any"}}, False),
        ({"versions": {"megatron-core": ">=0.1"}}, False),
        ({"revisions": {"megatron-core": [REQUESTED["megatron-core"]]}}, True),
        ({"revisions": {"megatron-core": ["a" * 40]}}, False),
        ({"published": {"nvidia-cudnn-frontend": {"since": "2026-07-06"}}}, True),
        ({"published": {"nvidia-cudnn-frontend": {"until": "2026-07-05"}}}, False),
        ({"published": {"nvidia-cudnn": {"since": "2020-01-01"}}}, False),
        ({"with_patches": ["megatron-lm-6206"]}, False),
        ({"without_patches": ["megatron-lm-6206"]}, True),
    ],
)
def test_conditions_on_a_stack(world: World, when: dict[str, Any], applies: bool) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")

    found = judged(world, claim(when, FAILS))

    assert found.outcome == ("confirmed" if applies else "not applicable")


@pytest.mark.parametrize(
    "when", [{"sm": ["sm100"]}, {"python": ">=3.13"}, {"torch_cuda": ">=13"}, {"sm": ["sm80"]}]
)
def test_runs_under_other_conditions_leave_a_claim_untested(
    world: World, when: dict[str, Any]
) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")

    assert judged(world, claim(when, FAILS)).outcome == "untested"


def test_a_run_on_another_architecture_is_none_of_a_gpu_probe(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:unknown", machine=BLACKWELL)

    assert judged(world, claim({"sm": ["sm100"]}, FAILS)).outcome == "untested"


def test_by_date_1_29_1_comes_after_1_31_0(world: World) -> None:
    when = {"published": {"nvidia-cudnn-frontend": {"since": "2026-10-09", "until": "2026-10-26"}}}
    outcomes = {}
    for version in ("1.29.1", "1.30.0", "1.31.0", "1.32.0"):
        stack = Stack(REQUESTED | {"nvidia-cudnn-frontend": version})
        (found,) = find([], world.specs, [stack]).values()
        outcomes[version] = judge_claim(claim(when), found, load_components(world.rooms)).outcome

    assert outcomes == {
        "1.29.1": "untested",
        "1.30.0": "not applicable",
        "1.31.0": "not applicable",
        "1.32.0": "not applicable",
    }


def test_an_answer_of_an_older_probe_says_so(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:unknown", revision="0123456789abcdef")

    found = judged(world, claim({}, FAILS))

    assert (found.outcome, found.older_probe) == ("confirmed", True)


def test_over_stacks_both_outcomes_are_a_dispute(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:unknown")
    world.run("layout-indices", requested=REQUESTED | {"nvidia-cutlass-dsl": "4.5.0"})

    (found,) = judge_claims(
        [claim({}, FAILS | {"each_time": True})],
        find(world.records(), world.specs),
        load_components(world.rooms),
    )

    assert found.outcome == "disputed"
    assert found.summary == "confirmed on 1, contradicted on 1 of 2 stacks"


@given(
    st.lists(st.sampled_from(["error", "void", "miss", "nothing"]), max_size=4),
    st.sampled_from(["pass", "fail"]),
    st.booleans(),
)
def test_absence_never_confirms_nor_contradicts(
    tmp_path_factory: pytest.TempPathFactory, seen: list[str], status: str, each_time: bool
) -> None:
    world = World(tmp_path_factory.mktemp("claims") / "project")
    reasons = {"error": "probe:no-check", "void": "loaded:mismatch", "miss": "machine:killed"}
    for one in seen:
        if one != "nothing":
            world.run("layout-indices", one, reasons[one])
    wanted: dict[str, Any] = {"probe": "layout-indices", "status": status}
    if status == "fail":
        wanted["each_time"] = each_time

    findings = find(world.records(), world.specs, [Stack(REQUESTED)])
    (stack,) = findings.values()

    assert judge_claim(claim({}, wanted), stack, {}).outcome == "untested"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD.replace("date = 2026-08-28\n", ""), "claim.0.date: Field required"),
        (HEAD.replace("https:", "nowhere:"), "claim.0.links.0"),
        (HEAD + HEAD, "claim 'empty-rows' is there twice"),
        (HEAD + '[claim.when.versions]\ntorhc = ">=2"', "unknown component 'torhc'"),
        (HEAD + '[claim.when.versions]\ntorch = "newer"', "'newer' is no version specifier"),
        (HEAD + '[claim.when.revisions]\ntorch = ["1"]', "torch has no revisions"),
        (HEAD + '[claim.when.revisions]\nmegatron-core = ["0e6ac57"]', "is not a full commit SHA"),
        (HEAD + '[[claim.expect]]\nprobe = "sums"\nstatus = "pass"', "unknown probe 'sums'"),
        (
            HEAD + '[[claim.expect]]\nprobe = "speed"\nstatus = "pass"\neach_time = true',
            "`each_time` is said of failures",
        ),
        (HEAD + '[[claim.expect]]\nprobe = "speed"\nmeasure = "s"', "a measure needs one of"),
    ],
)
def test_a_faulty_file_is_refused_with_its_place(world: World, text: str, says: str) -> None:
    (world.rooms.catalogue / "claims.toml").write_text(text)

    with pytest.raises(DataError) as caught:
        load_claims(world.rooms, load_components(world.rooms), world.specs)

    assert str(caught.value).startswith("matrix/catalogue/claims.toml")
    assert says in str(caught.value)


def test_no_file_is_no_claim(world: World) -> None:
    found = load_claims(world.rooms, load_components(world.rooms), world.specs)

    assert (found.claims, found.reported) == ([], None)


# What the committed evidence of an H200 shows: (frontend, DSL) -> outcome.
SHOWN: dict[str, dict[tuple[str, str], str]] = {
    "fe-empty-rows": {
        ("1.26.0", "4.5.2"): "confirmed",
        ("1.28.0", "4.8.1"): "confirmed",
        ("1.25.0", "4.5.2"): "untested",
        ("1.29.1", "4.8.1"): "not applicable",
    },
    "fe-1.29-range-checks": {("1.29.1", "4.8.1"): "confirmed", ("1.32.0", "4.8.1"): "confirmed"},
    "fe-topk-lanes": {("1.25.0", "4.5.2"): "confirmed", ("1.26.0", "4.8.1"): "confirmed"},
    "fe-1.27-topk-lanes": {("1.27.0", "4.8.1"): "confirmed"},
    "fe-default-stream-race": {("1.26.0", "4.5.2"): "confirmed", ("1.26.0", "4.8.1"): "confirmed"},
    "fe-1.24-1.26-need-dsl-4.5.0": {
        ("1.25.0", "4.5.2"): "confirmed",
        ("1.26.0", "4.5.2"): "contradicted",
        ("1.26.0", "4.8.1"): "contradicted",
    },
    "dsl-4.5-atomicrmw-as-fe-1.25-calls-it": {("1.25.0", "4.5.2"): "contradicted"},
    "mcore-layout-cache": {("1.32.0", "4.8.1"): "confirmed"},
    "stack-miles-h200": {("1.28.0", "4.8.1"): "not applicable"},
}


@pytest.fixture(scope="module")
def real() -> tuple[Rooms, dict[str, StackFindings]]:
    rooms = Rooms(PROJECT)
    records = (record for _, record in Store(rooms).records())
    on_h200 = (record for record in records if record.machine.name == "h200-a")
    return rooms, find(on_h200, load_probe_specs(rooms))


@pytest.mark.parametrize("name", SHOWN)
def test_real_claims_on_real_evidence(
    real: tuple[Rooms, dict[str, StackFindings]], name: str
) -> None:
    rooms, findings = real
    components = load_components(rooms)
    claims = {c.id: c for c in load_claims(rooms, components, load_probe_specs(rooms)).claims}

    found: dict[tuple[str, str], set[str]] = {}
    for stack in findings.values():
        key = (stack.requested["nvidia-cudnn-frontend"], stack.requested["nvidia-cutlass-dsl"])
        outcome = judge_claim(claims[name], stack, components).outcome
        found.setdefault(key, set()).add(outcome)

    for key, outcome in SHOWN[name].items():
        assert found[key] == {outcome}, key


def test_every_real_claim_can_be_put_to_a_stack_without_evidence() -> None:
    rooms = Rooms(PROJECT)
    specs, components = load_probe_specs(rooms), load_components(rooms)
    claims = load_claims(rooms, components, specs).claims

    judged_claims = judge_claims(claims, find([], specs, [Stack(REQUESTED)]), components)

    assert {verdict.outcome for verdict in judged_claims} <= {"untested", "not applicable"}
