"""Where commits come from: an address, what it is asked, and what its refusals mean."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from patches.inert import PROTOCOLS, QUIET, git

_UNREACHABLE = (
    "could not resolve host",
    "unable to access",
    "could not read from remote",
    "connection",
    "timed out",
    "network is unreachable",
    "does not appear to be a git repository",
    "no such file or directory",
    "not allowed",
    "blocked",
)
_NO_REVISION = (
    "not our ref",
    "couldn't find remote ref",
    "no such remote ref",
    "unadvertised object",
)


class SourceError(Exception):
    """A git source can't give a revision.

    `reason` is one of source:unreachable, source:no-such-revision, source:broken.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Remote:
    """An address that commits are fetched from.

    Args:
        name: the component; messages name it.
        address: an https address, or a local repository.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @property
    def shown(self) -> str:
        """The address as messages and records may show it: without any user name or password."""
        return without_credentials(self.address)

    @property
    def local(self) -> Path | None:
        """The folder that the address names, or None when it names none."""
        try:
            path = Path(self.address).expanduser()
        except RuntimeError:  # a user that does not exist
            return None
        return path.resolve() if self.address and path.is_dir() else None

    @property
    def env(self) -> Mapping[str, str]:
        """For commands that talk to the address; no tree can make them talk to another."""
        return {**QUIET, "GIT_ALLOW_PROTOCOL": "file" if self.local else PROTOCOLS}

    @property
    def target(self) -> str:
        """The address as git is given it."""
        local = self.local
        return str(local) if local is not None else self.address

    def reachable(self, seconds: float = 2.0) -> bool:
        """Whether the address answers within a time limit; a folder has to be a repository."""
        try:
            git.Git().execute(
                ["git", "ls-remote", "--quiet", "--end-of-options", self.target, "HEAD"],
                env=dict(self.env),
                # A big mirror on a cold disk takes long to list what it has, and does answer.
                kill_after_timeout=seconds if self.local is None else 15 * seconds,
            )
        except git.GitError:
            return False
        return True

    def refs(self, *patterns: str) -> dict[str, str]:
        """What the address offers: full ref names and the commits they name (tags peeled).

        Raises:
            SourceError: it can't be asked.
        """
        try:
            text = str(
                git.Git().execute(
                    ["git", "ls-remote", "--quiet", "--end-of-options", self.target, *patterns],
                    env=dict(self.env),
                )
            )
        except git.GitCommandError as error:
            raise self.explain(error, "its refs") from None
        found: dict[str, str] = {}
        for line in text.splitlines():
            sha, tab, ref = line.partition("\t")
            # An annotated tag is listed twice; the second line names the commit.
            if tab and re.fullmatch(r"[0-9a-f]{40}", sha):
                found[ref.removesuffix("^{}")] = sha
        return found

    def fetch(
        self,
        repository: Path,
        wanted: Sequence[str],
        *options: str,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Fetch refspecs or SHAs into a repository of ours; nothing else of it changes.

        Args:
            repository: where to.
            wanted: refspecs or SHAs.
            options: of `git fetch`.
            name: what the repository calls the address, if it does.
            env: variables that tell it the address by that name.

        Raises:
            SourceError: the address does not have them or can't be asked.
        """
        try:
            git.Git(repository).execute(
                ["git", "-c", f"core.hooksPath={os.devnull}", "-c", "gc.auto=0",
                 "-c", "maintenance.auto=false", "fetch", "--quiet", "--no-tags",
                 "--no-write-fetch-head", "--no-recurse-submodules", *options,
                 "--end-of-options", name or self.target, *wanted],
                env={**self.env, **(env or {}), "GIT_DIR": str(repository)},
            )  # fmt: skip
        except git.GitCommandNotFound:
            raise SourceError("source:broken", "git is not installed; install it.") from None
        except git.GitCommandError as error:
            raise self.explain(error, ", ".join(wanted)) from None

    def explain(self, error: git.GitCommandError, what: str) -> SourceError:
        """What git's refusal means, and what to do about it."""
        text = without_credentials(str(error.stderr).replace("stderr:", "").strip(" '\n"))
        lines = text.splitlines() or ["git gave no reason"]
        last = next((line for line in lines if line.startswith("fatal:")), lines[-1])
        lowered = text.lower()
        if any(mark in lowered for mark in _NO_REVISION):
            return SourceError(
                "source:no-such-revision",
                f"{self.name}: {self.shown} has no revision {what}. Correct the SHA in the "
                "campaign, or name the repository that has it with "
                f"--source {self.name}=PATH_OR_ADDRESS.",
            )
        if any(mark in lowered for mark in _UNREACHABLE):
            return SourceError(
                "source:unreachable",
                f"{self.name}: {self.shown} can't be reached ({last}). Name a local mirror with "
                f"--source {self.name}=PATH.",
            )
        return SourceError("source:broken", f"{self.name}: fetching {what} failed: {last}")


def without_credentials(text: str) -> str:
    """Text in which no address has a user name or password."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)
