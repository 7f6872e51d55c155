"""A revision with candidates on it: made once, kept by its tree, proven from the disk each time."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from pydantic import Field, ValidationError

from matrix.models import Model
from patches.applying import Bench, NoPatch, OrderError, Pin
from patches.containment import Past
from patches.history import History, is_sha
from patches.inert import OLDEST_GIT, GitFailed, Inert, git_version
from patches.remotes import Remote, SourceError
from patches.results import Applied
from probes.git_tree import tree_id

#: Raised when the same inputs would give another answer than before.
_MAKING = 1


@dataclass(frozen=True)
class Patched:
    """What came of putting candidates onto a revision."""

    applied: tuple[Applied, ...]
    """One for each candidate; those after one that failed are left out."""
    path: Path | None
    """The checked-out tree; None when a candidate could not be applied."""
    tree: str | None


class _Kept(Model):
    """What is remembered of one revision with candidates."""

    making: int
    revision: str
    pins: list[list[str | None]]
    applied: list[Applied] = Field(default_factory=list)
    tree: str | None = None


class Patcher:
    """Makes patched trees of one component.

    Args:
        remote: where its commits come from.
        cache: folder of mirrors, worktrees and what is remembered.
        roots: folders of the tree that are imported.
    """

    def __init__(self, remote: Remote, cache: Path, roots: Sequence[str]) -> None:
        self.remote = remote
        self._cache = cache
        self._roots = tuple(roots)

    def kept(self, revision: str, pins: Sequence[Pin]) -> bool:
        """Whether the answer is known, and its tree on the disk, without asking anyone."""
        kept = self._read(revision, pins)
        if kept is None:
            return False
        return kept.tree is None or self._folder(kept.tree).is_dir()

    def make(self, revision: str, pins: Sequence[Pin]) -> Patched:
        """Put candidates onto a revision, in order, and check the tree out.

        What is remembered is used only together with a tree on the disk that hashes to what was
        made; anything else is made anew.

        Args:
            revision: full SHA.
            pins: in order of application.

        Raises:
            SourceError: the revision can't be had.
        """
        self._cache.mkdir(parents=True, exist_ok=True)
        with FileLock(self._cache / f"{self.remote.name}-patched.lock"):
            kept = self._read(revision, pins)
            if kept is not None:
                if kept.tree is None:
                    return Patched(tuple(kept.applied), None, None)
                folder = self._folder(kept.tree)
                if folder.is_dir() and tree_id(folder) == kept.tree:
                    return Patched(tuple(kept.applied), folder, kept.tree)
            return self._made(revision, pins)

    def _made(self, revision: str, pins: Sequence[Pin]) -> Patched:
        if git_version() < OLDEST_GIT:
            raise SourceError(
                "source:broken",
                f"{self.remote.name}: git {'.'.join(map(str, git_version()))} can't merge without "
                f"a worktree. Install git {'.'.join(map(str, OLDEST_GIT))} or newer.",
            )
        history = History(self.remote, self._cache)
        try:
            applied, tree = self._applied(history, revision, pins)
        except (OrderError, NoPatch) as error:
            last = next((pin for pin in pins if pin.text is not None), pins[-1])
            applied, tree = [_unavailable(last, revision, str(error))], None
        except GitFailed as failed:
            raise SourceError("source:broken", f"{self.remote.name}: {failed}") from None
        folder = None
        if tree is not None:
            folder = self._folder(tree)
            try:
                check_out(history, tree, folder)
            except (GitFailed, OSError) as failed:
                raise SourceError(
                    "source:broken", f"{self.remote.name}: checking out {tree}: {failed}"
                ) from None
        if all(answer.result != "unavailable" for answer in applied):
            self._write(revision, pins, applied, tree)
        return Patched(tuple(applied), folder, tree)

    def _applied(
        self, history: History, revision: str, pins: Sequence[Pin]
    ) -> tuple[list[Applied], str | None]:
        requests = [pin for pin in pins if pin.text is None]
        for pin in requests:
            if not is_sha(pin.head):
                return [_unavailable(pin, revision, "the head of the request is unknown")], None
        missing = history.sync(
            branches=sorted({pin.target for pin in requests if pin.target and not pin.fork}),
            heads=[(None, revision), *((pin.number, pin.head) for pin in requests)],
        )
        if revision in missing:
            raise SourceError("source:no-such-revision", missing[revision])
        for pin in requests:
            if pin.head in missing:
                return [_unavailable(pin, revision, missing[pin.head])], None
        targets = {history.branch(pin.target) for pin in requests if pin.target and not pin.fork}
        tips = [revision, *(pin.head for pin in requests), *filter(None, targets)]
        commits = history.commits(tips)
        past = Past(history, commits, (revision,))
        return Bench(history, past, self._roots).apply_all(pins, revision)

    def _folder(self, tree: str) -> Path:
        return self._cache / "worktrees" / f"{self.remote.name}-patched-{tree[:16]}"

    def _file(self, revision: str, pins: Sequence[Pin]) -> Path:
        text = json.dumps([_MAKING, revision, _listed(pins), self._roots])
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        return self._cache / "applied" / f"{self.remote.name}-{digest}.json"

    def _read(self, revision: str, pins: Sequence[Pin]) -> _Kept | None:
        try:
            kept = _Kept.model_validate_json(self._file(revision, pins).read_bytes())
        except (OSError, ValidationError):
            return None
        same = (kept.making, kept.revision, kept.pins) == (_MAKING, revision, _listed(pins))
        return kept if same else None

    def _write(
        self, revision: str, pins: Sequence[Pin], applied: list[Applied], tree: str | None
    ) -> None:
        kept = _Kept(
            making=_MAKING, revision=revision, pins=_listed(pins), applied=applied, tree=tree
        )
        path = self._file(revision, pins)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}.new")
        new.write_text(kept.model_dump_json(), encoding="utf-8")
        new.replace(path)


def check_out(repository: Inert, tree: str, folder: Path) -> None:
    """Put a tree on the disk, whole or not at all.

    It is no worktree that git knows of: there is no `.git` in it, no hook runs, and no attribute of
    the tree has any effect. What came out is hashed before it gets its name.

    Raises:
        GitFailed: git refuses it, or what is on the disk is not the tree.
        OSError: it can't be written.
    """
    # One folder holds all that is unfinished, git's own locks included, and goes as one.
    half = folder.with_name(f"{folder.name}.half")
    for old in (folder, half):
        shutil.rmtree(old, ignore_errors=True)
    work = half / "tree"
    work.mkdir(parents=True)
    try:
        repository.text(
            "-c", "core.bare=false", "-c", "core.symlinks=true", "read-tree", "--reset", "-u", tree,
            env={"GIT_INDEX_FILE": str(half / "index"), "GIT_WORK_TREE": str(work)},
        )  # fmt: skip
        found = tree_id(work)
        if found != tree:
            raise GitFailed(1, f"{tree} came out as {found}")
        work.replace(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _unavailable(pin: Pin, revision: str, why: str) -> Applied:
    return Applied(id=pin.id, head=pin.head, base=revision, result="unavailable", why=why)


def _listed(pins: Sequence[Pin]) -> list[list[str | None]]:
    return [[pin.id, pin.head, pin.fork, pin.target] for pin in pins]
