"""The life of candidates: what came of each on each of many revisions, and who gets in whose way.

Nothing here needs a worktree or a GPU. What was found for one revision is kept, and found again
only when a head, a fork or this code's way of applying changes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock
from pydantic import Field, ValidationError

from matrix.models import Model
from patches.applying import Bench, Change, NoPatch, Pin
from patches.bases import Base
from patches.candidates import Candidate
from patches.changes import FileChange
from patches.history import is_sha
from patches.inert import GitFailed
from patches.merging import merge
from patches.results import Applied, Conflict, Contained, Result

#: Raised when the same inputs would give another answer than before.
_FINDING = 1


class Cell(Model):
    """A candidate on a revision."""

    base: str
    result: Result
    why: str | None = None
    contained: Contained | None = None
    reverted_by: str | None = None
    conflicts: list[Conflict] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    brings: list[str] = Field(default_factory=list)
    conflicts_with: list[str] = Field(default_factory=list)
    """Other candidates that apply here alone, but not together with this one."""
    tree: str | None = None


class Life(Model):
    """One candidate's life."""

    id: str
    shown: str
    title: str
    state: str
    claims: str
    links: list[str] = Field(default_factory=list)
    probes: list[str] = Field(default_factory=list)
    head: str
    fork: str | None = None
    stacks_on: list[str] = Field(default_factory=list)
    files: list[FileChange] = Field(default_factory=list)
    since: Contained | None = None
    """The sign by which the oldest revision that has it has it; None where none has."""
    unavailable: str | None = None
    """Why there is nothing to say."""
    cells: list[Cell] = Field(default_factory=list)
    """In order of the revisions; empty when unavailable."""


class Lives(Model):
    """All candidates of a component. The published form; fields are only added."""

    form: int = 1
    component: str
    roots: list[str]
    """Folders that are imported; files elsewhere may fail to apply."""
    bases: list[Base]
    candidates: list[Life]


class _Kept(Model):
    """What is remembered of one revision."""

    finding: int
    applied: dict[str, Applied] = Field(default_factory=dict)
    """By a digest of all that the answer depends on."""
    pairs: dict[str, bool] = Field(default_factory=dict)
    """Two such digests -> whether the two get in each other's way."""


class Memory:
    """What was found before, one file for each revision.

    Args:
        folder: where it is kept; safe to remove.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, base: str) -> _Kept:
        """What is remembered of a revision; nothing when the file is missing or damaged."""
        try:
            kept = _Kept.model_validate_json((self._folder / f"{base}.json").read_bytes())
        except (OSError, ValidationError):
            return _Kept(finding=_FINDING)
        return kept if kept.finding == _FINDING else _Kept(finding=_FINDING)

    def add(self, base: str, applied: dict[str, Applied], pairs: dict[str, bool]) -> None:
        """Remember more of a revision, beside what others may have found meanwhile."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / "lock"):
            before = self.read(base)
            kept = _Kept(
                finding=_FINDING,
                applied={**before.applied, **applied},
                pairs={**before.pairs, **pairs},
            )
            path = self._folder / f"{base}.json"
            new = path.with_suffix(f".{os.getpid()}.new")
            new.write_text(kept.model_dump_json(exclude_defaults=True), encoding="utf-8")
            new.replace(path)


class Finder:
    """Finds lives, remembering what it found.

    Args:
        bench: puts candidates onto revisions.
        memory: what was found before.
        doing: told what takes a while.
    """

    def __init__(self, bench: Bench, memory: Memory, doing: Callable[[str], None]) -> None:
        self._bench = bench
        self._memory = memory
        self._doing = doing
        self._changes: dict[tuple[str, bool], Change] = {}

    def find(
        self,
        component: str,
        bases: Sequence[Base],
        candidates: Sequence[tuple[Candidate, Pin]],
        missing: dict[str, str],
    ) -> Lives:
        """The lives of candidates on revisions.

        Args:
            component: whose.
            bases: oldest first.
            candidates: with their pins.
            missing: heads that the source does not have, and why.

        Raises:
            GitFailed: the source is damaged.
        """
        usable: list[Pin] = []
        unavailable: dict[str, str] = {}
        for _, pin in candidates:
            why = self._why_not(pin, missing)
            if why is None:
                usable.append(pin)
            else:
                unavailable[pin.id] = why
        forks = {pin.id: None if pin.text is not None else self._bench.fork(pin) for pin in usable}
        parents = {pin.id: self._parents(pin, forks, usable) for pin in usable}
        cells: dict[str, list[Cell]] = {pin.id: [] for pin in usable}
        files: dict[str, list[FileChange]] = {}
        for base in bases:
            for pin, answer, others in self._on(base, usable, forks, parents):
                files[pin.id] = answer.files
                cells[pin.id].append(_cell(answer, others))
        return Lives(
            component=component,
            roots=list(self._bench.roots),
            bases=list(bases),
            candidates=[
                Life(
                    id=pin.id,
                    shown=candidate.shown,
                    title=candidate.title,
                    state=candidate.state,
                    claims=candidate.claims,
                    links=[str(link) for link in candidate.links],
                    probes=candidate.probes,
                    head=pin.head,
                    fork=forks.get(pin.id),
                    stacks_on=list(
                        dict.fromkeys(
                            [*parents.get(pin.id, ()), *filter(None, [candidate.stacked_on])]
                        )
                    ),
                    files=files.get(pin.id, []),
                    since=next((c.contained for c in cells.get(pin.id, ()) if c.contained), None),
                    unavailable=unavailable.get(pin.id),
                    cells=cells.get(pin.id, []),
                )
                for candidate, pin in candidates
            ],
        )

    def _why_not(self, pin: Pin, missing: dict[str, str]) -> str | None:
        if pin.text is not None:
            try:
                self._change(pin, (), (), own=False)
            except NoPatch as error:
                return str(error)
            return None
        if not is_sha(pin.head):
            return "nobody has seen its head in full yet"
        if pin.head in missing:
            return missing[pin.head]
        try:
            self._bench.fork(pin)
        except GitFailed as failed:
            return str(failed)
        return None

    def _parents(
        self, pin: Pin, forks: dict[str, str | None], usable: Sequence[Pin]
    ) -> tuple[str, ...]:
        """Candidates that a request contains with commits that its target does not have."""
        fork = forks[pin.id]
        if fork is None:
            return ()
        commits = self._bench.past.commits
        own = commits.ancestors(pin.head) - commits.ancestors(fork)
        return tuple(other.id for other in usable if other.head in own and other.head != pin.head)

    def _on(
        self,
        base: Base,
        usable: Sequence[Pin],
        forks: dict[str, str | None],
        parents: dict[str, tuple[str, ...]],
    ) -> list[tuple[Pin, Applied, list[str]]]:
        """What comes of every candidate on one revision, and who conflicts with whom."""
        kept = self._memory.read(base.sha)
        keys = {pin.id: self._key(pin, forks[pin.id], parents[pin.id]) for pin in usable}
        new: dict[str, Applied] = {}
        answers: dict[str, Applied] = {}
        # A request that stacks on another is asked after it: what it brings depends on that.
        for pin in sorted(usable, key=lambda pin: len(parents[pin.id])):
            key = keys[pin.id]
            if key in kept.applied:
                answers[pin.id] = kept.applied[key]
                continue
            self._doing(f"{base.name}: {pin.id}")
            brings = [id_ for id_ in parents[pin.id] if answers[id_].result != "contained"]
            own = bool(parents[pin.id]) and not brings
            change = self._change(pin, usable, parents[pin.id], own=own)
            answer = self._bench.apply(change, base.sha, self._bench.history.tree_of(base.sha))
            new[key] = answers[pin.id] = answer.model_copy(update={"brings": brings})
        pairs = self._pairs(base, usable, answers, keys, kept.pairs)
        if new or pairs.keys() - kept.pairs.keys():
            self._memory.add(base.sha, new, pairs)
        return [
            (
                pin,
                answers[pin.id],
                [
                    other.id
                    for other in usable
                    if other.id != pin.id and pairs.get(_pair(keys[pin.id], keys[other.id]))
                ],
            )
            for pin in usable
        ]

    def _change(
        self, pin: Pin, usable: Sequence[Pin], parents: Sequence[str], *, own: bool
    ) -> Change:
        """A candidate's change, whole or without what it stacks on."""
        key = (pin.id, own)
        if key not in self._changes:
            below = [p for p in usable if p.id in parents] if own else []
            others = [self._change(p, usable, (), own=False) for p in below]
            self._changes[key] = self._bench.change(pin, others)
        return self._changes[key]

    def _pairs(
        self,
        base: Base,
        usable: Sequence[Pin],
        answers: dict[str, Applied],
        keys: dict[str, str],
        known: dict[str, bool],
    ) -> dict[str, bool]:
        found: dict[str, bool] = {}
        tree = ""
        fitting = [p for p in usable if answers[p.id].result in ("clean", "three-way")]
        for place, one in enumerate(fitting):
            for other in fitting[place + 1 :]:
                a, b = answers[one.id], answers[other.id]
                key = _pair(keys[one.id], keys[other.id])
                if key in known:
                    found[key] = known[key]
                elif one.id in b.brings or other.id in a.brings or not (_paths(a) & _paths(b)):
                    found[key] = False
                else:
                    self._doing(f"{base.name}: {one.id} with {other.id}")
                    tree = tree or self._bench.history.tree_of(base.sha)
                    together = merge(self._bench.history, tree, a.tree or tree, b.tree or tree)
                    wanted = _paths(a) | _paths(b)
                    found[key] = any(clash.path in wanted for clash in together.clashes)
        return found

    def _key(self, pin: Pin, fork: str | None, parents: tuple[str, ...]) -> str:
        text = json.dumps([pin.id, pin.number, pin.head, fork, parents, self._bench.roots])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pair(one: str, other: str) -> str:
    return " ".join(sorted((one, other)))


def _paths(answer: Applied) -> set[str]:
    """What a candidate changes in the imported tree, by old and new names."""
    return {
        path
        for file in answer.files
        if file.matters
        for path in (file.path, file.old_path)
        if path is not None
    }


def _cell(answer: Applied, others: list[str]) -> Cell:
    return Cell(
        base=answer.base,
        result=answer.result,
        why=answer.why,
        contained=answer.contained,
        reverted_by=answer.reverted_by,
        conflicts=answer.conflicts,
        left_out=answer.left_out,
        brings=answer.brings,
        conflicts_with=others,
        tree=answer.tree,
    )
