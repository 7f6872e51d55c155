"""Git components from a small real repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from patches.sources import Source, SourceError
from tests.worlds import make_upstream


@pytest.fixture
def upstream(tmp_path: Path) -> tuple[Path, str]:
    return make_upstream(tmp_path / "upstream")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@x.org", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_a_worktree_is_the_revision_and_is_made_once(
    tmp_path: Path, upstream: tuple[Path, str]
) -> None:
    folder, revision = upstream
    source = Source("core", str(folder), tmp_path / "cache")
    assert not source.has(revision)

    tree = source.worktree(revision)

    assert tree.tree == git(folder, "rev-parse", "HEAD^{tree}")
    assert (tree.path / "megatron" / "core" / "__init__.py").read_text() == '__version__ = "0.1"\n'
    assert (tree.path / "run.sh").stat().st_mode & 0o111
    made = tree.path.stat().st_mtime_ns
    assert source.worktree(revision) == tree
    assert tree.path.stat().st_mtime_ns == made


def test_a_commit_below_the_tips_is_found(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    folder, first = upstream
    (folder / "new.txt").write_text("x")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "second")

    tree = Source("core", str(folder), tmp_path / "cache").worktree(first)

    assert not (tree.path / "new.txt").exists()


def test_a_cached_revision_needs_no_remote(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    folder, revision = upstream
    Source("core", str(folder), tmp_path / "cache").worktree(revision)
    shutil.rmtree(folder)

    source = Source("core", "https://unreachable.invalid/x", tmp_path / "cache")

    assert source.has(revision)
    assert source.worktree(revision).revision == revision


@pytest.mark.parametrize("address", ["https://unreachable.invalid/x", "/no/such/repository"])
def test_an_unreachable_remote(tmp_path: Path, address: str) -> None:
    source = Source("core", address, tmp_path / "cache")

    assert not source.reachable()
    with pytest.raises(SourceError, match="--source core=PATH") as caught:
        source.worktree("0" * 40)
    assert caught.value.reason == "source:unreachable"


def test_a_revision_that_does_not_exist(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    source = Source("core", str(upstream[0]), tmp_path / "cache")

    with pytest.raises(SourceError, match="Correct the SHA") as caught:
        source.worktree("1" * 40)
    assert caught.value.reason == "source:no-such-revision"


def test_a_sha_that_is_a_tree_is_no_revision(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    tree = git(upstream[0], "rev-parse", "HEAD^{tree}")

    with pytest.raises(SourceError) as caught:
        Source("core", str(upstream[0]), tmp_path / "cache").worktree(tree)
    assert caught.value.reason == "source:no-such-revision"


def test_a_killed_checkout_is_repaired(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    source = Source("core", str(upstream[0]), tmp_path / "cache")
    tree = source.worktree(upstream[1])
    (tree.path / "run.sh").unlink()

    assert (source.worktree(upstream[1]).path / "run.sh").exists()


def test_a_killed_init_is_repaired(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    (tmp_path / "cache" / "core.git" / "objects").mkdir(parents=True)

    source = Source("core", str(upstream[0]), tmp_path / "cache")

    assert source.worktree(upstream[1]).path.is_dir()


def test_checking_out_runs_nothing(
    tmp_path: Path, upstream: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither hooks of the mirror, nor filters of this machine that the tree asks for."""
    folder, _ = upstream
    proof = tmp_path / "ran"
    (folder / ".gitattributes").write_text("* filter=evil\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "attributes")
    revision = git(folder, "rev-parse", "HEAD")
    settings = tmp_path / "gitconfig"
    settings.write_text(f'[filter "evil"]\n\tsmudge = "touch {proof}; cat"\n\trequired = true\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    source = Source("core", str(folder), tmp_path / "cache")
    source.worktree(upstream[1])
    hook = tmp_path / "cache" / "core.git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {proof}\n")
    hook.chmod(0o755)

    source.worktree(revision)

    assert not proof.exists()


def test_an_edited_worktree_is_made_anew(tmp_path: Path, upstream: tuple[Path, str]) -> None:
    source = Source("core", str(upstream[0]), tmp_path / "cache")
    file = source.worktree(upstream[1]).path / "megatron" / "core" / "__init__.py"
    file.write_text("edited")
    (file.parent / "more.py").write_text("added")

    source.worktree(upstream[1])

    assert file.read_text() == '__version__ = "0.1"\n'
    assert not (file.parent / "more.py").exists()


def test_what_git_leaves_of_a_killed_checkout_is_no_obstacle(
    tmp_path: Path, upstream: tuple[Path, str]
) -> None:
    source = Source("core", str(upstream[0]), tmp_path / "cache")
    tree = source.worktree(upstream[1])
    (tmp_path / "cache" / "core.git" / "worktrees" / tree.path.name / "locked").write_text(
        "initializing"
    )
    shutil.rmtree(tree.path)

    assert source.worktree(upstream[1]).path.is_dir()


@pytest.mark.parametrize("damage", ["head", "objects", "config", "pack", "file"])
def test_a_damaged_mirror_is_made_anew(
    tmp_path: Path, upstream: tuple[Path, str], damage: str
) -> None:
    source = Source("core", str(upstream[0]), tmp_path / "cache")
    shutil.rmtree(source.worktree(upstream[1]).path)
    mirror = tmp_path / "cache" / "core.git"
    if damage == "head":
        (mirror / "HEAD").write_text("")
    elif damage == "objects":
        shutil.rmtree(mirror / "objects")
    elif damage == "config":
        (mirror / "config").write_text("\x00[[")
    elif damage == "pack":
        for path in [*mirror.rglob("*.pack"), *(mirror / "objects").glob("??/*")]:
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:20])
    else:
        shutil.rmtree(mirror)
        mirror.write_text("not a folder")

    assert source.worktree(upstream[1]).path.is_dir()


@pytest.mark.parametrize(
    "attributes",
    ["* text eol=crlf", "* ident", "*.txt working-tree-encoding=UTF-16", "* filter=lfs"],
)
def test_a_trees_own_attributes_change_nothing(
    tmp_path: Path, upstream: tuple[Path, str], attributes: str
) -> None:
    folder, _ = upstream
    (folder / "text.txt").write_text("$Id$\nline\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "text")
    (folder / ".gitattributes").write_text(attributes + "\n")
    git(folder, "add", ".gitattributes")
    git(folder, "commit", "--quiet", "--message", "attributes")
    source = Source("core", str(folder), tmp_path / "cache")

    tree = source.worktree(git(folder, "rev-parse", "HEAD"))

    assert (tree.path / "text.txt").read_text() == "$Id$\nline\n"


def test_no_token_of_an_address_is_shown(tmp_path: Path) -> None:
    source = Source("core", "https://alice:TOKEN@unreachable.invalid/x", tmp_path / "cache")

    with pytest.raises(SourceError) as caught:
        source.worktree("0" * 40)

    assert "TOKEN" not in str(caught.value)
    assert "TOKEN" not in source.shown
