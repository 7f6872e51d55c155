"""Git components: a bare mirror in the cache and one worktree per tree, kept by exact SHA.

Nothing from a fetched tree is ever run here: no hooks, no filters, no submodules.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from probes.git_tree import tree_id

# GitPython looks for git when it is imported, and raises where there is none.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
import git


class SourceError(Exception):
    """A git source can't give a revision.

    `reason` is one of source:unreachable, source:no-such-revision, source:broken.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Worktree:
    """A checked-out revision."""

    path: Path
    revision: str
    tree: str
    """Git's hash of the whole tree: the identity of what runs."""


#: Checking out must not run anything that a tree or this machine's configuration names.
_INERT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
#: Fetching uses the machine's proxies and certificates, and never asks a question.
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
}

_UNREACHABLE = (
    "could not resolve host",
    "unable to access",
    "could not read from remote",
    "connection",
    "timed out",
    "network is unreachable",
    "does not appear to be a git repository",
    "no such file or directory",
)
#: What GitPython raises on a mirror that is damaged; network trouble is told apart before.
_BROKEN = (git.GitError, configparser.Error, OSError, ValueError)
_NO_REVISION = (
    "not our ref",
    "couldn't find remote ref",
    "no such remote ref",
    "unadvertised object",
)


class Source:
    """One git component's mirror.

    Args:
        name: the component.
        address: an https address, or a local repository.
        cache: folder that holds mirrors and worktrees.
    """

    def __init__(self, name: str, address: str, cache: Path) -> None:
        self.name = name
        self.address = address
        self._cache = cache
        self._mirror = cache / f"{name}.git"

    @property
    def shown(self) -> str:
        """The address as messages and records may show it: without any user name or password."""
        return _without_credentials(self.address)

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
        local = _local(self.address)
        if local is not None:
            return True
        try:
            git.Git().ls_remote(
                self.address, "HEAD", env=_QUIET, kill_after_timeout=seconds, with_exceptions=True
            )
        except git.GitError:
            return False
        return True

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
                text = _without_credentials(" ".join(str(error).split()))[-300:]
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
        if not (self._mirror / "HEAD").exists():
            # A killed `init` leaves a folder without HEAD; git completes it.
            git.Git(self._cache).init("--quiet", "--bare", str(self._mirror), env=_INERT)
        with self._repository() as repository:
            # A killed fetch leaves a shallow lock behind; we hold our own lock, so it is rubbish.
            (self._mirror / "shallow.lock").unlink(missing_ok=True)
            local = _local(self.address)
            address = str(local) if local is not None else self.address
            try:
                repository.git.fetch(
                    "--quiet", "--no-tags", "--depth=1", "--no-write-fetch-head",
                    "--no-recurse-submodules", "--end-of-options", address, revision, env=_QUIET,
                )  # fmt: skip
            except git.GitCommandNotFound:
                raise SourceError("source:broken", "git is not installed; install it.") from None
            except git.GitCommandError as error:
                raise self._explain(error, revision) from None
            except git.UnsafeProtocolError:
                raise SourceError(
                    "source:unreachable", f"{self.name}: {self.shown} is no address to fetch from."
                ) from None
            if not _has_commit(repository, revision):
                raise SourceError(
                    "source:no-such-revision", f"{self.name}: {self.shown} has no {revision}."
                )

    def _explain(self, error: git.GitCommandError, revision: str) -> SourceError:
        text = _without_credentials(str(error.stderr).replace("stderr:", "").strip(" '\n"))
        lines = text.splitlines() or ["git gave no reason"]
        last = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        lowered = text.lower()
        if any(mark in lowered for mark in _NO_REVISION):
            return SourceError(
                "source:no-such-revision",
                f"{self.name}: {self.shown} has no revision {revision}. Correct the SHA in the "
                "campaign, or name the repository that has it with "
                f"--source {self.name}=PATH_OR_ADDRESS.",
            )
        if any(mark in lowered for mark in _UNREACHABLE):
            return SourceError(
                "source:unreachable",
                f"{self.name}: {self.shown} can't be reached ({last}). Name a local mirror with "
                f"--source {self.name}=PATH.",
            )
        return SourceError("source:broken", f"{self.name}: fetching {revision} failed: {last}")

    def _check_out(self, folder: Path, revision: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # What git remembers of a checkout that was killed would be in the way.
        shutil.rmtree(self._mirror / "worktrees" / folder.name, ignore_errors=True)
        # Files come out as they are stored, whatever the tree's own attributes ask for; else the
        # disk would not hold the tree that is asked for, and a filter would be a program to run.
        attributes = self._mirror / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        attributes.write_text(
            "* -text -eol -ident -filter -working-tree-encoding -crlf\n", encoding="ascii"
        )
        with self._repository() as repository:
            repository.git.worktree("prune", env=_INERT)
            repository.git.execute(
                ["git", "-c", f"core.hooksPath={os.devnull}", "-c", "core.fsmonitor=false",
                 "-c", "core.autocrlf=false", "worktree", "add", "--quiet", "--force", "--force",
                 "--detach", str(folder), revision],
                env=_INERT,
            )  # fmt: skip


def _local(address: str) -> Path | None:
    """The folder that an address names, or None when it names none."""
    try:
        path = Path(address).expanduser()
    except RuntimeError:  # a user that does not exist
        return None
    return path.resolve() if address and path.is_dir() else None


def _without_credentials(text: str) -> str:
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def _has_commit(repository: git.Repo, revision: str) -> bool:
    try:
        return str(repository.git.cat_file("-t", revision)) == "commit"
    except git.GitCommandError:
        return False
