"""Lint of data: every problem found at once, one line each; and schemas that fit the real files."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from matrix.components import load_components
from matrix.data_lint import lint_data
from matrix.keeping.store import Store
from matrix.rooms import Rooms
from matrix.schemas import schema, schema_files
from tests.site.world import PROJECT, REQUESTED, World

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)

CLAIM = """
[[claim]]
id = "one"
statement = "It breaks."
links = ["https://example.org/1"]
date = 2026-08-28
level = "risk"
basis = "thread"
contradiction = "It holds."
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project")
    world.rooms.candidates.mkdir(parents=True)
    world.campaign(reported="4.5.2")
    world.passes()
    return world


def problems(world: World, now: dt.datetime = NOW) -> list[str]:
    return [str(problem) for problem in lint_data(world.rooms, now)]


def only(world: World, now: dt.datetime = NOW) -> str:
    (problem,) = problems(world, now)
    assert "\n" not in problem
    return problem


def claims(world: World, text: str) -> None:
    (world.rooms.catalogue / "claims.toml").write_text(CLAIM + text)


def record_file(world: World) -> Path:
    return next(iter(sorted(world.rooms.evidence.glob("*/*/compile--*.json"))))


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """As a run writes it, with another content."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


def test_a_sound_project_has_no_problem(world: World) -> None:
    claims(world, '[claim.when.versions]\nnvidia-cudnn-frontend = ">=1.24.0,<=1.28.0"')

    assert problems(world) == []


def test_this_project_has_none() -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)

    assert [str(problem) for problem in lint_data(Rooms(PROJECT), later)] == []


def test_evidence_from_the_future(world: World) -> None:
    early = dt.datetime(2026, 11, 1, 13, 30, tzinfo=dt.UTC)
    assert "matrix/evidence/" in only(world, early)
    assert "later than now. Set the clock" in only(world, early)
    assert problems(world, dt.datetime(2026, 11, 1, 15, 0, tzinfo=dt.UTC)) == []


def test_evidence_of_a_probe_that_is_gone(world: World) -> None:
    world.probe("gone", group="functional", required=False, needs=["torch"])
    world.run("gone")
    (world.rooms.probes / "gone.py").unlink()

    assert "there is no probe 'gone'. Bring the probe back" in only(world)


def test_evidence_of_a_component_that_is_gone(world: World) -> None:
    world.run("compile", requested=REQUESTED | {"left-out": "1.0"})

    assert "there is no component 'left-out'" in only(world)


def test_a_lock_that_is_gone(world: World) -> None:
    lock = next(iter(world.rooms.evidence.glob("*/*/lock--*.txt")))
    lock.unlink()

    found = problems(world)
    assert len(found) == 3
    assert all("is not there. Bring it back from git" in line for line in found)


def test_a_lock_that_is_another(world: World) -> None:
    next(iter(world.rooms.evidence.glob("*/*/lock--*.txt"))).write_text("torch==1\n")

    assert "is not the lock of run" in problems(world)[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data.update(status="fine"), "is not an evidence record of schema 1"),
        (lambda data: data["stack"].update(id="0" * 12), "the stack's id is not that of"),
        (lambda data: data["probe"].update(id="other-probe"), "this record belongs at"),
        (lambda data: data.update(extra=1), "Extra inputs are not permitted"),
    ],
)
def test_a_record_that_was_changed(world: World, change: Callable[[Any], None], says: str) -> None:
    rewrite(record_file(world), change)

    assert says in only(world)


def test_every_file_is_looked_at_although_the_first_is_wrong(world: World) -> None:
    record_file(world).write_text("{")
    claims(world, '[claim.when.versions]\ntorhc = ">=2"')
    (world.rooms.campaigns / "other.toml").write_text(
        'reason = "x"\nprobes = []\n[components]\nx=1'
    )

    found = problems(world)

    assert {line.split(":")[0].split(" ")[0] for line in found} == {
        "matrix/catalogue/campaigns/other.toml",
        "matrix/catalogue/claims.toml",
        record_file(world).relative_to(world.root).as_posix(),
    }


def test_the_same_run_twice(world: World) -> None:
    path = record_file(world)
    other = path.parents[2] / "elsewhere" / path.parent.name
    other.mkdir(parents=True)
    for lock in path.parent.glob("lock--*.txt"):
        (other / lock.name).write_bytes(lock.read_bytes())
    copy = other / path.name
    copy.write_bytes(path.read_bytes())
    rewrite(copy, lambda data: data["machine"].update(name="elsewhere"))

    assert "is in matrix/evidence/elsewhere/" in only(world)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[claim.when.versions]\nnvidia-cudnn-frontend = ">=1.99.0"', "1.99.0 is neither in"),
        ('[claim.when.versions]\nnvidia-cudnn-frontend = "==1.26.0,!=1.26.9"', "1.26.9 is neither"),
        (f'[claim.when.revisions]\nmegatron-core = ["{"c" * 40}"]', "is neither in the catalogue"),
        ('[claim.when]\nwith_patches = ["megatron-lm-1"]', "there is no candidate 'megatron-lm-1'"),
        ('[claim.when]\nwithout_patches = ["nothing"]', "there is no candidate 'nothing'"),
    ],
)
def test_claims_name_what_exists(world: World, text: str, says: str) -> None:
    claims(world, text)

    assert only(world).startswith("matrix/catalogue/claims.toml: claim 'one'")
    assert says in only(world)


@pytest.mark.parametrize(
    "bounds", ["<1.99.0", ">=1.24", "==1.26.*", ">=1.33.0.dev1", "any", "none"]
)
def test_bounds_that_need_no_release_of_their_own(world: World, bounds: str) -> None:
    claims(world, f'[claim.when.versions]\nnvidia-cudnn-frontend = "{bounds}"')

    assert problems(world) == []


def test_a_claim_without_a_date(world: World) -> None:
    path = world.rooms.catalogue / "claims.toml"
    path.write_text(CLAIM.replace("date = 2026-08-28\n", ""))

    assert "claim.0.date: Field required" in only(world)


def test_a_claim_of_tomorrow(world: World) -> None:
    path = world.rooms.catalogue / "claims.toml"
    path.write_text(CLAIM.replace("2026-08-28", "2026-12-02"))

    assert "2026-12-02 is still to come" in only(world)


@pytest.mark.parametrize("address", ["http://example.org/1", "https://me@example.org/1"])
def test_links_are_https(world: World, address: str) -> None:
    path = world.rooms.catalogue / "claims.toml"
    path.write_text(CLAIM.replace("https://example.org/1", address))

    assert only(world) == (
        f"matrix/catalogue/claims.toml: claim 1.links: {address!r} is no https address. Correct it."
    )


def test_a_campaign_names_what_exists(world: World) -> None:
    world.campaign("wide", newest="9.9.9")

    assert only(world) == (
        "matrix/catalogue/campaigns/wide.toml: stack 'newest': nvidia-cutlass-dsl 9.9.9 is neither "
        "in the catalogue nor in any record. Add it to components.toml with a reason and a link, "
        "or correct it."
    )


def test_a_version_that_only_evidence_has_is_known(world: World) -> None:
    world.campaign("wide", newest="9.9.9")
    world.run("compile", requested=REQUESTED | {"nvidia-cutlass-dsl": "9.9.9"})

    assert problems(world) == []


def test_a_broken_catalogue_is_one_problem_and_no_crash(world: World) -> None:
    (world.rooms.catalogue / "components.toml").write_text("[[component]]\nname = 1")

    assert "components.toml does not fit the catalogue's form" in only(world)


def test_the_command_ends_with_2_on_problems_and_0_without(world: World) -> None:
    command = [sys.executable, "-m", "matrix", "--root", str(world.root), "lint"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)

    good = run()
    assert (good.returncode, good.stderr) == (0, "")
    world.campaign("wide", newest="9.9.9")
    bad = run()
    assert (bad.returncode, bad.stdout.count("\n")) == (2, 1)
    assert bad.stderr == "error: 1 problem in the data.\n"


# --- Schemas -----------------------------------------------------------------------------------

FORMS = {
    "components": "matrix/catalogue/components.toml",
    "claims": "matrix/catalogue/claims.toml",
    "campaign": "matrix/catalogue/campaigns/*.toml",
    "candidate": "patches/candidates/*.toml",
    "evidence": "matrix/evidence/*/*/*.json",
}


def read(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    data = tomllib.loads(path.read_text())
    return json.loads(json.dumps(data, default=lambda value: value.isoformat()))


@pytest.mark.parametrize("form", FORMS)
def test_real_files_fit_their_published_schema(form: str) -> None:
    Draft202012Validator.check_schema(schema(form))
    validator = Draft202012Validator(schema(form))
    files = sorted(PROJECT.glob(FORMS[form]))
    assert files
    for path in files:
        assert [error.message for error in validator.iter_errors(read(path))] == [], path


@pytest.mark.parametrize("form", FORMS)
def test_an_unknown_key_does_not_fit(form: str) -> None:
    data = read(min(PROJECT.glob(FORMS[form]))) | {"typing_mistake": 1}

    assert list(Draft202012Validator(schema(form)).iter_errors(data))


def test_a_campaign_needs_no_name_and_a_candidate_no_id() -> None:
    assert "name" not in schema("campaign")["required"]
    assert "id" not in schema("candidate")["required"]
    assert "id" in schema("claims")["$defs"]["Claim"]["required"]


def test_schemas_are_files_to_publish() -> None:
    files = schema_files()

    assert set(files) == {f"api/v1/schemas/{form}.schema.json" for form in FORMS}
    assert all(json.loads(text)["title"].startswith("Form of") for text in files.values())
    assert files == schema_files()


def test_every_record_of_a_store_fits(world: World) -> None:
    assert load_components(world.rooms)
    validator = Draft202012Validator(schema("evidence"))
    for path, _ in Store(world.rooms).records():
        validator.validate(read(path))


def test_the_site_publishes_the_schemas(world: World) -> None:
    from matrix.site import render

    written = render(world.rooms)

    for name, text in schema_files().items():
        path = world.rooms.docs / name
        assert path in written
        assert path.read_text() == text
