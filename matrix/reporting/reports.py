"""All that a campaign tells while it runs: to a person, to a program, to a CI service."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from matrix.errors import DataError
from matrix.keeping.ledger import Entry
from matrix.planning.plan import Plan
from matrix.reporting.events import Event, JsonLines
from matrix.reporting.junit import JUnitReport
from matrix.reporting.pace import expected_seconds
from matrix.reporting.progress import Several
from matrix.reporting.reporter import Reporter
from matrix.running.cell_runs import Progress


class Reports:
    """The reports that a command line asks for, as one `Progress`.

    Args:
        screen: where lines for people go.
        plan: what will run.
        evidence: earlier runs; they tell how long the rest will take.
        as_json: write events to standard output.
        junit: the file of a JUnit report.

    Raises:
        DataError: the report's file can't be there.
    """

    def __init__(
        self,
        screen: Console,
        plan: Plan,
        evidence: Iterable[Entry],
        *,
        as_json: bool,
        junit: Path | None,
    ) -> None:
        self._plan = plan
        self._screen = screen
        to_run = [(cell.stack.id, cell.probe.id) for cell in plan.cells if cell.state == "run"]
        # What this machine measured comes last, so that it is taken before what others did.
        asked = {probe for _, probe in to_run}
        told = [entry for entry in evidence if entry.probe in asked]
        known = sorted(told, key=lambda entry: (entry.machine == plan.machine, entry.run))
        measured = [(entry.stack, entry.probe, entry.seconds) for entry in known]
        self._reporter = Reporter(screen, len(to_run), expected_seconds(to_run, measured))
        self._lines = JsonLines(sys.stdout) if as_json else None
        self._junit = JUnitReport(junit, plan) if junit is not None else None
        self._exits = ExitStack()

    def __enter__(self) -> Several:
        listeners: list[Progress] = []
        if self._junit is not None:
            listeners.append(self._exits.enter_context(self._junit))
        if self._lines is not None:
            listeners.append(self._exits.enter_context(self._lines))
            self._lines.plan(self._plan)
        listeners.append(self._exits.enter_context(self._reporter))
        return Several(listeners)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def only_plan(self) -> None:
        """Tell the plan, where nothing is run."""
        if self._lines is not None:
            self._lines.plan(self._plan)
            self._lines.ended([])

    def cluster(self) -> ClusterReports:
        """The same for a campaign that runs on a cluster.

        Raises:
            DataError: a report is asked for that can't be made of it.
        """
        if self._junit is not None:
            raise DataError("--junit is written where cells run; use it without --executor slurm.")
        return ClusterReports(self._screen, self._lines)

    def ended(self, unfinished: Iterable[str]) -> None:
        """All was carried out, except what is named."""
        if self._lines is not None:
            self._lines.ended(unfinished)


class ClusterReports:
    """What parts of a campaign on a cluster say, told to people and programs."""

    def __init__(self, screen: Console, lines: JsonLines | None) -> None:
        self._reporter = Reporter(screen, 0)
        self._lines = lines
        self._last = ""
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        if self._lines is not None:
            self._exits.enter_context(self._lines)
        self._exits.enter_context(self._reporter)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exits.__exit__(kind, error, trace)

    def follow(self, part: int, event: Event) -> None:
        """The task of a part wrote an event."""
        self._reporter.follow(part, event)
        if self._lines is not None:
            self._lines.follow(part, event)

    def doing(self, text: str) -> None:
        """What the queue looks like; said when it changes."""
        if text == self._last:
            return
        self._last = text
        self._reporter.doing(text)
        if self._lines is not None:
            self._lines.doing(text)

    def ended(self, unfinished: Iterable[str]) -> None:
        """All tasks have ended."""
        if self._lines is not None:
            self._lines.ended(unfinished)
