"""How a record stands in its file, and reading quickly what stands there as in other files.

A record counts only when its file is, to the byte, what a run writes: two values under one key,
say, would tell a person one thing and a program the other. Most of a record is about the machine,
the stack and the controls, and stands in hundreds of files alike. So these parts are checked once,
and then known by their text.
"""

from __future__ import annotations

import json
from typing import Final

from matrix.indented import indented
from matrix.keeping.records import Record

_ALIKE: Final = (
    ("control", '\n "control": [\n', "\n ]"),
    ("machine", '\n "machine": {\n', "\n }"),
    ("stack", '\n "stack": {\n', "\n }"),
)
"""Each part that many records have alike: its name, how it begins there and how it ends."""


def serialise(record: Record) -> str:
    """A record as it stands in its file: sorted, indented, one newline at the end."""
    return as_written(record.model_dump(mode="json", by_alias=True))


def as_written(data: object) -> str:
    """Any data of JSON in that form."""
    return indented(data, sort_keys=True) + "\n"


class KnownParts:
    """Parts of records that stood in files which are right, by their text.

    A text with known parts is right when it is right with `null` in their places. For in a text
    that is right, a new line is never within a string, so one that is indented by one space begins
    or ends a part of the record itself, and each part is written without regard to the others.
    Nothing is taken from a text that isn't right, so what is known is known to be right.
    """

    def __init__(self) -> None:
        self._made: dict[str, object] = {}

    def record(self, text: str) -> Record | None:
        """The record of a file's text; None where that must be found, or refused, the long way."""
        made: dict[str, object] = {}
        fresh: dict[str, str] = {}
        for name, begin, end in _ALIKE:
            start = text.find(begin)
            stop = text.find(end, start + len(begin) - 1) + len(end)
            if start < 0 or stop < len(end):
                continue
            part = text[start:stop]
            known = self._made.get(part)
            if known is None:
                fresh[part] = name
            else:
                made[name] = known
                text = f'{text[:start]}\n "{name}": null{text[stop:]}'
        try:
            data = json.loads(text)
            if as_written(data) != text:
                return None
            record = Record.model_validate({**data, **made})
        except (ValueError, TypeError, OverflowError, RecursionError):
            return None  # The long way says what is wrong, in terms of the whole file.
        for part, name in fresh.items():
            self._made[part] = getattr(record, name)
        return record
