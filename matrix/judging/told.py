"""What the counted runs of one cell tell, each thing found once.

A stack is compared with many others, and each comparison asks the same of its runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from matrix.judging.cells import CellStatus, CellVerdict
from matrix.judging.findings import StackFindings
from matrix.judging.noise import Values, inputs, values
from matrix.keeping.reasons import Status
from matrix.keeping.records import Record

Endings = dict[str, set[tuple[Status, str | None]]]
"""By part: how it ended in the runs that had it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One cell of a comparison."""

    status: CellStatus
    words: str
    reasons: list[str]
    """Of the failures among these runs."""
    runs: list[str]
    """Ids of the compared runs, newest first; of the counted ones where nothing is compared."""
    machines: list[str]
    """Where they ran."""


class Told:
    """Some counted runs of one probe on one stack.

    Args:
        runs: these runs.
        cell: what is known of all runs, where there are any.
    """

    def __init__(self, runs: Sequence[Record], cell: CellVerdict | None = None) -> None:
        self.runs = runs
        self.cell = cell

    @cached_property
    def side(self) -> Side:
        """The cell and these runs, as a comparison shows them."""
        return Side(
            status=self.cell.status if self.cell is not None else "not run",
            words=self.cell.words if self.cell is not None else "not run",
            reasons=sorted(reason for reason in self.reasons if reason),
            runs=[run.run.id for run in self.runs],
            machines=sorted(self.machines),
        )

    @cached_property
    def inputs(self) -> frozenset[str]:
        """What the runs were asked with, seeds aside."""
        return frozenset(asked for *_, asked in self.values)

    @cached_property
    def machines(self) -> frozenset[str]:
        return frozenset(run.machine.name for run in self.runs)

    @cached_property
    def values(self) -> Values:
        """What the runs measured."""
        return values(self.runs)

    @cached_property
    def reasons(self) -> frozenset[str | None]:
        return frozenset(run.reason for run in self.runs)

    @cached_property
    def failed(self) -> int:
        """How many of the runs failed."""
        return sum(run.status == "fail" for run in self.runs)

    @cached_property
    def ended(self) -> Literal["pass", "fail", "flaky"] | None:
        """How the runs ended together; None where there is none."""
        if not self.runs:
            return None
        if self.failed == 0:
            return "pass"
        return "fail" if self.failed == len(self.runs) else "flaky"

    @cached_property
    def endings(self) -> Endings:
        found: Endings = {}
        for run in self.runs:
            for part in run.parts:
                found.setdefault(part.name, set()).add((part.status, part.reason))
        return found


class Telling:
    """What each cell tells, kept while stacks are compared."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, frozenset[str] | None], Told] = {}

    def of(self, stack: StackFindings, probe: str, only: frozenset[str] | None = None) -> Told:
        """What the counted runs of a probe tell; with `only`, those that were asked with these."""
        key = (stack.id, probe, only)
        found = self._kept.get(key)
        if found is None:
            runs = stack.counted(probe)
            if only is not None:
                runs = [run for run in runs if inputs(run) in only]
            self._kept[key] = found = Told(runs, stack.cells.get(probe))
        return found

    def values(self, stack: StackFindings, probe: str) -> Values:
        """What the counted runs of a probe measured."""
        return self.of(stack, probe).values
