"""Which functions a conflict lies in, on both sides."""

from __future__ import annotations

import tempfile
from pathlib import Path

from patches.functions import names_at
from patches.inert import MARK, GitFailed, Inert
from patches.merging import Clash
from patches.results import Conflict

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
        return Conflict(path=clash.path, kind=kind)
    ours, theirs = sides(text)
    return Conflict(path=clash.path, kind=clash.kind, ours=ours, theirs=theirs)


def sides(text: bytes) -> tuple[list[str], list[str]]:
    """Functions of the conflicts in a marked file: on our side, and on theirs.

    Each side's file is put together from what is merged and that side's lines; so it is valid
    Python whenever that side's part of the merge is.
    """
    kept: dict[bool, list[bytes]] = {True: [], False: []}
    spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
    side: bool | None = None
    start = 0
    for line in text.split(b"\n"):
        if side is None and line.startswith(_OURS):
            side, start = True, len(kept[True]) + 1
        elif side is True and line.rstrip(b"\r") == _MIDDLE:
            spans[True].append((start, len(kept[True])))
            side, start = False, len(kept[False]) + 1
        elif side is False and line.startswith(_THEIRS):
            spans[False].append((start, len(kept[False])))
            side = None
        elif side is None:
            kept[True].append(line)
            kept[False].append(line)
        else:
            kept[side].append(line)
    ours, theirs = (names_at(b"\n".join(kept[which]), spans[which]) for which in (True, False))
    return ours, theirs


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
