"""The words of the table with their signs: the legend."""

from __future__ import annotations

from matrix.judging.legend import CELL_SIGNS, VERDICT_SIGNS
from matrix.judging.verdicts import CELL_MEANING, VERDICT_MEANING
from matrix.keeping.reasons import REASONS
from matrix.site.published import Reason, Word


def verdict_words() -> list[Word]:
    """One entry for each verdict, best first."""
    return [
        Word(id=verdict, label=verdict, sign=VERDICT_SIGNS[verdict], meaning=meaning)
        for verdict, meaning in VERDICT_MEANING.items()
    ]


def status_words() -> list[Word]:
    """One entry for each thing a cell can show."""
    return [
        Word(id=status, label=CELL_SIGNS[status][0], sign=CELL_SIGNS[status][1], meaning=meaning)
        for status, meaning in CELL_MEANING.items()
    ]


def reason_words() -> list[Reason]:
    """The fixed list of reasons."""
    return [
        Reason(id=name, status=status, meaning=meaning)
        for name, (status, meaning) in REASONS.items()
    ]
