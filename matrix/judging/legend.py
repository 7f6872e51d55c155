"""The signs that stand beside every word of a table: meaning never hangs on colour alone."""

from __future__ import annotations

from typing import Final

from matrix.judging.verdicts import CellStatus, Verdict

# U+FE0E asks for the plain form of a sign where a font also has it as a coloured picture.
VERDICT_SIGNS: Final[dict[Verdict, str]] = {
    "supported": "\u2714\ufe0e",
    "caveat": "\u25d0",
    "broken": "\u2716\ufe0e",
    "cannot install": "\u2298",
    "unknown": "?",
}

#: What a cell shows: its word and its sign.
CELL_SIGNS: Final[dict[CellStatus, tuple[str, str]]] = {
    "pass": ("pass", "\u2714\ufe0e"),
    "flaky": ("flaky", "\u25d0"),
    "fail": ("fail", "\u2716\ufe0e"),
    "error": ("probe error", "!"),
    "void": ("void", "\u2260"),
    "skip": ("does not apply", "\u2013"),
    "miss": ("not run", "\u25cb"),
    "not run": ("not run", "\u25cb"),
}
