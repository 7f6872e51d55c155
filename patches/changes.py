"""What a candidate changes: the files and hunks it adds to where it branched off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from matrix.models import Model
from patches.inert import Inert

Kind = Literal["added", "modified", "deleted", "renamed", "copied", "type changed"]

_KINDS: dict[str, Kind] = {
    "A": "added",
    "M": "modified",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "type changed",
}
_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class FileChange(Model):
    """One file of a change."""

    path: str
    """Where it is afterwards; for a deleted file, where it was."""
    old_path: str | None = None
    """Where it was before, when it moved."""
    kind: Kind
    hunks: int
    """Places in the file that change; 0 for a binary file or a pure move."""
    lines_added: int
    lines_removed: int
    binary: bool = False
    matters: bool
    """Whether it lies in the tree that is imported; tests and documents don't."""


class Span(Model):
    """Lines that a hunk takes away and puts there; a count of 0 is a place between lines."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int

    @property
    def old(self) -> tuple[int, int]:
        """First and last line taken away; the last before the first when there is none."""
        return _range(self.old_start, self.old_count)

    @property
    def new(self) -> tuple[int, int]:
        """First and last line put there; the last before the first when there is none."""
        return _range(self.new_start, self.new_count)


def _range(start: int, count: int) -> tuple[int, int]:
    # Git names the line before an empty place; what follows it is where the other side has more.
    return (start, start + count - 1) if count else (start + 1, start)


def matters(path: str, roots: Sequence[str]) -> bool:
    """Whether a path lies in one of the folders that are imported; no roots means all do."""
    return not roots or any(path == root or path.startswith(root + "/") for root in roots)


def changed_files(
    repository: Inert, before: str, after: str, roots: Sequence[str]
) -> list[FileChange]:
    """The files that differ between two trees, moves recognised.

    Raises:
        GitFailed: one of them can't be read.
    """
    common = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "-z")
    raw = repository.output(*common, "--raw", "--no-abbrev", before, after)
    counts = _numstat(repository.output(*common, "--numstat", before, after))
    hunks = {found.path: len(found.hunks) for found in sections(repository, before, after)}
    files = []
    fields = iter(raw.decode("utf-8", "surrogateescape").split("\0"))
    for head in fields:
        if not head:
            continue
        letter = head.rsplit(" ", 1)[1][:1]
        first = next(fields)
        path, old = (next(fields), first) if letter in "RC" else (first, None)
        added, removed = counts.get(path, (0, 0))
        files.append(
            FileChange(
                path=path,
                old_path=old,
                kind=_KINDS.get(letter, "modified"),
                hunks=hunks.get(path, 0),
                lines_added=added or 0,
                lines_removed=removed or 0,
                binary=added is None,
                matters=matters(path, roots) or (old is not None and matters(old, roots)),
            )
        )
    return files


def _numstat(out: bytes) -> dict[str, tuple[int | None, int | None]]:
    """Lines added and removed by path; None for a binary file."""
    found: dict[str, tuple[int | None, int | None]] = {}
    fields = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    for entry in fields:
        if not entry:
            continue
        added, removed, path = entry.split("\t", 2)
        if not path:  # a move: the old and the new path follow
            next(fields)
            path = next(fields)
        found[path] = (
            int(added) if added != "-" else None,
            int(removed) if removed != "-" else None,
        )
    return found


@dataclass
class Section:
    """What a change does to one file, by its old and its new name; None for a file that is not."""

    old: str | None
    new: str | None
    rewritten: bool = False
    """Hardly a line is the same; only told when git was asked to look for that."""
    hunks: list[Span] = field(default_factory=list)

    @property
    def path(self) -> str:
        return self.new or self.old or ""


def sections(
    repository: Inert, before: str, after: str, moves: Sequence[str] = ("-M",)
) -> list[Section]:
    """Every file that changes in its text, with its hunks, and no lines of context.

    Args:
        repository: holds both trees.
        before: the tree as it was.
        after: the tree as it is then.
        moves: git's options for recognising moved files.

    Raises:
        GitFailed: one of the trees can't be read.
    """
    out = repository.output(
        "diff-tree", "-r", *moves, "-p", "-U0", "--no-ext-diff", "--no-textconv", "--no-color",
        "--src-prefix=a/", "--dst-prefix=b/", before, after,
    )  # fmt: skip
    found: list[Section] = []
    current: Section | None = None
    rewritten = False
    removed = b""
    for line in out.split(b"\n"):
        if line.startswith(b"diff --git "):
            current, rewritten = None, False
        elif current is None and line.startswith(b"dissimilarity index "):
            rewritten = True
        elif current is None and line.startswith(b"--- "):
            removed = line[4:]
        elif current is None and line.startswith(b"+++ "):
            current = Section(_name(removed), _name(line[4:]), rewritten)
            found.append(current)
        elif current is not None and line.startswith(b"@@ "):
            current.hunks += _span(line)
    return found


def _name(name: bytes) -> str | None:
    return None if name.rstrip(b"\t\r") == b"/dev/null" else unquoted(name)[2:]


def blob_spans(repository: Inert, before: str, after: str) -> list[Span]:
    """Every hunk between two blobs.

    Raises:
        GitFailed: one of them is not here.
    """
    out = repository.output(
        "diff", "-U0", "--no-ext-diff", "--no-textconv", "--no-color", before, after
    )
    return [span for line in out.split(b"\n") if line.startswith(b"@@ ") for span in _span(line)]


def _span(line: bytes) -> list[Span]:
    match = _HUNK.match(line)
    if match is None:
        return []
    start, count, new_start, new_count = match.groups()
    return [
        Span(
            old_start=int(start),
            old_count=1 if count is None else int(count),
            new_start=int(new_start),
            new_count=1 if new_count is None else int(new_count),
        )
    ]


def unquoted(name: bytes) -> str:
    """A path as git quotes it in a patch, as it is."""
    name = name.rstrip(b"\t\r")
    if name.startswith(b'"') and name.endswith(b'"'):
        name = re.sub(
            rb'\\([0-7]{3}|[abfnrtv"\\])',
            lambda found: (
                bytes([int(found[1], 8)])
                if len(found[1]) == 3
                else b'\a\b\f\n\r\t\v"\\'[b'abfnrtv"\\'.index(found[1])].to_bytes(1, "big")
            ),
            name[1:-1],
        )
    return name.decode("utf-8", "surrogateescape")


def patch_text(repository: Inert, before: str, after: str, paths: Sequence[str] = ()) -> bytes:
    """The change as a patch that `git apply` takes, binary files included.

    Raises:
        GitFailed: one of the trees can't be read.
    """
    return repository.output(
        "diff-tree", "-r", "-M", "-p", "--binary", "--full-index", "--no-ext-diff",
        "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
        before, after, "--", *paths,
    )  # fmt: skip


def tree_with(
    repository: Inert, base: str, after: str, files: Sequence[FileChange], index: str
) -> str:
    """The base's tree with only some of the files of a change: what is wanted of it.

    Args:
        repository: holds both.
        base: where the change begins.
        after: where it ends.
        files: which part of it.
        index: path of a scratch index file.

    Raises:
        GitFailed: the tree can't be made.
    """
    env = {"GIT_INDEX_FILE": index}
    repository.text("read-tree", base, env=env)
    paths = [file.path for file in files if file.kind != "deleted"]
    gone = [file.path for file in files if file.kind == "deleted"]
    gone += [file.old_path for file in files if file.kind == "renamed" and file.old_path]
    lines = [f"0 {'0' * 40}\t{path}" for path in gone]
    if paths:
        # In slices: a command line has room for so many paths only.
        for first in range(0, len(paths), 500):
            listed = repository.output("ls-tree", "-z", after, "--", *paths[first : first + 500])
            for entry in listed.decode("utf-8", "surrogateescape").split("\0"):
                if entry:
                    facts, _, path = entry.partition("\t")
                    mode, _, sha = facts.split(" ")
                    lines.append(f"{mode} {sha}\t{path}")
    feed = "\0".join(lines) + "\0" if lines else ""
    repository.text(
        "update-index", "-z", "--index-info", env=env, feed=feed.encode("utf-8", "surrogateescape")
    )
    return repository.text("write-tree", "--missing-ok", env=env)
