"""Whether a revision has a candidate already, and by which sign."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from patches.changes import patch_text, unquoted
from patches.history import Commit, Commits, History
from patches.inert import GitFailed
from patches.results import Contained

_LOG = (
    "log", "-p", "--no-merges", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color",
    "--binary",
)  # fmt: skip
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


@dataclass(frozen=True)
class Request:
    """A pull request's change, as it is looked for."""

    number: int | None
    head: str
    fork: str
    """Where it left its target."""
    before: str
    """The tree that it changes; another than the fork's where it stacks on another request."""
    after: str
    paths: tuple[str, ...]
    """What it changes, moved files by both names; sorted."""
    beyond: tuple[str, ...]
    """Commits whose own past is no part of it."""


@dataclass(frozen=True)
class _Ids:
    """Patch ids of a request: of the whole, of taking it out, and of each of its commits."""

    whole: str
    opposite: str
    each: tuple[str, ...]


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
    _own: dict[tuple[str, ...], _Ids] = field(default_factory=dict)

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

    def contained(self, base: str, request: Request) -> tuple[Contained | None, str | None]:
        """Whether a revision has a pull request, and the commit that took it out again, if any.

        Raises:
            GitFailed: a commit can't be read.
        """
        past = self.commits.ancestors(base)
        squash: Commit | None = None
        taken_out: Commit | None = None
        for mention in self._mentions.get(request.number or 0, ()):
            if mention.commit.sha not in past:
                continue
            if mention.takes_out:
                taken_out, squash = mention.commit, None
            elif not mention.squash or self._touches(mention.commit, request.paths):
                taken_out, squash = None, mention.commit
        if taken_out is not None:
            return None, taken_out.sha
        found: Contained | None = None
        if request.head in past:
            brought = self.brought(base, request.head)
            found = Contained(sign="ancestor", commit=brought.sha, date=_date(brought))
        elif squash is not None:
            differing = self._differing(squash, request)
            found = Contained(
                sign="squash",
                commit=squash.sha,
                date=_date(squash),
                differs=None if differing is None else bool(differing),
                differing=differing or [],
            )
        else:
            found = self._by_patch_id(request, past)
        undone = None if found is None else self._undone(request, str(found.commit), past)
        return (found, None) if undone is None else (None, undone)

    def _touches(self, commit: Commit, paths: Sequence[str]) -> bool:
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

    def _differing(self, squash: Commit, request: Request) -> list[str] | None:
        """Files in which a squashed commit is another change than the head."""
        if not squash.parents:
            return None
        merged = per_file(patch_text(self.history, squash.parents[0], squash.sha))
        seen = per_file(patch_text(self.history, request.before, request.after))
        return sorted(path for path in {*merged, *seen} if merged.get(path) != seen.get(path))

    def _by_patch_id(self, request: Request, past: frozenset[str]) -> Contained | None:
        if not request.paths:
            return None
        own = self._own_ids(request)
        same = self._commits_with(request)
        found = self._newest(same.get(own.whole, ()), past)
        if found is None and len(own.each) > 1:
            # A request that was merged commit by commit.
            each = [self._newest(same.get(name, ()), past) for name in own.each]
            if None not in each:
                found = self._newest([commit.sha for commit in each if commit is not None], past)
        if found is None:
            return None
        return Contained(sign="patch-id", commit=found.sha, date=_date(found), differs=False)

    def _undone(self, request: Request, since: str, past: frozenset[str]) -> str | None:
        """A commit after another one that makes the opposite change, under whatever name."""
        if not request.paths:
            return None
        same = self._commits_with(request)
        own = self._own_ids(request)
        back = self._newest(same.get(own.opposite, ()), past)
        if back is None or self._place[back.sha] >= self._place.get(since, -1):
            return None
        again = self._newest(same.get(own.whole, ()), past)
        if again is not None and self._place[again.sha] < self._place[back.sha]:
            return None
        return back.sha

    def _newest(self, shas: Iterable[str], past: frozenset[str]) -> Commit | None:
        here = [sha for sha in shas if sha in past]
        return self.commits.all[min(here, key=self._place.__getitem__)] if here else None

    @cached_property
    def _place(self) -> dict[str, int]:
        """Commits by topological order: the newest is 0."""
        return {sha: place for place, sha in enumerate(self.commits.all)}

    def _own_ids(self, request: Request) -> _Ids:
        key = (request.before, request.after, request.head)
        if key not in self._own:
            whole = self._pairs(patch_text(self.history, request.before, request.after))
            opposite = self._pairs(patch_text(self.history, request.after, request.before))
            out = self.history.output(
                *_LOG, "--stdin", feed=_listed([request.head], request.beyond)
            )
            self._own[key] = _Ids(
                whole=whole[0][0] if whole else "",
                opposite=opposite[0][0] if opposite else "",
                each=tuple(name for name, _ in self._pairs(out)),
            )
        return self._own[key]

    def _commits_with(self, request: Request) -> dict[str, list[str]]:
        """Patch id -> commits, of what revisions have beyond the fork, in these files alone."""
        key = (request.fork, *request.paths)
        if key not in self._same:
            # By standard input: a request can change more files than a command line has room for.
            out = self.history.output(
                *_LOG, "--stdin", feed=_listed(self.tips, [request.fork], request.paths)
            )
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
        kept = [
            line
            for line in section.split(b"\n")
            if not line.startswith((b"index ", b"@@ ", b"similarity index"))
        ]
        found[_path(section)] = hashlib.sha256(b"\n".join(kept)).hexdigest()
    return found


def _path(section: bytes) -> str:
    """The path of one file's part of a patch."""
    for line in section.split(b"\n"):
        if line.startswith((b"+++ ", b"--- ")) and not line.startswith((b"+++ /dev", b"--- /dev")):
            found = unquoted(line[4:])[2:]
            if line.startswith(b"+++ "):
                return found
            continue
        if line.startswith(b"rename to "):
            return unquoted(line[10:])
        if line.startswith(b"@@ "):
            break
    # A binary or deleted file: the header has the name twice.
    head = section.partition(b"\n")[0]
    start = head.rfind(b' "b/') if head.endswith(b'"') else head.rfind(b" b/")
    return unquoted(head[start + 1 :])[2:]


def _listed(tips: Iterable[str], beyond: Iterable[str], paths: Sequence[str] = ()) -> bytes:
    """Revisions and paths as `git log --stdin` takes them."""
    lines = [*tips, *(f"^{name}" for name in beyond)]
    if paths:
        lines += ["--", *paths]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")


def _date(commit: Commit) -> dt.date:
    return dt.datetime.fromtimestamp(commit.time, dt.UTC).date()
