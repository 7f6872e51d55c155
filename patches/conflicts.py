"""Which functions a conflict lies in, on both sides."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from patches.changes import blob_spans
from patches.functions import names_at
from patches.inert import MARK, GitFailed, Inert
from patches.merging import Clash
from patches.results import Conflict

#: Lines around a conflict that tell its place.
_AROUND = 12
_OURS, _MIDDLE, _THEIRS = (sign * MARK for sign in (b"<", b"=", b">"))


def described(repository: Inert, tree: str | None, clash: Clash) -> Conflict:
    """A clash with the names of the functions it lies in.

    Args:
        repository: holds the blobs.
        tree: the merge's result, whose files carry marks; None to merge the file here.
        clash: what git could not settle.
    """
    text = _marked(repository, tree, clash)
    binary = text is not None and b"\0" in text[:8000]
    if text is None or binary or not clash.path.endswith(".py"):
        kind = "binary" if binary or clash.kind == "binary" else clash.kind
        return Conflict(
            path=clash.path,
            kind=kind,
            ours=_since(repository, clash, 2),
            theirs=_since(repository, clash, 3),
        )
    whole = repository.blobs(name for stage, name in clash.stages.items() if stage in (2, 3))
    ours, theirs = sides(
        text, whole.get(clash.stages.get(2, "")), whole.get(clash.stages.get(3, ""))
    )
    return Conflict(path=clash.path, kind=clash.kind, ours=ours, theirs=theirs)


def _since(repository: Inert, clash: Clash, stage: int) -> list[str]:
    """Functions that one side changed in a file that the other side has no more."""
    before, after = clash.stages.get(1), clash.stages.get(stage)
    if before is None or after is None or not clash.path.endswith(".py"):
        return []
    try:
        found = blob_spans(repository, before, after)
        source = repository.blobs([after]).get(after, b"")
    except GitFailed:
        return []
    return names_at(source, [span.new for span in found])


@dataclass
class _Side:
    """One side of a marked file."""

    lines: list[bytes] = field(default_factory=list)
    """What is merged, and this side of each conflict."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """First and last line of each conflict in those; the last before the first for an empty one."""

    def names(self, whole: bytes | None) -> list[str]:
        """The functions that its conflicts lie in.

        They are looked up in the side's own file, where they stand as one piece each. Where that
        file is not to be had, the lines that are merged stand for it.
        """
        found = None if whole is None else self._within(whole.split(b"\n"))
        if whole is None or found is None:
            return names_at(b"\n".join(self.lines), self.spans)
        return names_at(whole, found)

    def _within(self, whole: list[bytes]) -> list[tuple[int, int]] | None:
        """The same conflicts in the side's own file; None where one can't be found there."""
        found = []
        start = 0
        for first, last in self.spans:
            before, piece, after = (
                self.lines[max(first - 1 - _AROUND, 0) : first - 1],
                self.lines[first - 1 : last],
                self.lines[last : last + _AROUND],
            )
            place = _find(whole, before, piece, after, start)
            if place is None:
                return None
            found.append((place + 1, place + len(piece)))
            start = place + len(piece)
        return found


def sides(
    text: bytes, our_file: bytes | None = None, their_file: bytes | None = None
) -> tuple[list[str], list[str]]:
    """Functions of the conflicts in a marked file: on our side, and on theirs.

    Args:
        text: the file with marks.
        our_file: the whole file of our side.
        their_file: the whole file of theirs.
    """
    ours, theirs = _Side(), _Side()
    side: _Side | None = None
    start = 0
    for line in text.split(b"\n"):
        if side is None and line.startswith(_OURS):
            side, start = ours, len(ours.lines) + 1
        elif side is ours and line.rstrip(b"\r") == _MIDDLE:
            ours.spans.append((start, len(ours.lines)))
            side, start = theirs, len(theirs.lines) + 1
        elif side is theirs and line.startswith(_THEIRS):
            theirs.spans.append((start, len(theirs.lines)))
            side = None
        elif side is None:
            ours.lines.append(line)
            theirs.lines.append(line)
        else:
            side.lines.append(line)
    return ours.names(our_file), theirs.names(their_file)


def _find(
    whole: list[bytes], before: list[bytes], piece: list[bytes], after: list[bytes], start: int
) -> int | None:
    """Where some lines stand in a file, at or after a line counted from 0.

    The same few lines can stand in many places; the one is taken around which most is the same.
    """
    best: tuple[int, int] | None = None
    for place in range(start, len(whole) - len(piece) + 1):
        if whole[place : place + len(piece)] == piece:
            same = _run_length(reversed(whole[max(place - _AROUND, 0) : place]), reversed(before))
            end = place + len(piece)
            same += _run_length(whole[end : end + _AROUND], after)
            if best is None or same > best[0]:
                best = (same, place)
    return best[1] if best is not None else None


def _run_length(some: Iterable[bytes], others: Iterable[bytes]) -> int:
    """How many lines two texts begin with alike."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(some, others, strict=False))
    )


def _marked(repository: Inert, tree: str | None, clash: Clash) -> bytes | None:
    try:
        if tree is not None:
            out = repository.output("cat-file", "blob", f"{tree}:{clash.path}")
            return out if _OURS in out or b"\0" in out[:8000] else None
        if {1, 2, 3} - set(clash.stages):
            return None
        blobs = repository.blobs(clash.stages.values())
        with tempfile.TemporaryDirectory(prefix="merge-") as folder:
            paths = []
            for stage in (2, 1, 3):
                path = Path(folder) / str(stage)
                path.write_bytes(blobs.get(clash.stages[stage], b""))
                paths.append(str(path))
            # The status is the number of conflicts.
            return repository.output(
                "merge-file", "-p", "--marker-size", str(MARK), *paths, ok=range(128)
            )
    except GitFailed:
        return None
