"""How much a measure moves when nothing was changed, and which differences are above that.

Repeats are counted runs of one cell on one machine with the same question (its parameters, the seed
aside). Their scatter, relative to their mean and pooled over all stacks for one measure on one
machine, is the noise. A difference between two stacks is claimed when it is further from none than
Student's quantile at 99 % allows for that noise. With fewer than three repeats the noise is
unknown, and no difference is claimed.

The noise is taken to be the same on every stack. It is that of the repeats, which may all be of one
day.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final, Literal

from matrix.judging.findings import StackFindings
from matrix.judging.intervals import student
from matrix.keeping.records import Number, Record

#: Of one comparison. Many are made, so it is stricter than that of a single verdict.
CONFIDENCE: Final = 0.99

#: Fewer repeats tell too little, above all of counts, which can agree by chance.
LEAST_REPEATS: Final = 3

#: What says nothing of the software: it depends on what else ran.
_LEFT_OUT = frozenset({"waited_for_gpu_s", "part_s"})

Question = tuple[str, str, str, str]
"""Machine, probe, its revision, its parameters without the seed."""
Place = tuple[str, str]
"""Part (empty for the run as a whole) and measure."""
Values = dict[Question, dict[Place, list[float]]]
"""Sorted by both, so that two of them are compared without being sorted each time."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure on two stacks, on one machine."""

    machine: str
    part: str | None
    measure: str
    before: float
    """Mean of the runs before."""
    after: float
    change: float | None
    """(after - before) / |before|; None where before is 0."""
    runs: tuple[int, int]
    """How many runs before and after."""
    floor: float
    """Relative change that noise alone reaches in one of a hundred comparisons; infinite where
    repeats had both signs around 0."""
    repeats: int
    """Degrees of freedom behind the floor: runs beyond the first of each repeated cell."""
    says: Literal["more", "less", "no difference"]
    """`no difference` is none above the noise."""


class Noise:
    """The noise of every measure that was ever repeated.

    Args:
        findings: what is known of every stack.
        measured: what the counted runs of a probe measured, where that is kept.
    """

    def __init__(
        self,
        findings: Mapping[str, StackFindings],
        measured: Callable[[StackFindings, str], Values] | None = None,
    ) -> None:
        squares: dict[tuple[Question, Place], float] = defaultdict(float)
        degrees: dict[tuple[Question, Place], int] = defaultdict(int)
        for stack in findings.values():
            for probe in stack.cells:
                runs = stack.counted(probe)
                if len(runs) < 2:
                    continue  # Nothing was repeated; most cells are like that.
                found = values(runs) if measured is None else measured(stack, probe)
                for question, places in found.items():
                    for place, seen in places.items():
                        degrees[question, place] += len(seen) - 1
                        squares[question, place] += _scatter(seen)
        self._degrees = degrees
        self._squares = squares

    def floor(self, question: Question, place: Place, runs: tuple[int, int]) -> float:
        """Relative difference of two means that noise reaches in one of a hundred comparisons.

        Raises:
            ValueError: nothing was ever repeated.
        """
        degrees = self.repeats(question, place)
        if degrees < 1:
            raise ValueError(f"{place} was never repeated, so its noise is unknown")
        deviation = math.sqrt(self._squares[question, place] / degrees)
        if deviation in (0.0, math.inf):
            return deviation
        return student(degrees, CONFIDENCE) * deviation * math.sqrt(1 / runs[0] + 1 / runs[1])

    def repeats(self, question: Question, place: Place) -> int:
        """Degrees of freedom that are known of a measure."""
        return self._degrees.get((question, place), 0)


def comparable(before: Values, after: Values) -> list[tuple[Question, Place]]:
    """Every measure that both sides have for the same question on the same machine."""
    return [
        (question, place)
        for question, places in before.items()
        if question in after
        for place in places
        if place in after[question]
    ]


def differences(
    before: Values,
    after: Values,
    noise: Noise,
    pairs: Sequence[tuple[Question, Place]] | None = None,
) -> Iterator[Difference]:
    """Every measure that both sides have, and whose noise is known.

    `pairs` are those that are `comparable`, where that was found before.
    """
    for question, place in comparable(before, after) if pairs is None else pairs:
        if noise.repeats(question, place) >= LEAST_REPEATS:
            yield _difference(
                question, place, before[question][place], after[question][place], noise
            )


def _difference(
    question: Question, place: Place, before: list[float], after: list[float], noise: Noise
) -> Difference:
    runs = (len(before), len(after))
    was, now = fmean(before), fmean(after)
    floor = noise.floor(question, place, runs)
    # Relative to the smaller mean in size, so that neither order of the stacks is favoured.
    size = min(abs(was), abs(now))
    says: Literal["more", "less", "no difference"] = "no difference"
    if abs(now - was) > floor * size:
        says = "more" if now > was else "less"
    return Difference(
        machine=question[0],
        part=place[0] or None,
        measure=place[1],
        before=was,
        after=now,
        change=(now - was) / abs(was) if was else None,
        runs=runs,
        floor=floor,
        repeats=noise.repeats(question, place),
        says=says,
    )


def values(records: Iterable[Record]) -> Values:
    """Every number that runs measured, by question and place."""
    found: Values = {}
    for record in records:
        places = found.setdefault(_question(record), {})
        for part, measured in [("", record.measure), *((p.name, p.measure) for p in record.parts)]:
            for name, value in measured.items():
                number = _number(value)
                if number is not None and name not in _LEFT_OUT:
                    places.setdefault((part, name), []).append(number)
    return {question: dict(sorted(places.items())) for question, places in sorted(found.items())}


def inputs(record: Record) -> str:
    """What a run was asked with, its seed aside."""
    asked = {name: value for name, value in record.probe.parameters.items() if name != "seed"}
    return json.dumps(asked, sort_keys=True)


def _question(record: Record) -> Question:
    return record.machine.name, record.probe.id, record.probe.revision, inputs(record)


def _number(value: Number) -> float | None:
    if isinstance(value, bool | str) or value is None:
        return None
    return float(value)


def _scatter(seen: list[float]) -> float:
    """Sum of squared deviations, relative to the mean in size."""
    mean = fmean(seen)
    if all(value == seen[0] for value in seen):
        return 0.0
    # A mean of 0 with values on both sides of it: relative to it, everything is noise.
    return math.inf if mean == 0 else math.fsum(((value - mean) / mean) ** 2 for value in seen)
