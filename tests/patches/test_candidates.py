"""Candidates as data, new heads of them, and the command that shows both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from matrix.commands.cli import cli
from matrix.components import load_components
from matrix.errors import DataError
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from patches.bases import load_series
from patches.candidates import Patching, load_candidates
from patches.history import is_sha
from tests.patches.repositories import CORE, Upstream
from tests.worlds import COMPONENTS, REPOSITORY

REQUEST = """# Why it is here: a comment that stays.
component = "megatron-core"
repository = "https://github.com/example/core"
number = {number}
title = "a title"
reason = "tests"
claims = "much"
state = "open"
target = "dev"

# This one stays too.
head = "{head}"
seen = 2026-01-01
links = [
  "https://example.org/a",  # and this one
]
"""

BASES = """
[[component]]
name = "megatron-core"
reason = "tests"
link = "https://example.org/b"
branch = "dev"
from = 2026-01-01
"""


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"megatron/core.py": CORE}, "start")
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "patches" / "candidates").mkdir(parents=True)
    (root / "matrix" / "catalogue").mkdir(parents=True)
    (root / "matrix" / "catalogue" / "components.toml").write_text(COMPONENTS)
    (root / "patches" / "bases.toml").write_text(BASES)
    return root


def write(project: Path, number: int, head: str, more: str = "") -> Path:
    path = project / "patches" / "candidates" / f"core-{number}.toml"
    path.write_text(REQUEST.format(number=number, head=head) + more)
    return path


def command(project: Path, *arguments: str, source: str | None = None) -> Result:
    where = ["--source", f"megatron-core={source}"] if source else []
    return CliRunner().invoke(
        cli, ["--root", str(project), "patches", *where, *arguments], catch_exceptions=False
    )


# What is committed here


def test_the_committed_candidates_fit_and_name_what_exists() -> None:
    rooms = Rooms(REPOSITORY)
    components = load_components(rooms)
    probes = load_probe_specs(rooms)
    candidates = load_candidates(rooms.candidates)

    assert len(candidates) >= 13
    for candidate in candidates.values():
        assert candidate.component in components
        assert set(candidate.probes) <= set(probes), candidate.id
        assert str(candidate.repository) == components[candidate.component].remote
        assert is_sha(candidate.head) or candidate.head == "unknown"
        assert (candidate.head_date is not None) == is_sha(candidate.head)
    assert "megatron-core" in load_series(REPOSITORY / "patches" / "bases.toml")


# Form


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('head = "abc123"', "head"),
        ('base = "main"', "base"),
        ('target = "--upload-pack=x"', "target"),
        ('path = "/etc/passwd"', "pull request"),
        ('stacked_on = "core-9"', "no candidate 'core-9'"),
        ("wrong = 1", "wrong"),
        ('id = "other"', "leave that out"),
        ("number = -1", "number"),
    ],
)
def test_a_file_that_does_not_fit_is_named(project: Path, change: str, words: str) -> None:
    path = write(project, 1, "unknown")
    name = change.partition(" =")[0]
    kept = [line for line in path.read_text().splitlines() if not line.startswith(f"{name} ")]
    path.write_text(change + "\n" + "\n".join(kept))

    with pytest.raises(DataError) as caught:
        load_candidates(project / "patches" / "candidates")

    assert "core-1.toml" in str(caught.value)
    assert words in str(caught.value)


def test_a_patch_file_stays_in_its_folder(project: Path) -> None:
    folder = project / "patches" / "candidates"
    local = (
        'component = "megatron-core"\ntitle = "t"\nreason = "r"\nclaims = "c"\n'
        'state = "local"\nseen = 2026-01-01\n'
    )
    (folder / "mine.toml").write_text(local + 'path = "../../secret.patch"\n')
    with pytest.raises(DataError, match="beside this one"):
        load_candidates(folder)
    (folder / "mine.toml").write_text(local + 'path = "mine.patch"\n')
    (folder / "real.patch").write_text("diff --git a/x b/x\n")
    (folder / "mine.patch").symlink_to("real.patch")
    with pytest.raises(DataError, match="symbolic link"):
        Patching(folder, ["megatron-core"]).chosen(["mine"])
    (folder / "mine.patch").unlink()
    (folder / "real.patch").rename(folder / "mine.patch")

    (pin,) = Patching(folder, ["megatron-core"]).chosen(["mine"])

    assert pin.text == b"diff --git a/x b/x\n"
    assert pin.head.startswith("sha256:")
    with pytest.raises(DataError, match="is not what it was"):
        Patching(folder, ["megatron-core"]).recorded([("mine", "sha256:other")])


def test_order_is_checked_before_anything_is_fetched(project: Path) -> None:
    write(project, 1, "unknown")
    path = write(project, 2, "unknown")
    path.write_text('stacked_on = "core-1"\n' + path.read_text())
    patching = Patching(project / "patches" / "candidates", ["megatron-core"])

    assert [pin.id for pin in patching.chosen(["1", "#2"])] == ["core-1", "core-2"]
    with pytest.raises(DataError, match="put core-1 before it"):
        patching.chosen(["2", "1"])


# New heads


def test_new_heads_are_shown_and_written_only_when_asked(project: Path, upstream: Upstream) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    old = upstream.request(1, {"megatron/core.py": CORE + "#1\n"}, start)
    new = upstream.request(1, {"megatron/core.py": CORE + "#2\n"}, start)
    first = upstream.request(2, {"megatron/core.py": CORE + "#3\n"}, start)
    same = upstream.request(3, {"megatron/core.py": CORE + "#4\n"}, start)
    moved, unseen, kept = (
        write(project, 1, old),
        write(project, 2, "unknown"),
        write(project, 3, same),
    )
    gone = write(project, 4, "unknown")
    before = [path.read_text() for path in (moved, unseen, kept, gone)]

    shown = command(project, "--update", source=str(upstream.folder))

    assert shown.exit_code == 0, shown.output
    assert f"{old[:12]} -> {new[:12]}" in shown.output
    assert f"unknown -> {first[:12]}" in shown.output
    assert "offers no head" in shown.output
    assert [path.read_text() for path in (moved, unseen, kept, gone)] == before

    wrote = command(project, "--update", "--write", source=str(upstream.folder))

    assert wrote.exit_code == 0, wrote.output
    assert [path.read_text() for path in (kept, gone)] == before[2:]
    text = moved.read_text()
    for comment in ("# Why it is here", "# This one stays too.", "# and this one"):
        assert comment in text
    found = load_candidates(project / "patches" / "candidates")
    assert (found["core-1"].head, found["core-1"].base) == (new, start)
    assert (found["core-2"].head, found["core-2"].base) == (first, start)
    assert str(found["core-1"].head_date) == "2026-01-04"
    assert "unchanged" in command(project, "--update", source=str(upstream.folder)).output


def test_a_source_out_of_reach_is_one_clear_sentence(project: Path) -> None:
    write(project, 1, "unknown")

    for arguments in (["--update"], []):
        done = command(project, *arguments, source="https://unreachable.invalid/x")

        assert done.exit_code == 1
        (line,) = done.output.strip().splitlines()
        assert line.startswith(
            "error: megatron-core: https://unreachable.invalid/x can't be reached"
        )
        assert "--source megatron-core=PATH" in line


# The command


def test_the_table_the_json_and_the_pictures(
    project: Path, upstream: Upstream, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"megatron/core.py": CORE + "#1\n"}, start)
    write(project, 1, head)
    write(project, 2, "unknown")

    done = command(
        project, "--json", str(tmp_path / "l.json"), "--svg", str(tmp_path / "svg"),
        source=str(upstream.folder),
    )  # fmt: skip

    assert done.exit_code == 0, done.output
    assert "clean" in done.output
    assert "nobody has seen its head" in done.output
    assert '"result": "clean"' in (tmp_path / "l.json").read_text()
    assert {path.name for path in (tmp_path / "svg").iterdir()} == {"core-1.svg", "core-2.svg"}


def test_overlap_by_frames_and_by_a_traceback(
    project: Path, upstream: Upstream, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    head = upstream.request(1, {"megatron/core.py": CORE.replace("x + 1", "x + 2")}, start)
    write(project, 1, head)
    pasted = tmp_path / "traceback.txt"
    pasted.write_text('File "/x/megatron/core.py", line 5, in first\n')
    source = str(upstream.folder)

    for arguments in (["--overlap", "core.py:5"], ["--traceback", str(pasted)]):
        done = command(project, *arguments, "--at", start, source=source)
        assert done.exit_code == 0, done.output
        assert "changes" in done.output
        assert "first of megatron/core.py" in done.output
    printed = command(project, "--overlap", "first", "--at", start, "--json", "-", source=source)
    assert '"relation": "changes"' in printed.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["core.py:5"], "with --overlap"),
        (["--write"], "goes with --update"),
        (["--component", "torch"], "no git component"),
        (["--base", "abc"], "not a full commit SHA"),
        (["--candidate", "77"], "no such candidate"),
        (["--overlap", "a b", "--at", "0" * 40], "is no frame"),
    ],
)
def test_wrong_words(project: Path, upstream: Upstream, arguments: list[str], words: str) -> None:
    write(project, 1, "unknown")

    done = command(project, *arguments, source=str(upstream.folder))

    assert done.exit_code == 2
    assert words in done.output


def test_a_patch_file_beside_the_candidates(
    project: Path, upstream: Upstream, tmp_path: Path
) -> None:
    start = upstream.git("rev-parse", "refs/heads/dev")
    after = upstream.commit({"megatron/core.py": CORE + "#\n"}, parents=[start])
    mine = tmp_path / "mine.patch"
    mine.write_bytes(upstream.raw("diff", start, after))

    done = command(project, "--patch", str(mine), source=str(upstream.folder))

    assert done.exit_code == 0, done.output
    assert "mine" in done.output
    assert "clean" in done.output


def test_the_session_is_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "patches", "--help"],
        cwd=REPOSITORY,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "--traceback" in done.stdout
