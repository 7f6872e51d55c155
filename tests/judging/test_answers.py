"""Questions from the command line: what was asked, and what the evidence answers."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from matrix.components import load_components
from matrix.errors import DataError
from matrix.judging.answers import Answer, Known, answer
from matrix.judging.claims import Claim
from matrix.judging.explanations import explain_failures
from matrix.judging.findings import find
from matrix.judging.questions import fits, given_versions
from matrix.judging.verdicts import judge
from matrix.rooms import Rooms
from matrix.stacks import stack_id
from tests.site.world import MCORE, PROJECT, REQUESTED, World

FE = "nvidia-cudnn-frontend"
DSL = "nvidia-cutlass-dsl"
PARTS = load_components(Rooms(PROJECT))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def ask(world: World, *patches: str, claims: tuple[Claim, ...] = (), **given: str) -> Answer:
    asked = given_versions([f"{name}={version}" for name, version in given.items()], PARTS)
    records, specs = world.records(), world.specs
    findings = find(records, specs)
    known = Known(
        findings=findings,
        verdicts={verdict.stack: verdict for verdict in judge(records, specs)},
        failures=explain_failures(findings, specs, PARTS),
        claims=claims,
        components=PARTS,
        today=dt.date(2026, 11, 2),
    )
    return answer(asked, patches, known)


def passes(world: World, **versions: str) -> None:
    asked = REQUESTED | {name.replace("_", "-"): version for name, version in versions.items()}
    world.passes(requested=asked)


@pytest.mark.parametrize(
    "word",
    [
        "fe=1.26.0",
        "FE=1.26.0",
        "nvidia-cudnn-frontend==1.26.0",
        "nvidia_cudnn_frontend==1.26.0",
        "frontend = 1.26.0",
        "nvidia-cudnn-frontend==1.26.0 ; python_version >= '3.10'",
    ],
)
def test_a_component_by_any_of_its_names(word: str) -> None:
    assert given_versions([word], PARTS) == {FE: "1.26.0"}


def test_a_list_of_packages() -> None:
    freeze = """
# made by hand
torch==2.11.0+cu129
nvidia-cudnn-cu12==9.16.0.29
nvidia-cutlass-dsl==4.5.2
numpy==2.3.0
-e git+https://example.org/somewhere
package @ file:///somewhere
"""
    assert given_versions(freeze.splitlines(), PARTS, strict=False) == {
        "torch": "2.11.0+cu129",
        "nvidia-cudnn": "9.16.0.29",
        DSL: "4.5.2",
    }


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["numpy=2.3.0"], "'numpy=2.3.0' names no component. Components: torch (PyTorch)"),
        (["fe"], "'fe' is not NAME=VERSION"),
        (["fe>=1.26"], "is not NAME=VERSION"),
        (["fe=1.26.0", "FE=1.27.0"], "is given twice: 1.26.0 and 1.27.0"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(DataError) as caught:
        given_versions(words, PARTS)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("given", "have", "fit"),
    [
        ("2.11.0+cu129", "2.11.0", True),
        ("2.11.0", "2.11.0+cu129", True),
        ("2.11.0+cu129", "2.11.0+cu130", False),
        ("2.11", "2.11.0", True),
        ("2.11.1", "2.11.0", False),
        (MCORE[:7], MCORE, True),
        (MCORE[:6], MCORE, False),
        ("1234567", MCORE, False),
        ("none", "none", True),
        ("none", "1.0", False),
        ("1.0", "none", False),
    ],
)
def test_versions_that_fit(given: str, have: str, fit: bool) -> None:
    assert fits(given, have) == fit


def test_a_broken_stack_is_told_since_when_and_what_to_change(world: World) -> None:
    for version in ("1.26.0", "1.28.0"):
        world.run("layout-indices", "fail", "cuda:unknown", requested=REQUESTED | {FE: version})
    passes(world, nvidia_cudnn_frontend="1.29.1")

    found = ask(world, fe="1.26.0")

    (match,) = found.matches
    assert match.verdict == "broken"
    (trouble,) = match.troubles
    assert (trouble.probe, trouble.reason) == ("layout-indices", "cuda:unknown")
    assert trouble.explanation is not None
    assert "passes from 1.29.1" in trouble.explanation
    assert trouble.changes == [f"{FE} 1.29.1"]
    assert trouble.constraints[-1] == f"{FE}>=1.29.1"
    text = "\n".join(found.lines())
    assert "BROKEN: stack" in text
    assert "constraint: nvidia-cudnn-frontend>=1.29.1" in text
    assert "megatron-core 0e6ac576f," in text
    assert "superseded: cuDNN Frontend 1.32.0" in text


def test_of_stacks_equally_far_the_better_and_then_the_more_often_run_is_named(
    world: World,
) -> None:
    world.run("layout-indices", "fail", "cuda:unknown", requested=REQUESTED | {FE: "1.26.0"})
    # It passes this probe, and fails another one.
    world.run("layout-indices", requested=REQUESTED | {FE: "1.27.0"})
    world.run("compile", "fail", "compile:TypeError", requested=REQUESTED | {FE: "1.27.0"})
    for version, times in (("1.28.0", 1), ("1.29.1", 3), ("1.30.0", 2)):
        for _ in range(times):
            passes(world, nvidia_cudnn_frontend=version)

    found = ask(world, fe="1.26.0")

    (trouble,) = found.matches[0].troubles
    assert (trouble.changes, trouble.changed_runs) == ([f"{FE} 1.29.1"], 3)
    there = trouble.changed_stack
    assert f"    passes after: {FE} 1.29.1 (stack {there}, in 3 runs)" in list(found.lines())


def test_passes_of_another_version_of_the_probe_mend_nothing(world: World) -> None:
    world.run("layout-indices", "fail", "cuda:unknown", requested=REQUESTED | {FE: "1.26.0"})
    old, new = REQUESTED | {FE: "1.27.0"}, REQUESTED | {FE: "1.32.0"}
    world.run("layout-indices", requested=old, revision="0123456789abcdef")
    world.run("layout-indices", requested=new)

    (trouble,) = ask(world, fe="1.26.0").matches[0].troubles

    assert trouble.changes == [f"{FE} 1.32.0"]


@pytest.mark.parametrize(("times", "named"), [(2, False), (60, True)])
def test_passes_that_may_be_chance_mend_nothing(world: World, times: int, *, named: bool) -> None:
    for status in ("fail", "pass", "pass"):
        reason = "cuda:unknown" if status == "fail" else None
        world.run("layout-indices", status, reason, requested=REQUESTED | {FE: "1.26.0"})
    for _ in range(times):
        world.run("layout-indices", requested=REQUESTED | {FE: "1.27.0"})

    (trouble,) = ask(world, fe="1.26.0").matches[0].troubles

    assert trouble.changes == ([f"{FE} 1.27.0"] if named else [])
    assert (trouble.changed_stack is not None) == named


def test_what_nobody_ran_is_unknown_and_never_more(world: World) -> None:
    passes(world)
    passes(world, nvidia_cutlass_dsl="4.8.1")

    found = ask(world, fe="1.26.0", dsl="4.7.0")

    assert found.matches == []
    assert sorted(near.differs for near in found.nearest) == [[f"{DSL} 4.5.2"], [f"{DSL} 4.8.1"]]
    assert "Unknown: no run of such a stack." in list(found.lines())


def test_every_stack_that_fits_is_shown_the_best_first(world: World) -> None:
    world.run("compile", "fail", "compile:TypeError")
    passes(world, nvidia_cutlass_dsl="4.8.1")

    found = ask(world, fe="1.26.0")

    assert [match.verdict for match in found.matches] == ["supported", "broken"]
    assert found.nearest == []


def test_patches_must_be_those(world: World) -> None:
    pins = [{"id": "megatron-lm-6848", "head": "b" * 40, "result": "clean"}]
    id_ = stack_id(REQUESTED, (("megatron-lm-6848", "b" * 40),))
    world.run("layout-indices", "fail", "recompiles")
    for probe in ("fingerprint", "compile", "layout-indices"):
        world.run(probe, stack={"id": id_, "patches": pins})

    without, with_ = ask(world, fe="1.26.0"), ask(world, "megatron-lm-6848", fe="1.26.0")

    assert [match.stack for match in with_.matches] == [id_]
    assert [match.patches for match in without.matches] == [[]]
    assert without.matches[0].troubles[0].changes == ["with patch megatron-lm-6848"]


def test_claims_that_are_decided_are_told(world: World) -> None:
    said: dict[str, Any] = {
        "id": "one",
        "statement": "It breaks.",
        "links": ["https://example.org/1"],
        "date": "2026-08-28",
        "level": "hard",
        "basis": "thread",
        "contradiction": "It holds.",
        "expect": [{"probe": "compile", "status": "fail", "each_time": True}],
    }
    untold = said | {"id": "two", "expect": [{"probe": "speed", "status": "pass"}]}
    passes(world)

    found = ask(
        world, claims=(Claim.model_validate(said), Claim.model_validate(untold)), fe="1.26.0"
    )

    assert [(c.claim, c.outcome) for c in found.matches[0].claims] == [("one", "contradicted")]


def command(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "matrix", "ask", *words],
        cwd=PROJECT,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_on_the_committed_evidence() -> None:
    done = command("fe=1.28.0", "dsl=4.8.1", f"mcore={MCORE[:12]}", "tvm=0.1.15.post2")

    assert (done.returncode, done.stderr) == (0, "")
    assert "empty-rows (required): fail" in done.stdout
    # Which version exactly is for the evidence to say, and runs add to it.
    assert re.search(r"constraint: nvidia-cudnn-frontend>=1\.[23]\d\.\d", done.stdout)


def test_the_command_reads_a_list_and_answers_in_json() -> None:
    done = command("--freeze", "-", "--json", stdin="nvidia-cudnn-frontend==1.23.0\nnumpy==2.0\n")

    assert json.loads(done.stdout)["matches"] == []
    assert json.loads(done.stdout)["asked"] == {FE: "1.23.0"}


def test_the_command_without_a_question_ends_with_2() -> None:
    done = command()

    assert done.returncode == 2
    assert "Name at least one component" in done.stderr
