"""Whether a revision has a candidate already, and by which sign."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from patches.changes import patch_text
from patches.history import Commit, Commits, History
from patches.inert import GitFailed
from patches.results import Contained

_NUMBER = re.compile(r"\(#(\d+)\)\s*$")
_QUOTED = re.compile(r'^(Revert|Reapply) "(.*)"')
_WITHIN = re.compile(r"\(#(\d+)\)")


@dataclass(frozen=True)
class Mention:
    """A commit that says it brings a pull request in, or takes it out."""

    commit: Commit
    takes_out: bool
    squash: bool
    """Its own subject ends with the number, so its change can be compared with the head's."""


@dataclass
class Past:
    """The commits that revisions come from, searched once for many candidates.

    Args:
        history: where the commits are.
        commits: every commit that the revisions and the candidates' heads come from.
        tips: the revisions that will be asked about.
    """

    history: History
    commits: Commits
    tips: tuple[str, ...]
    _same: dict[tuple[str, ...], dict[str, list[str]]] = field(default_factory=dict)
    _own: dict[tuple[str, str], tuple[str, list[str]]] = field(default_factory=dict)

    @cached_property
    def _mentions(self) -> dict[int, list[Mention]]:
        """Pull request -> commits that name it, oldest first."""
        found: dict[int, list[Mention]] = defaultdict(list)
        # In topological order, newest first; a clock that was wrong plays no part.
        for commit in reversed(self.commits.all.values()):
            quoted = _QUOTED.match(commit.subject)
            if quoted:
                for number in _WITHIN.findall(quoted[2])[-1:]:
                    out = quoted[1] == "Revert" and not quoted[2].startswith("Revert ")
                    found[int(number)].append(Mention(commit, out, squash=False))
            ending = _NUMBER.search(commit.subject)
            if ending and not (quoted and not commit.subject[quoted.end() :].strip()):
                found[int(ending[1])].append(Mention(commit, takes_out=False, squash=True))
        return found

    def contained(
        self,
        base: str,
        *,
        number: int | None,
        head: str,
        fork: str,
        paths: Iterable[str],
    ) -> tuple[Contained | None, str | None]:
        """Whether a revision has a pull request, and the commit that took it out again, if any.

        Args:
            base: the revision.
            number: the pull request's number.
            head: its head.
            fork: where its change begins.
            paths: what it changes, moved files by both names.

        Raises:
            GitFailed: a commit can't be read.
        """
        past = self.commits.ancestors(base)
        wanted = sorted(set(paths))
        taken_out: str | None = None
        squash: Commit | None = None
        for mention in self._mentions.get(number, ()) if number is not None else ():
            if mention.commit.sha not in past:
                continue
            if mention.takes_out:
                taken_out, squash = mention.commit.sha, None
            elif not mention.squash or self._touches(mention.commit, wanted):
                taken_out, squash = None, mention.commit
        if taken_out is not None:
            return None, taken_out
        if head in past:
            brought = self.brought(base, head)
            return Contained(sign="ancestor", commit=brought.sha, date=_date(brought)), None
        if squash is not None:
            differing = self._differing(squash, fork, head)
            return (
                Contained(
                    sign="squash",
                    commit=squash.sha,
                    date=_date(squash),
                    differs=None if differing is None else bool(differing),
                    differing=differing or [],
                ),
                None,
            )
        return self._by_patch_id(head, fork, wanted, past), None

    def _touches(self, commit: Commit, paths: list[str]) -> bool:
        if not paths or not commit.parents:
            return True
        changed = self.history.output(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", commit.parents[0], commit.sha
        )
        return bool({*changed.decode("utf-8", "surrogateescape").split("\0")} & {*paths})

    def brought(self, base: str, head: str) -> Commit:
        """The commit of a revision's own line with which one of its ancestors came in."""
        past = self.commits.ancestors(base)
        after = {head}
        for commit in reversed(self.commits.all.values()):
            if commit.sha in past and after & {*commit.parents}:
                after.add(commit.sha)
        brought = self.commits.all[head]
        for commit in self.commits.first_parents(base):
            if commit.sha not in after:
                break
            brought = commit
        return brought

    def _differing(self, squash: Commit, fork: str, head: str) -> list[str] | None:
        """Files in which a squashed commit is another change than the head."""
        if not squash.parents:
            return None
        merged = per_file(patch_text(self.history, squash.parents[0], squash.sha))
        seen = per_file(patch_text(self.history, fork, head))
        return sorted(path for path in {*merged, *seen} if merged.get(path) != seen.get(path))

    def _by_patch_id(
        self, head: str, fork: str, paths: list[str], past: frozenset[str]
    ) -> Contained | None:
        if not paths:
            return None
        whole, own = self._own_ids(fork, head)
        same = self._commits_with(fork, paths)
        for sha in same.get(whole, ()):
            if sha in past:
                commit = self.commits.all[sha]
                return Contained(sign="patch-id", commit=sha, date=_date(commit), differs=False)
        # A request that was merged commit by commit.
        found = [[sha for sha in same.get(name, ()) if sha in past] for name in own]
        if len(found) > 1 and all(found):
            order = {sha: place for place, sha in enumerate(self.commits.all)}
            last = min((shas[0] for shas in found), key=lambda sha: order.get(sha, 0))
            return Contained(
                sign="patch-id", commit=last, date=_date(self.commits.all[last]), differs=False
            )
        return None

    def _own_ids(self, fork: str, head: str) -> tuple[str, list[str]]:
        """Patch ids of a request: of the whole, and of each of its commits."""
        key = (fork, head)
        if key not in self._own:
            whole = [name for name, _ in self._pairs(patch_text(self.history, fork, head))]
            out = self.history.output(
                "log", "-p", "--no-merges", "--full-index", "--no-ext-diff", "--no-textconv",
                "--no-color", f"{fork}..{head}",
            )  # fmt: skip
            self._own[key] = (next(iter(whole), ""), [name for name, _ in self._pairs(out)])
        return self._own[key]

    def _commits_with(self, fork: str, paths: list[str]) -> dict[str, list[str]]:
        """Patch id -> commits, of what revisions have beyond the fork, in these files alone."""
        key = (fork, *paths)
        if key not in self._same:
            out = self.history.output(
                "log", "-p", "--no-merges", "--full-index", "--no-ext-diff", "--no-textconv",
                "--no-color", "--stdin", "--", *paths,
                feed="".join(f"{tip}\n" for tip in (*self.tips, f"^{fork}")).encode(),
            )  # fmt: skip
            found: dict[str, list[str]] = defaultdict(list)
            for name, sha in self._pairs(out):
                found[name].append(sha)
            self._same[key] = found
        return self._same[key]

    def _pairs(self, patch: bytes) -> list[tuple[str, str]]:
        # Whitespace is kept: in Python it is part of the program.
        try:
            text = self.history.text("patch-id", "--verbatim", feed=patch)
        except GitFailed:  # before git 2.39
            text = self.history.text("patch-id", "--stable", feed=patch)
        return [(line.split()[0], line.split()[1]) for line in text.splitlines() if " " in line]


def per_file(patch: bytes) -> dict[str, str]:
    """Path -> digest of what a patch does to it, wherever in the file it does it."""
    found: dict[str, str] = {}
    for section in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE):
        if not section.startswith(b"diff --git "):
            continue
        head, _, _ = section.partition(b"\n")
        kept = [
            line
            for line in section.split(b"\n")
            if not line.startswith((b"index ", b"@@ ", b"similarity index"))
        ]
        name = head.rpartition(b" b/")[2].rstrip(b'"').decode("utf-8", "replace")
        found[name] = hashlib.sha256(b"\n".join(kept)).hexdigest()
    return found


def _date(commit: Commit) -> dt.date:
    return dt.datetime.fromtimestamp(commit.time, dt.UTC).date()
