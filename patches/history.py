"""A component's commits: branches, releases and heads of pull requests, to be looked at.

A local mirror is read where it lies, and nothing of it is copied; of a remote the commits and the
trees are fetched, and contents when they are needed. What is made here, such as a merged tree, is
written into a repository of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from patches.inert import INERT, QUIET, GitFailed, Inert, git
from patches.remotes import Remote, SourceError

#: What our repositories call the address; the address itself is told with each command, since it
#: may hold a password.
_NAME = "from"
#: No fetch writes nothing for an hour and lives.
_OLD_S = 3600.0
_FORMAT = "%H%x00%P%x00%ct%x00%s"


@dataclass(frozen=True)
class Commit:
    """What is known of one commit without looking at its contents."""

    sha: str
    parents: tuple[str, ...]
    time: int
    """Committed, in seconds since 1970."""
    subject: str


@dataclass
class Commits:
    """Commits in memory, and who comes from whom."""

    all: dict[str, Commit]
    _ancestors: dict[str, frozenset[str]] = field(default_factory=dict)

    def ancestors(self, sha: str) -> frozenset[str]:
        """A commit and all that it comes from; empty for an unknown one."""
        if sha not in self._ancestors:
            seen: set[str] = set()
            waiting = [sha]
            while waiting:
                name = waiting.pop()
                if name not in seen and name in self.all:
                    seen.add(name)
                    waiting += self.all[name].parents
            self._ancestors[sha] = frozenset(seen)
        return self._ancestors[sha]

    def first_parents(self, sha: str) -> list[Commit]:
        """A branch's own line, newest first."""
        line: list[Commit] = []
        while sha in self.all:
            line.append(self.all[sha])
            parents = self.all[sha].parents
            if not parents:
                break
            sha = parents[0]
        return line


class History(Inert):
    """One component's commits.

    Args:
        remote: where they come from.
        cache: folder of mirrors.
    """

    def __init__(self, remote: Remote, cache: Path) -> None:
        # Repositories that borrow from different places must not be mixed up.
        digest = hashlib.sha256(remote.target.encode()).hexdigest()[:8]
        super().__init__(cache / f"{remote.name}-history-{digest}.git")
        self.remote = remote
        self._lock = FileLock(cache / f"{remote.name}-history-{digest}.lock")
        self._refs: dict[str, str] | None = None
        self._named = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"remote.{_NAME}.url",
            "GIT_CONFIG_VALUE_0": remote.address,
        }
        if remote.local is None:
            # Contents come over the network when they are first needed, through the machine's own
            # proxies and certificates. Attributes of trees stay without effect.
            self.surroundings = {
                **{name: value for name, value in INERT.items() if "_CONFIG_" not in name},
                **remote.env,
                **self._named,
            }

    @property
    def refs(self) -> dict[str, str]:
        """Refs as the address has them (`refs/heads/dev`), with their commits."""
        if self._refs is None:
            self._refs = {}
            if (self.folder / "HEAD").exists():
                for line in self.text(
                    "for-each-ref", "--format=%(objectname) %(refname)", "refs/from/"
                ).splitlines():
                    sha, _, ref = line.partition(" ")
                    self._refs["refs/" + ref.removeprefix("refs/from/")] = sha
        return self._refs

    def branch(self, name: str) -> str | None:
        """The commit at the tip of a branch, or None when there is none."""
        return self.refs.get(f"refs/heads/{name}") or self.refs.get(f"refs/remotes/origin/{name}")

    def sync(
        self,
        *,
        branches: Iterable[str] = (),
        tags: Sequence[str] = (),
        heads: Iterable[tuple[int | None, str]] = (),
        again: bool = False,
    ) -> dict[str, str]:
        """Have the named branches, tags (patterns) and commits here.

        Args:
            branches: names.
            tags: patterns such as `core_v*`.
            heads: (pull request's number, SHA) of commits that must be here.
            again: ask a remote even when everything is here already.

        Returns:
            SHA -> why it can't be had, for the heads that can't.

        Raises:
            SourceError: the address can't be asked and something is missing.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            try:
                return self._sync(list(branches), tags, list(heads), again=again)
            except (GitFailed, git.GitError, OSError, ValueError):
                # Damaged, or cut short beyond repair: everything in it can be had again.
                shutil.rmtree(self.folder, ignore_errors=True)
                self._refs = None
            try:
                return self._sync(list(branches), tags, list(heads), again=again)
            except (GitFailed, git.GitError, OSError, ValueError) as error:
                text = " ".join(str(error).split())[-300:]
                raise SourceError("source:broken", f"{self.remote.name}: {text}") from None

    def _sync(
        self,
        branches: list[str],
        tags: Sequence[str],
        heads: list[tuple[int | None, str]],
        *,
        again: bool,
    ) -> dict[str, str]:
        self.create()
        self._sweep()
        local = self.remote.local
        patterns = [f"refs/heads/{name}" for name in branches]
        patterns += [f"refs/tags/{pattern}" for pattern in tags]
        if local is not None:
            self._borrow(local)
            patterns += [f"refs/remotes/origin/{name}" for name in branches]
            offered = self.remote.refs(*patterns) if patterns else {}
            self._point(offered)
        else:
            self._promise()
            lacking = any(self.branch(name) is None for name in branches)
            if lacking or again:
                offered = self.remote.refs(*patterns)
                self._fetch([f"+{ref}:refs/from/{ref.removeprefix('refs/')}" for ref in offered])
                self._refs = None
        return self._have(heads)

    def _fetch(self, wanted: list[str]) -> None:
        """Fetch refspecs, without contents where the address allows that."""
        if not wanted:
            return
        if self.remote.local is not None:
            self.remote.fetch(self.folder, wanted)
            return
        # By the name that has the filter: git would write any other address into a file.
        self.remote.fetch(self.folder, wanted, name=_NAME, env=self._named)

    def _have(self, heads: list[tuple[int | None, str]]) -> dict[str, str]:
        missing: dict[str, str] = {}
        for number, sha in heads:
            if self.is_commit(sha):
                continue
            wishes = [f"+{sha}:refs/from/pinned/{sha}"]
            if number is not None:
                wishes.insert(0, f"+refs/pull/{number}/head:refs/from/pull/{number}/head")
            why = ""
            for wish in wishes:
                try:
                    self._fetch([wish])
                except SourceError as error:
                    why = str(error)
                    if error.reason == "source:unreachable":
                        break
                if self.is_commit(sha):
                    break
            else:
                why = f"{self.remote.name}: {self.remote.shown} does not have {sha}"
            if not self.is_commit(sha):
                missing[sha] = why
        self._refs = None
        return missing

    def _borrow(self, local: Path) -> None:
        """Read a local repository's objects where they lie; its settings are never read here."""
        place = git.Git(local).execute(
            ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"], env=dict(QUIET)
        )
        folder = Path(str(place))
        if "\n" in str(folder) or '"' in str(folder):
            raise SourceError("source:broken", f"{self.remote.name}: rename the mirror's folder.")
        borrowed = self.folder / "objects" / "info" / "alternates"
        borrowed.parent.mkdir(parents=True, exist_ok=True)
        borrowed.write_text(f"{folder / 'objects'}\n", encoding="utf-8")
        shallow = folder / "shallow"
        if shallow.is_file():
            shutil.copyfile(shallow, self.folder / "shallow")
        else:
            (self.folder / "shallow").unlink(missing_ok=True)

    def _point(self, offered: dict[str, str]) -> None:
        """Make our refs those that are offered."""
        lines = [
            f"update refs/from/{ref.removeprefix('refs/')} {sha}\n"
            for ref, sha in offered.items()
            if self.refs.get(ref) != sha
        ]
        if lines:
            self.text("update-ref", "--stdin", feed="".join(lines).encode())
            self._refs = None

    def _promise(self) -> None:
        """Contents are fetched when they are asked for; from the address of this call alone."""
        for name, value in (
            ("core.repositoryformatversion", "1"),
            ("extensions.partialClone", _NAME),
            (f"remote.{_NAME}.promisor", "true"),
            (f"remote.{_NAME}.partialclonefilter", "blob:none"),
        ):
            self.text("config", "--file", str(self.folder / "config"), name, value)

    def _sweep(self) -> None:
        """Remove what a killed fetch leaves.

        Locks of refs are made under our own lock only, so they are nobody's. Half a pack may be one
        that another process is fetching contents into at this moment, unless it is old.
        """
        for pattern in ("*.lock", "refs/**/*.lock"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        for path in self.folder.glob("objects/pack/tmp_*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _OLD_S:
                    path.unlink()

    def commits(self, tips: Iterable[str]) -> Commits:
        """Every commit that the tips come from.

        Raises:
            GitFailed: a tip is not here.
        """
        feed = "".join(f"{tip}\n" for tip in sorted(set(tips)))
        if not feed:
            return Commits({})
        out = self.output(
            "log", "--stdin", "-z", "--topo-order", f"--format={_FORMAT}", feed=feed.encode()
        )
        parts = out.decode("utf-8", "replace").rstrip("\0").split("\0")
        # The subject may be empty, so parts are taken four at a time.
        found: dict[str, Commit] = {}
        for place in range(0, len(parts) - 3, 4):
            sha, parents, seconds, subject = parts[place : place + 4]
            found[sha] = Commit(sha, tuple(parents.split()), int(seconds), subject)
        return Commits(found)

    def tree_of(self, commit: str) -> str:
        """The tree of a commit."""
        return self.text("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")

    def merge_base(self, one: str, other: str) -> str | None:
        """The best common ancestor of two commits; None when they have none."""
        found = self.text("merge-base", one, other, ok=(0, 1))
        return found.splitlines()[0] if found else None


def is_sha(text: str) -> bool:
    """Whether a text is a full commit SHA."""
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None
