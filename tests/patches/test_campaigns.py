"""Whole campaigns with candidates on their stacks: the record, the plan, and a repeated run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.worlds import CAMPAIGN, REPOSITORY, World, probe_source

CANDIDATE = """# kept
component = "megatron-core"
repository = "https://github.com/example/megatron"
number = {number}
title = "another version"
reason = "tests"
claims = "says 0.2"
state = "open"
target = "main"
head = "{head}"
seen = 2026-01-01
"""

SHOWS = """
import megatron.core
with probe.check("version") as check:
    check.measure["version"] = megatron.core.__version__
    check.expect(True, "numerics", "")
"""


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@x.org", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def offer(world: World, number: int, text: str) -> str:
    """A request that gives the package this text; its head."""
    git(world.upstream, "checkout", "--quiet", "--detach", "main")
    (world.upstream / "megatron" / "core" / "__init__.py").write_text(text)
    git(world.upstream, "commit", "--quiet", "--all", "--message", "own")
    head = git(world.upstream, "rev-parse", "HEAD").strip()
    git(world.upstream, "update-ref", f"refs/pull/{number}/head", head)
    git(world.upstream, "checkout", "--quiet", "main")
    describe(world, number, head)
    return head


def describe(world: World, number: int, head: str) -> None:
    world.rooms.candidates.mkdir(parents=True, exist_ok=True)
    path = world.rooms.candidates / f"mcore-{number}.toml"
    path.write_text(CANDIDATE.format(number=number, head=head))


@pytest.fixture
def patched(world: World) -> World:
    """A world whose probe says which version it imported."""
    world.probe("shows", probe_source("shows", SHOWS, needs="['torch', 'megatron-core']"))
    world.campaign("fingerprint", "shows")
    return world


def version(world: World) -> str:
    measure = world.records("shows")[-1]["parts"][0]["measure"]
    return str(measure["version"])


def test_a_stack_runs_with_a_candidate_and_its_record_says_so(patched: World) -> None:
    head = offer(patched, 7, '__version__ = "0.2"\n')

    plan = patched.run("--plan", "--patch", "7")
    done = patched.run("--patch", "7")

    assert f"patches: mcore-7 at {head[:19]}" in plan.output
    assert done.status == 0, done.output
    assert version(patched) == "0.2"
    record = patched.record("shows")
    assert record["stack"]["patches"] == [{"id": "mcore-7", "head": head, "result": "clean"}]
    source = record["stack"]["source"]["megatron-core"]
    assert source["revision"] == patched.revision
    assert source["tree"] == git(patched.upstream, "rev-parse", f"{head}^{{tree}}").strip()
    assert patched.record("fingerprint")["status"] == "pass", "the loaded tree is the patched one"
    assert "good+7" in done.output
    # It is another stack than the one without, and done once.
    assert "2 done" in patched.run("--plan", "--patch", "mcore-7").output
    assert patched.run().status == 0
    assert version(patched) == "0.1"
    assert len({r["stack"]["id"] for r in patched.records()}) == 2


def test_a_campaign_names_patches_itself(patched: World) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    more = (
        '\n[[stack]]\nname = "with-it"\nreason = "tests"\npatches = ["mcore-7"]\n'
        'components = { nvidia-cudnn-frontend = "1.0", nvidia-cutlass-dsl = "2.0" }\n'
    )
    patched.campaign("fingerprint", "shows", more=more)

    done = patched.run("--stack", "with-it")

    assert done.status == 0, done.output
    assert version(patched) == "0.2"
    assert "with-it" in done.output

    patched.campaign("fingerprint", more=more.replace("mcore-7", "mcore-8"))
    refused = patched.run("--plan")
    assert (refused.status, "unknown patch 'mcore-8'" in refused.output) == (2, True)
    patched.campaign("fingerprint", text=CAMPAIGN.replace('"{revision}"', '"0.1.0"'), more=more)
    refused = patched.run("--plan")
    assert (refused.status, "for a git revision" in refused.output) == (2, True)


def test_a_conflict_is_a_result_that_is_recorded_once(patched: World) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    offer(patched, 8, '__version__ = "0.3"\n')

    done = patched.run("--patch", "7", "--patch", "8")
    again = patched.run("--patch", "7", "--patch", "8")

    assert (done.status, again.status) == (0, 0), done.output
    record = patched.record("fingerprint")
    assert (record["status"], record["reason"]) == ("fail", "patch:conflict")
    assert "megatron/core/__init__.py" in record["detail"]
    assert [p["result"] for p in record["stack"]["patches"]] == ["clean", "conflict"]
    assert "cannot install" in done.output


def test_a_head_that_can_not_be_had_is_a_miss(patched: World) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    describe(patched, 8, "unknown")
    describe(patched, 9, "9" * 40)

    unknown = patched.run("--patch", "8")
    assert "nobody has seen the head" in unknown.output
    absent = patched.run("--patch", "9")
    assert absent.status == 1
    for record in patched.records("fingerprint"):
        assert (record["status"], record["reason"]) == ("miss", "patch:unavailable")
        assert record["stack"]["absent"] == {"megatron-core": "patch:unavailable"}
        assert record["stack"]["patches"][0]["result"] == "unavailable"
    assert len(patched.records("fingerprint")) == 2


def test_a_patch_file_of_ones_own(patched: World, tmp_path: Path) -> None:
    head = offer(patched, 7, '__version__ = "0.2"\n')
    mine = tmp_path / "My Fix.patch"
    mine.write_text(git(patched.upstream, "diff", patched.revision, head))

    done = patched.run("--patch", str(mine))

    assert done.status == 0, done.output
    assert version(patched) == "0.2"
    (facts,) = patched.record("shows")["stack"]["patches"]
    assert (facts["id"], facts["result"]) == ("my-fix", "clean")
    assert facts["head"].startswith("sha256:")
    # The patch is kept beside the evidence, so that the run can be repeated without the file.
    (kept,) = patched.rooms.evidence.glob("*/*/patch--*.patch")
    assert kept.read_bytes() == mine.read_bytes()
    mine.unlink()
    (evidence,) = patched.rooms.evidence.glob("*/*/shows--*.json")
    command = patched.command()
    command[command.index("run")] = "probe"
    command.insert(command.index("probe") + 1, str(evidence))
    repeated = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert repeated.returncode == 0, repeated.stdout + repeated.stderr
    assert patched.run("--stack", evidence.parent.name, "--again").status == 0
    assert len(patched.records("shows")) == 3

    refused = patched.run("--patch", str(tmp_path / "none.patch"))
    assert (refused.status, "can't be read" in refused.output) == (2, True)
    (tmp_path / "text.patch").write_text("hello\n")
    refused = patched.run("--patch", str(tmp_path / "text.patch"))
    assert (refused.status, "is no patch" in refused.output) == (2, True)


def test_a_recorded_run_with_a_candidate_is_repeated_with_its_recorded_head(
    patched: World,
) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    assert patched.run("--patch", "7").status == 0
    offer(patched, 7, '__version__ = "0.9"\n')  # the request moved on, and so did its file
    (evidence,) = patched.rooms.evidence.glob("*/*/shows--*.json")
    command = patched.command()
    command[command.index("run")] = "probe"
    command.insert(command.index("probe") + 1, str(evidence))

    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "as recorded" in done.stdout
    before, after = patched.records("shows")
    assert before["stack"]["source"] == after["stack"]["source"]
    assert before["stack"]["patches"] == after["stack"]["patches"]


def test_without_the_source_a_patched_tree_still_runs(patched: World) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    assert patched.run("--patch", "7").status == 0

    away = patched.run("--patch", "7", "--again", source=False)

    assert away.status == 0, away.output
    assert len(patched.records("shows")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--patch", "12"], "no such candidate"),
        (["--patch", "7", "--patch", "mcore-7"], "named twice"),
        (["--patch", "\x1b[2J"], "no such candidate"),
    ],
)
def test_names_that_fit_nothing(patched: World, arguments: list[str], words: str) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')

    done = patched.run("--plan", *arguments)

    assert done.status == 2
    assert words in done.output
    assert "\x1b" not in done.output


def test_a_record_can_not_pass_without_its_patch(patched: World) -> None:
    offer(patched, 7, '__version__ = "0.2"\n')
    assert patched.run("--patch", "7").status == 0
    (path,) = patched.rooms.evidence.glob("*/*/shows--*.json")
    record = json.loads(path.read_text())
    record["stack"]["patches"][0]["result"] = "conflict"
    path.write_text(json.dumps(record))

    done = patched.run("--plan")

    assert done.status == 2
    assert "lacked patch mcore-7" in done.output
