from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from probes.git_tree import tree_id


def git(folder: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    # Names chosen for the order of entries: `a.b` < `a/` < `a0`, though `a` < `a.b`.
    for name in ("a/file", "a.b", "a0", "deep/er/and/deeper.txt", "spaced name", "ünïcode"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}\n", encoding="utf-8")
    (folder / "binary").write_bytes(bytes(range(256)) * 300)
    (folder / "empty").touch()
    (folder / "run.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("a/file")
    (folder / "broken-link").symlink_to("nowhere")
    (folder / "link-to-folder").symlink_to("deep")
    git(folder, "init", "-q")
    return folder


def written_by_git(folder: Path) -> str:
    git(folder, "add", "-A")
    return git(folder, "write-tree")


def test_same_id_as_git(repository: Path) -> None:
    assert tree_id(repository) == written_by_git(repository)


def test_what_git_does_not_keep_does_not_count(repository: Path) -> None:
    before = tree_id(repository)
    (repository / "empty-folder" / "inside").mkdir(parents=True)
    assert tree_id(repository) == before


def test_bytecode_beside_a_source_counts_because_it_could_run(repository: Path) -> None:
    before = tree_id(repository)
    (repository / "a" / "__pycache__").mkdir()
    (repository / "a" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert tree_id(repository) != before


@pytest.mark.parametrize("change", ["content", "mode", "name", "extra", "link"])
def test_every_change_shows(repository: Path, change: str) -> None:
    before = tree_id(repository)
    if change == "content":
        (repository / "a0").write_text("other\n", encoding="utf-8")
    elif change == "mode":
        (repository / "run.sh").chmod(0o644)
    elif change == "name":
        (repository / "a0").rename(repository / "a1")
    elif change == "extra":
        (repository / "deep" / "extra.py").touch()
    else:
        (repository / "link").unlink()
        (repository / "link").symlink_to("a.b")
    after = tree_id(repository)
    assert after != before
    assert after == written_by_git(repository)


def test_an_empty_folder(tmp_path: Path) -> None:
    assert tree_id(tmp_path) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
