"""What is published, from whole tiny worlds."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

import matrix.site.compared
import matrix.site.publish
import matrix.site.published
from matrix.errors import DataError, MatrixError
from matrix.site import load_matrix, render
from matrix.site.published import from_text, to_text
from tests.site.world import CPU, MCORE, OTHER_GPU, PROBES, REQUESTED, REQUIRED, TREE, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


def published(world: World) -> dict:
    render(world.rooms)
    return json.loads((world.rooms.docs / "api/v1/matrix.json").read_bytes())


def every_file(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_without_evidence_the_planned_stacks_are_unknown(world: World) -> None:
    world.campaign(reported="4.5.2", newest="4.8.1")

    data = published(world)

    assert data["data_date"] is None
    assert [stack["title"] for stack in data["stacks"]] == ["reported", "newest"]
    assert {stack["verdict"] for stack in data["stacks"]} == {"unknown"}
    home = (world.rooms.docs / "index.md").read_text()
    assert "No evidence yet" in home
    assert "mx-s-pass" not in home.split("## How to read it")[0]


def test_nothing_at_all(world: World) -> None:
    assert published(world)["stacks"] == []


def test_every_record_and_lock_is_published_beside_the_pages(world: World) -> None:
    world.run("compile")

    (stack,) = published(world)["stacks"]
    copies = every_file(world.rooms.docs / "api/v1/evidence")

    assert copies == every_file(world.rooms.evidence)
    (run,) = next(cell for cell in stack["cells"] if cell["probe"] == "compile")["runs"]
    assert run["file"] in copies
    assert stack["builds"][0]["lock"] in copies


def test_same_evidence_gives_the_same_bytes(world: World) -> None:
    world.campaign(reported="4.5.2", newest="4.8.1")
    world.passes(times=2)
    world.run("layout-indices", "fail", "numerics", machine=OTHER_GPU)
    paths = render(world.rooms)
    first = every_file(world.rooms.docs)
    times = {path: path.stat().st_mtime_ns for path in paths}

    assert render(world.rooms) == paths
    assert every_file(world.rooms.docs) == first
    assert {path: path.stat().st_mtime_ns for path in paths} == times


def test_every_returned_path_exists_and_nothing_else_was_made(world: World) -> None:
    world.passes()

    paths = render(world.rooms)

    assert paths == sorted(path for path in world.rooms.docs.rglob("*") if path.is_file())


def test_what_is_no_longer_generated_goes_and_hand_written_pages_stay(world: World) -> None:
    world.passes()
    render(world.rooms)
    (world.rooms.docs / "reading.md").write_text("# By hand\n")
    (world.rooms.docs / "stacks" / "gone.md").write_text("old\n")
    (world.rooms.docs / "api/v1/evidence/old/stack").mkdir(parents=True)
    (world.rooms.docs / "api/v1/evidence/old/stack/run.json").write_text("{}")

    render(world.rooms)

    assert (world.rooms.docs / "reading.md").read_text() == "# By hand\n"
    assert not (world.rooms.docs / "stacks" / "gone.md").exists()
    assert not (world.rooms.docs / "api/v1/evidence/old").exists()


def test_bad_evidence_leaves_the_old_pages(world: World) -> None:
    record = world.run("compile")
    render(world.rooms)
    before = every_file(world.rooms.docs)
    (evidence,) = world.rooms.evidence.glob(f"*/{record.stack.id}/*.json")
    evidence.write_text('{"cut')

    with pytest.raises(DataError, match="not valid JSON"):
        render(world.rooms)

    assert every_file(world.rooms.docs) == before


@pytest.mark.parametrize("many", [1, 4000])
def test_a_failing_write_leaves_every_page_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(matrix.site.publish, "MANY_FILES", many)
    world.passes()
    render(world.rooms)
    before = every_file(world.rooms.docs)
    world.run("speed")
    write = matrix.site.publish._write

    def full(path: str, content: bytes) -> None:
        if path.endswith("/index.md"):
            raise OSError(28, "No space left on device", path)
        write(path, content)

    monkeypatch.setattr(matrix.site.publish, "_write", full)
    with pytest.raises(MatrixError, match=r"No space left on device.*Make room"):
        render(world.rooms)

    assert every_file(world.rooms.docs) == before


@pytest.mark.parametrize("fails", ["ahead", "both"])
def test_what_can_not_be_copied_ahead_is_copied_at_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(matrix.site.publish, "MANY_FILES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    world.passes()
    write = matrix.site.publish._write

    def full(path: str, content: bytes) -> None:
        # The process that copies ahead is a daemon; those that share the rest are not.
        if "/evidence/" in path and (fails == "both" or multiprocessing.current_process().daemon):
            raise OSError(28, "No space left on device", path)
        write(path, content)

    monkeypatch.setattr(matrix.site.publish, "_write", full)
    if fails == "both":
        with pytest.raises(MatrixError, match="No space left on device"):
            render(world.rooms)
    else:
        render(world.rooms)
        assert len(list(world.rooms.docs.glob("api/v1/evidence/*/*/*.json"))) == len(REQUIRED)
    assert not list(world.rooms.docs.glob(".render-*"))


@pytest.mark.parametrize("many", [1, 4000])
def test_what_a_killed_render_left_is_swept_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    monkeypatch.setattr(matrix.site.publish, "MANY_FILES", many)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    world.passes()
    process = multiprocessing.get_context("fork").Process(target=stuck_render, args=(world,))
    process.start()
    while not (left := list(world.rooms.docs.glob(".render-*/docs"))):
        assert process.is_alive()
        time.sleep(0.01)

    render(world.rooms)
    assert [path for path in left if path.exists()] == left, "somebody still writes there"
    process.kill()
    process.join()
    for _ in range(100):
        render(world.rooms)
        if not list(world.rooms.docs.glob(".render-*")):
            break
        time.sleep(0.05)  # The process that copies ahead dies a moment after its parent.
    assert not list(world.rooms.docs.glob(".render-*"))


def stuck_render(world: World) -> None:
    matrix.site.publish._move = lambda *_: time.sleep(60)
    render(world.rooms)


def test_nothing_is_left_of_what_was_copied_ahead_of_bad_evidence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix.site.publish, "MANY_FILES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    world.passes()
    pipe = next(world.rooms.evidence.glob("*/*/compile--*.json"))
    pipe.unlink()
    os.mkfifo(pipe)

    with pytest.raises(DataError, match="is no file of at most"):
        render(world.rooms)

    assert not list(world.rooms.docs.rglob("*"))


def test_much_is_shared_by_all_processors_and_comes_out_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.campaign(reported="4.5.2", newest="4.8.1")
    world.passes()
    world.run("speed", requested=REQUESTED | {"nvidia-cutlass-dsl": "4.8.1"})
    world.run("speed", "fail", "numerics", detail="a\nb")
    render(world.rooms)
    alone = every_file(world.rooms.docs)
    shutil.rmtree(world.rooms.docs)
    monkeypatch.setattr(matrix.site.publish, "MANY_FILES", 1)
    monkeypatch.setattr(matrix.site.published, "MANY_STACKS", 1)
    monkeypatch.setattr(matrix.site.compared, "MANY_PAIRS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})

    render(world.rooms)
    assert every_file(world.rooms.docs) == alone

    # Some folders are there now, and some are not.
    shutil.rmtree(world.rooms.docs / "api")
    (world.rooms.docs / "index.md").write_text("old")
    render(world.rooms)
    assert every_file(world.rooms.docs) == alone


def test_a_marker_left_in_a_hand_written_page_is_refused(world: World) -> None:
    world.rooms.docs.mkdir()
    (world.rooms.docs / "reading.md").write_text("Reasons: <!-- gen:reasons -->\n")

    with pytest.raises(MatrixError, match=r"docs/reading.md still holds the marker.*gen:reasons"):
        render(world.rooms)


def test_system_in_a_campaign_names_every_stack_it_became(world: World) -> None:
    world.campaign(reported="4.5.2", newest="4.8.1")
    file = world.rooms.campaigns / "default.toml"
    file.write_text(file.read_text().replace('torch = "2.11.0"', 'torch = "system"'))
    world.passes()
    world.passes("fingerprint", requested=REQUESTED | {"torch": "2.9.1"})

    stacks = published(world)["stacks"]

    assert sorted((s["title"], s["runs"]) for s in stacks[:2]) == [("reported", 1), ("reported", 3)]
    assert (stacks[2]["title"], stacks[2]["runs"]) == ("newest", 0)
    assert stacks[2]["components"][0] == {
        "component": "torch",
        "version": "system",
        "short": "system",
        "link": None,
    }


def test_how_to_repeat_a_stack(world: World) -> None:
    world.campaign(reported="4.5.2")
    world.campaign("nightly", middle="4.6.2")
    world.passes(requested=REQUESTED | {"nvidia-cutlass-dsl": "4.4.0"})

    commands = [stack["repeat"] for stack in published(world)["stacks"]]

    # What was run comes first, whoever names it.
    assert commands[0] is None
    assert commands[1] == "nox -s matrix -- --stack reported"
    assert commands[2] == "nox -s matrix -- --campaign nightly --stack middle"


def test_a_stack_that_no_campaign_names_tells_how_to_name_it(world: World) -> None:
    world.campaign(reported="4.5.2")
    world.passes(requested=REQUESTED | {"nvidia-cutlass-dsl": "4.4.0"})
    lines = published(world)["stacks"][0]["campaign_entry"]
    file = world.rooms.campaigns / "default.toml"

    file.write_text(file.read_text() + "\n" + "\n".join(lines))
    stacks = published(world)["stacks"]

    assert stacks[0]["repeat"] == f"nox -s matrix -- --stack {stacks[0]['id']} --again"
    assert stacks[0]["campaign_entry"] == []


def test_requested_resolved_and_loaded(world: World) -> None:
    loaded = {
        "torch": {"version": "2.11.0+cu129", "file": "torch/__init__.py", "sha256": "ab" * 32},
        "megatron-core": {"version": "0.17.0", "origin": "tree"},
    }
    resolved = {"torch": "2.11.0", "nvidia-cudnn-cu12": "9.16.0.29"}
    world.run("fingerprint", stack={"loaded": loaded, "resolved": resolved})
    later = {"torch": {"version": "2.11.0+cu129", "sha256": "ef" * 32}}
    world.run("compile", stack={"loaded": later, "resolved": resolved})
    absent = {"torch": "machine:no-torch"}
    world.run("compile", machine=CPU, stack={"absent": absent})

    (stack,) = published(world)["stacks"]
    on_cpu, on_gpu = stack["builds"]
    rows = {row["component"]: row for row in on_gpu["rows"]}

    assert (on_gpu["machine"], on_gpu["runs"], on_gpu["packages"]) == ("h200-a", 2, 2)
    assert rows["nvidia-cudnn"]["resolved"] == "9.16.0.29"
    assert rows["megatron-core"]["resolved"] == MCORE
    assert rows["megatron-core"]["tree"] == TREE
    assert rows["megatron-core"]["loaded"] == "0.17.0"
    assert rows["torch"]["sha256"] == "ef" * 32
    assert rows["torch"]["also"] == [f"2.11.0+cu129 ({'ab' * 6})"]
    assert on_cpu["rows"][0]["absent"] == "machine:no-torch"


def test_checks_are_tallied_over_the_counted_runs(world: World) -> None:
    good = [{"name": "dq", "status": "pass"}, {"name": "dkv", "status": "pass"}]
    bad = [{"name": "dq", "status": "fail", "reason": "numerics"}, good[1]]
    world.run("layout-indices", parts=good)
    world.run("layout-indices", "fail", "numerics", parts=bad)
    world.run("layout-indices", "miss", "machine:killed", parts=good)

    (stack,) = published(world)["stacks"]
    cell = next(cell for cell in stack["cells"] if cell["probe"] == "layout-indices")

    assert cell["parts"] == [
        {"name": "dq", "passed": 1, "failed": 1, "other": 0},
        {"name": "dkv", "passed": 2, "failed": 0, "other": 0},
    ]
    assert [example["why"] for example in cell["examples"]] == ["newest counted run", "newest run"]


def test_a_retired_probe_is_on_the_stack_page_only(world: World) -> None:
    world.passes()
    world.run("old-probe", "fail", "numerics", revision="0123456789abcdef")

    (stack,) = published(world)["stacks"]

    assert stack["verdict"] == "supported"
    assert "old-probe" not in (world.rooms.docs / "index.md").read_text()
    assert "#probe-old-probe" in (world.rooms.docs / f"stacks/{stack['id']}.md").read_text()


@pytest.mark.parametrize(("gpus", "words"), [(1, "an sm90 GPU"), (2, "2 sm90 GPUs")])
def test_how_many_gpus_a_probe_needs_is_said(world: World, gpus: int, words: str) -> None:
    world.probe("speed", **{**PROBES["speed"], "gpus": gpus})
    world.campaign(reported="4.5.2")
    world.passes()

    data = published(world)

    (asked,) = [probe for probe in data["probes"] if probe["id"] == "speed"]
    assert asked["gpus"] == gpus
    assert f"<dd>{words}, " in (world.rooms.docs / "probes/speed.md").read_text()
    # Nobody who has fewer runs it, so this is all that a stack says of it.
    stack = (world.rooms.docs / f"stacks/{data['stacks'][0]['id']}.md").read_text()
    assert f"no, needs {words}<" in stack


def test_a_component_that_left_the_catalogue_is_still_shown(world: World) -> None:
    world.passes(requested=REQUESTED | {"flash-mla": "1.0"})

    (stack,) = published(world)["stacks"]

    assert stack["components"][-1]["component"] == "flash-mla"


@pytest.mark.parametrize("schema", ["matrix", "evidence"])
def test_published_data_fits_its_published_schema(world: World, schema: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    world.campaign(reported="4.5.2", newest="4.8.1")
    world.passes(times=2)
    world.run("layout-indices", "fail", "numerics", parts=[{"name": "dq", "status": "pass"}])
    data = published(world)
    api = world.rooms.docs / "api/v1"
    rules = json.loads((api / f"schema/{schema}.schema.json").read_bytes())

    jsonschema.Draft202012Validator.check_schema(rules)
    validator = jsonschema.Draft202012Validator(rules)
    for one in (
        [data]
        if schema == "matrix"
        else [json.loads(path.read_bytes()) for path in (api / "evidence").rglob("*.json")]
    ):
        validator.validate(one)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(one | {"unknown": 1})


def test_pages_see_nothing_but_the_published_file(world: World) -> None:
    world.campaign(reported="4.5.2")
    world.passes()
    matrix = load_matrix(world.rooms)

    assert from_text(to_text(matrix)) == matrix


def test_a_link_that_is_no_web_address_is_refused(world: World) -> None:
    world.campaign(reported="4.5.2")
    text = to_text(load_matrix(world.rooms))

    with pytest.raises(ValidationError, match="URL scheme"):
        from_text(text.replace("https://github.com/pytorch/pytorch", "javascript:alert(1)"))
