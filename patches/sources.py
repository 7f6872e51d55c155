"""Git components: a bare mirror in the cache and one worktree per tree, kept by exact SHA.

Nothing from a fetched tree is ever run here: no hooks, no filters, no submodules.
"""

from __future__ import annotations

import configparser
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from patches.inert import INERT, GitFailed, Inert, git
from patches.remotes import Remote, SourceError, without_credentials
from probes.git_tree import tree_id

__all__ = ["Source", "SourceError", "Worktree"]


@dataclass(frozen=True)
class Worktree:
    """A checked-out revision."""

    path: Path
    revision: str
    tree: str
    """Git's hash of the whole tree: the identity of what runs."""


#: What git and GitPython raise on a mirror that is damaged; network trouble is told apart before.
_BROKEN = (git.GitError, GitFailed, configparser.Error, OSError, ValueError)


class Source:
    """One git component's mirror.

    Args:
        name: the component.
        address: an https address, or a local repository.
        cache: folder that holds mirrors and worktrees.
    """

    def __init__(self, name: str, address: str, cache: Path) -> None:
        self.name = name
        self.remote = Remote(name, address)
        self._cache = cache
        self._mirror = cache / f"{name}.git"

    @property
    def shown(self) -> str:
        """The address as messages and records may show it: without any user name or password."""
        return self.remote.shown

    def has(self, revision: str) -> bool:
        """Whether the mirror holds a commit already; asks nobody else."""
        if not (self._mirror / "HEAD").exists():
            return False
        try:
            with self._repository() as repository:
                return _has_commit(repository, revision)
        except _BROKEN:
            return False

    def reachable(self, seconds: float = 2.0) -> bool:
        """Whether the address answers within a time limit."""
        return self.remote.reachable(seconds)

    def worktree(self, revision: str) -> Worktree:
        """The checked-out tree of a full commit SHA, fetched if need be.

        What is on the disk is compared with the commit each time: a checkout that was cut short or
        edited is made anew, and so is a damaged mirror.

        Raises:
            SourceError: the revision can't be had or checked out.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        with FileLock(self._cache / f"{self.name}.lock"):
            try:
                return self._made(revision)
            except _BROKEN:
                self._set_aside()
            except SourceError as error:
                if error.reason != "source:broken":
                    raise
                self._set_aside()
            try:
                return self._made(revision)
            except _BROKEN as error:
                text = without_credentials(" ".join(str(error).split()))[-300:]
                raise SourceError(
                    "source:broken", f"{self.name}: {revision} could not be checked out: {text}"
                ) from None

    def _made(self, revision: str) -> Worktree:
        if not self.has(revision):
            self._fetch(revision)
        with self._repository() as repository:
            tree = repository.commit(revision).tree.hexsha
        folder = self._cache / "worktrees" / f"{self.name}-{tree[:16]}"
        if not folder.is_dir() or tree_id(folder) != tree:
            self._check_out(folder, revision)
        return Worktree(folder, revision, tree)

    def _set_aside(self) -> None:
        """Forget a mirror that can't be used; what it held can be fetched again."""
        if self._mirror.is_dir() and not self._mirror.is_symlink():
            shutil.rmtree(self._mirror, ignore_errors=True)
        else:
            self._mirror.unlink(missing_ok=True)

    @contextmanager
    def _repository(self) -> Iterator[git.Repo]:
        repository = git.Repo(self._mirror)
        try:
            yield repository
        finally:
            repository.close()  # GitPython leaves processes and memory maps behind otherwise

    def _fetch(self, revision: str) -> None:
        # A killed `init` leaves a folder without HEAD; git completes it.
        Inert(self._mirror).create()
        # A killed fetch leaves locks and half a pack; we hold our own lock, so they are rubbish.
        for pattern in ("*.lock", "objects/pack/tmp_*"):
            for path in self._mirror.glob(pattern):
                path.unlink(missing_ok=True)
        self.remote.fetch(self._mirror, [revision], "--depth=1")
        with self._repository() as repository:
            if not _has_commit(repository, revision):
                raise SourceError(
                    "source:no-such-revision", f"{self.name}: {self.shown} has no {revision}."
                )

    def _check_out(self, folder: Path, revision: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What git remembers of a checkout that was killed would be in the way.
        shutil.rmtree(self._mirror / "worktrees" / folder.name, ignore_errors=True)
        Inert(self._mirror).settle()
        with self._repository() as repository:
            repository.git.worktree("prune", env=dict(INERT))
            repository.git.execute(
                ["git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false",
                 "-c", "core.autocrlf=false", "worktree", "add", "--quiet", "--force", "--force",
                 "--detach", str(folder), revision],
                env=dict(INERT),
            )  # fmt: skip


def _has_commit(repository: git.Repo, revision: str) -> bool:
    try:
        return str(repository.git.cat_file("-t", revision)) == "commit"
    except git.GitCommandError:
        return False
