"""The words of the table with their signs: the legend."""

from __future__ import annotations

from typing import Final

from matrix.reasons import REASONS
from matrix.site.published import Reason, Word
from matrix.verdicts import CELL_MEANING, VERDICT_MEANING, CellStatus, Verdict

# U+FE0E asks for the plain form of a sign where a font also has it as a coloured picture.
_VERDICT_SIGNS: Final[dict[Verdict, str]] = {
    "supported": "\u2714\ufe0e",
    "caveat": "\u25d0",
    "broken": "\u2716\ufe0e",
    "cannot install": "\u2298",
    "unknown": "?",
}

_CELL_SIGNS: Final[dict[CellStatus, tuple[str, str]]] = {
    "pass": ("pass", "\u2714\ufe0e"),
    "flaky": ("flaky", "\u25d0"),
    "fail": ("fail", "\u2716\ufe0e"),
    "error": ("probe error", "!"),
    "void": ("void", "\u2260"),
    "skip": ("does not apply", "\u2013"),
    "miss": ("not run", "\u25cb"),
    "not run": ("not run", "\u25cb"),
}


def verdict_words() -> list[Word]:
    """One entry for each verdict, best first."""
    return [
        Word(id=verdict, label=verdict, sign=_VERDICT_SIGNS[verdict], meaning=meaning)
        for verdict, meaning in VERDICT_MEANING.items()
    ]


def status_words() -> list[Word]:
    """One entry for each thing a cell can show."""
    return [
        Word(id=status, label=_CELL_SIGNS[status][0], sign=_CELL_SIGNS[status][1], meaning=meaning)
        for status, meaning in CELL_MEANING.items()
    ]


def reason_words() -> list[Reason]:
    """The fixed list of reasons."""
    return [
        Reason(id=name, status=status, meaning=meaning)
        for name, (status, meaning) in REASONS.items()
    ]
