"""Candidates put onto a revision, one after another, without a worktree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from patches.changes import FileChange, changed_files, matters, patch_text, tree_with
from patches.conflicts import described
from patches.containment import Past, Request
from patches.history import History, is_sha
from patches.inert import GitFailed
from patches.merging import Clash, Scratch, merge
from patches.results import Applied, Contained
from patches.unsafe import bad_path, dangers, shown


class NoPatch(Exception):
    """A patch file holds no patch."""


class OrderError(Exception):
    """Candidates are named in an order in which they can't be applied."""


@dataclass(frozen=True)
class Pin:
    """A candidate pinned to exactly one change."""

    id: str
    head: str
    """Full SHA; `sha256:` and a digest for a patch file; `unknown` where nobody saw it."""
    component: str = ""
    number: int | None = None
    fork: str | None = None
    """The commit it was written against, when that is recorded."""
    target: str | None = None
    """The branch that it is meant for."""
    text: bytes | None = None
    """The patch itself, for a patch file."""


@dataclass(frozen=True)
class Change:
    """What one pin adds, read once and put onto many revisions."""

    pin: Pin
    fork: str | None
    before: str
    """Trees; for a patch file both are empty."""
    after: str
    files: tuple[FileChange, ...]
    plain: bytes
    """The part that matters, as a patch."""
    wanted: str
    """`before` with only the part that matters."""
    below: tuple[str, ...] = ()
    """Heads of the candidates that it stacks on, and that are no part of it."""
    refused: tuple[str, ...] = ()
    """Why nothing of it is used; then the rest is empty."""

    @property
    def request(self) -> Request:
        """The change as it is looked for in a revision's past."""
        paths = {path for file in self.files for path in (file.path, file.old_path) if path}
        fork = self.fork or ""
        return Request(
            number=self.pin.number,
            head=self.pin.head,
            fork=fork,
            before=self.before,
            after=self.after,
            paths=tuple(sorted(paths)),
            beyond=(fork, *self.below),
        )


class Bench:
    """One component's history with what is needed to put candidates onto its revisions.

    Args:
        history: has every commit in question.
        past: the same commits in memory.
        roots: folders of the tree that are imported; the rest may fail to apply.
    """

    def __init__(self, history: History, past: Past, roots: Sequence[str]) -> None:
        self.history = history
        self.past = past
        self.roots = tuple(roots)

    def change(self, pin: Pin, others: Sequence[Change] = ()) -> Change:
        """What a pin adds to where it branched off its own target.

        Args:
            pin: the candidate.
            others: candidates that it may stack on; only what it adds to them is taken.

        Raises:
            NoPatch: it is a patch file that holds none.
            GitFailed: a commit is missing or shares no history with its target.
        """
        if pin.text is not None:
            files = self._files_of(pin.text)
            bad = tuple(
                f"{shown(file.path)} {why}" for file in files if (why := bad_path(file.path))
            )
            return Change(pin, None, "", "", tuple(files), pin.text, "", refused=bad)
        fork = self.fork(pin)
        lower = [other for other in others if self.stacks_on(pin, fork, other)]
        before, after = self._before(fork, lower), self.history.tree_of(pin.head)
        if before is None:  # what it adds to them can't be told from them
            lower, before = [], self.history.tree_of(fork)
        below = tuple(other.pin.head for other in lower)
        # Looked at before anything else: what is refused is not even made into a patch.
        refused = dangers(self.history, before, after)
        if refused:
            return Change(pin, fork, before, after, (), b"", before, below, tuple(refused))
        files = changed_files(self.history, before, after, self.roots)
        wanted = [file for file in files if file.matters]
        with Scratch(self.history) as scratch:
            tree = (
                after
                if len(wanted) == len(files)
                else tree_with(self.history, before, after, wanted, scratch.index)
            )
        plain = patch_text(self.history, before, tree)
        return Change(pin, fork, before, after, tuple(files), plain, tree, below)

    def _before(self, fork: str, lower: Sequence[Change]) -> str | None:
        """The tree that a request changes: its fork's, with the requests that it stacks on.

        None where those conflict with the commit at which it left its target.
        """
        tree = self.history.tree_of(fork)
        commits = self.past.commits
        for other in lower:
            if any(other.pin.head in commits.ancestors(o.pin.head) for o in lower if o != other):
                continue  # it is in one of the others
            # Where the target was merged in since, its changes are no part of what is on top.
            common = self.history.merge_base(other.pin.head, fork) or fork
            merged = merge(
                self.history,
                self.history.tree_of(common),
                tree,
                self.history.tree_of(other.pin.head),
            )
            if merged.clashes:
                return None
            tree = merged.tree
        return tree

    def fork(self, pin: Pin) -> str:
        """Where a pull request's change begins.

        Raises:
            GitFailed: there is no such commit.
        """
        if not is_sha(pin.head):
            raise GitFailed(1, f"the head of {pin.id} is {pin.head}")
        if pin.fork is not None:
            if pin.fork not in self.past.commits.ancestors(pin.head):
                raise GitFailed(1, f"{pin.fork} is no ancestor of {pin.head}; correct `base`")
            return pin.fork
        tip = self.history.branch(pin.target or "")
        if tip is None:
            raise GitFailed(1, f"{pin.id}: there is no branch {pin.target!r} to compare with")
        if pin.head in self.past.commits.ancestors(tip):
            # Merged as it is: it branched off from what its target was before that.
            brought = self.past.brought(tip, pin.head)
            if brought.sha == pin.head or not brought.parents:
                raise GitFailed(1, f"{pin.id} is a commit of {pin.target} itself; record `base`")
            tip = brought.parents[0]
        found = self.history.merge_base(pin.head, tip)
        if found is None:
            raise GitFailed(1, f"{pin.head} and {pin.target} have no common history")
        return found

    def stacks_on(self, pin: Pin, fork: str, other: Change) -> bool:
        """Whether a pull request contains another one, which its target does not have."""
        if other.fork is None or not is_sha(pin.head) or other.pin.head == pin.head:
            return False
        commits = self.past.commits
        return other.pin.head in commits.ancestors(pin.head) - commits.ancestors(fork)

    def apply(self, change: Change, base: str, tree: str, *, look_back: bool = True) -> Applied:
        """Put one change onto a tree.

        Args:
            change: what to put there.
            base: the revision that the tree comes from.
            tree: the tree, candidates put there before included.
            look_back: look for signs in the revision's past that it is contained.

        Raises:
            GitFailed: something that should be there can't be read.
        """
        pin = change.pin
        answer = Applied(
            id=pin.id,
            head=pin.head,
            fork=change.fork,
            base=base,
            result="unavailable",
            files=list(change.files),
        )
        if change.refused:
            return answer.model_copy(
                update={"result": "unsafe", "why": "; ".join(change.refused[:3])}
            )
        if not any(file.matters for file in change.files):
            return answer.model_copy(
                update={"result": "contained", "contained": Contained(sign="empty"), "tree": tree}
            )
        if look_back and change.fork is not None:
            found, reverted = self.past.contained(base, change.request)
            if found is not None:
                return answer.model_copy(
                    update={"result": "contained", "contained": found, "tree": tree}
                )
            answer = answer.model_copy(update={"reverted_by": reverted})
        with Scratch(self.history) as scratch:
            answer = (
                self._put_patch(answer, change, tree, scratch)
                if pin.text is not None
                else self._put(answer, change, tree, scratch)
            )
        return self._checked(answer, tree)

    def _put(self, answer: Applied, change: Change, tree: str, scratch: Scratch) -> Applied:
        """The change of a pull request: both ways are tried, since they can disagree."""
        plain, _, _ = scratch.plainly(tree, change.plain)
        everything = len([f for f in change.files if not f.matters]) == 0
        full = merge(self.history, change.before, tree, change.after)
        wanted = full if everything else merge(self.history, change.before, tree, change.wanted)
        clashes = [clash for clash in wanted.clashes if matters(clash.path, self.roots)]
        if wanted.clashes:
            if plain is None or clashes != list(wanted.clashes):
                return self._conflict(answer, wanted.tree, wanted.clashes)
            return answer.model_copy(update={"result": "clean", "tree": plain})
        if wanted.tree == tree:
            return answer.model_copy(
                update={
                    "result": "contained",
                    "contained": Contained(sign="no-effect"),
                    "tree": tree,
                }
            )
        # A hunk that fits in two places may land in the wrong one; the merge knows better.
        result = "clean" if plain == wanted.tree else "three-way"
        if not full.clashes:
            return answer.model_copy(update={"result": result, "tree": full.tree})
        left_out = self._left_out(change, full.clashes)
        kept = [file for file in change.files if file.matters or file.path not in left_out]
        partly = merge(
            self.history,
            change.before,
            tree,
            tree_with(self.history, change.before, change.after, kept, scratch.index),
        )
        outcome, names = (
            (wanted.tree, sorted(f.path for f in change.files if not f.matters))
            if partly.clashes
            else (partly.tree, sorted(left_out))
        )
        return answer.model_copy(update={"result": result, "tree": outcome, "left_out": names})

    @staticmethod
    def _left_out(change: Change, clashes: Sequence[Clash]) -> set[str]:
        clashing = {clash.path for clash in clashes}
        return {
            file.path
            for file in change.files
            if not file.matters and clashing & {file.path, file.old_path}
        }

    def _put_patch(self, answer: Applied, change: Change, tree: str, scratch: Scratch) -> Applied:
        """A patch file: its blobs may be here for a merge, or may not."""
        text = change.pin.text or b""
        others = sorted(file.path for file in change.files if not file.matters)
        only = [f"--include={root}/*" for root in self.roots] if others else []
        clashes: list[Clash] = []
        words = ""
        for three_way in (False, True):
            for options in ([], only) if only else ([],):
                made, clashes, words = scratch.plainly(tree, text, *options, three_way=three_way)
                if made is None:
                    continue
                if made == tree:
                    update: dict[str, object] = {
                        "result": "contained", "contained": Contained(sign="no-effect"),
                    }  # fmt: skip
                else:
                    update = {"result": "three-way" if three_way else "clean"}
                update |= {"tree": made, "left_out": others if options else []}
                return answer.model_copy(update=update)
        # A change that is there already fails both ways; taken out, it would leave a trace.
        undone, _, _ = scratch.plainly(tree, text, *only, "--reverse")
        if undone is not None:
            return answer.model_copy(
                update={
                    "result": "contained",
                    "contained": Contained(sign="no-effect"),
                    "tree": tree,
                }
            )
        clashes = clashes or [Clash(file.path, "contents", {}) for file in change.files]
        return self._conflict(answer, None, clashes).model_copy(update={"why": words or None})

    def _conflict(self, answer: Applied, tree: str | None, clashes: Sequence[Clash]) -> Applied:
        found = [described(self.history, tree, clash) for clash in clashes]
        found.sort(key=lambda conflict: (not matters(conflict.path, self.roots), conflict.path))
        return answer.model_copy(update={"result": "conflict", "conflicts": found})

    def _checked(self, answer: Applied, before: str) -> Applied:
        """Nothing unsafe comes into a tree; what was there before is not this candidate's doing."""
        if answer.tree is None or answer.tree == before:
            return answer
        found = dangers(self.history, before, answer.tree)
        if not found:
            return answer
        return answer.model_copy(
            update={"result": "unsafe", "tree": None, "why": "; ".join(found[:3])}
        )

    def _files_of(self, text: bytes) -> list[FileChange]:
        try:
            out = self.history.output("apply", "--numstat", "-z", "-", feed=text)
        except GitFailed as failed:
            raise NoPatch(f"git can't read it: {failed}") from None
        files: list[FileChange] = []
        for entry in out.decode("utf-8", "surrogateescape").split("\0"):
            if not entry:
                continue
            added, removed, path = entry.split("\t", 2)
            files.append(
                FileChange(
                    path=path,
                    kind="modified",
                    hunks=0,
                    lines_added=int(added) if added != "-" else 0,
                    lines_removed=int(removed) if removed != "-" else 0,
                    binary=added == "-",
                    matters=matters(path, self.roots),
                )
            )
        if not files:
            raise NoPatch("it changes no file")
        return files

    def apply_all(self, pins: Sequence[Pin], base: str) -> tuple[list[Applied], str | None]:
        """Candidates in order, each onto what the ones before it made.

        What comes after one that can't be applied is not tried.

        Args:
            pins: in order of application.
            base: the revision.

        Returns:
            What came of each that was tried, and the last tree; None when one failed.

        Raises:
            OrderError: a candidate stacks on one that comes later.
            NoPatch: a patch file holds none.
            GitFailed: a commit can't be read.
        """
        tree = self.history.tree_of(base)
        done: list[Applied] = []
        changes: list[Change] = []
        for place, pin in enumerate(pins):
            later = [self.change(other) for other in pins[place + 1 :]]
            alone = self.change(pin)
            for other in later:
                if alone.fork and self.stacks_on(pin, alone.fork, other):
                    raise OrderError(
                        f"{pin.id} stacks on {other.pin.id}; put {other.pin.id} before it."
                    )
            change = self.change(pin, changes) if changes else alone
            answer = self.apply(change, base, tree)
            done.append(answer)
            if answer.tree is None:
                return done, None
            tree = answer.tree
            changes.append(replace(alone))
        return done, tree
