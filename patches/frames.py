"""Frames of a traceback, as people paste them: `file.py:12`, Python's own form, or a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PYTHON = re.compile(r'File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<name>[\w.<>]+))?')
_SHORT = re.compile(
    r"(?P<path>[\w./+-]*\w\.py):(?P<line>\d+)(?:[,\s]+(?:in )?(?P<name>[A-Za-z_]\w*))?"
)
_NAMED = re.compile(r"(?P<path>[\w./+-]*\w\.py)(?:::?)(?P<name>[A-Za-z_][\w.]*)")
#: A sanitized traceback is wrapped behind a slash.
_WRAPPED = re.compile(r"/[ \t]*\r?\n[ \t]*(?=[\w.-]+[/.])")


@dataclass(frozen=True)
class Frame:
    """One place that a traceback names."""

    path: str | None
    """As it was written; the end of a path in the tree, or more than a path in the tree."""
    line: int | None = None
    name: str | None = None
    """The function, when it was named."""

    @property
    def shown(self) -> str:
        place = self.path or ""
        if self.line is not None:
            return f"{place}:{self.line}"
        return f"{place}::{self.name}" if place else str(self.name)


def frames_in(text: str) -> list[Frame]:
    """Every frame of a pasted traceback, in order, each once."""
    joined = _WRAPPED.sub("/", text)
    found: list[tuple[int, Frame]] = []
    for pattern in (_PYTHON, _SHORT):
        for match in pattern.finditer(joined):
            name = match["name"]
            # In a sanitized form the next word may be the function, or may be an arrow or prose.
            frame = Frame(match["path"], int(match["line"]), name if pattern is _PYTHON else None)
            found.append((match.start(), frame))
    found.sort(key=lambda item: item[0])
    return list(dict.fromkeys(frame for _, frame in found))


def frame_of(text: str) -> Frame | None:
    """One frame as a command line names it, or None when it is no frame."""
    frames = frames_in(text)
    if frames:
        return frames[0]
    if match := _NAMED.fullmatch(text):
        return Frame(match["path"], None, match["name"])
    if re.fullmatch(r"[A-Za-z_][\w.]*", text) and not text.endswith(".py"):
        return Frame(None, None, text)
    if re.fullmatch(r"[\w./+-]*\w\.py", text):
        return Frame(text)
    return None
