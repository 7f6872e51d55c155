"""One campaign's progress, told to several who listen."""

from __future__ import annotations

from collections.abc import Sequence

from matrix.keeping.records import Record
from matrix.planning.plan import Cell
from matrix.running.cell_runs import Progress


class Several:
    """Tells each of several listeners, in order."""

    def __init__(self, listeners: Sequence[Progress]) -> None:
        self._listeners = tuple(listeners)

    def doing(self, text: str) -> None:
        """Something that takes a while has begun."""
        for listener in self._listeners:
            listener.doing(text)

    def began(self, cell: Cell, gpu: str | None) -> None:
        """A probe's process has started, on this GPU or on none."""
        for listener in self._listeners:
            listener.began(cell, gpu)

    def ran(self, cell: Cell, record: Record) -> None:
        """A run has ended and is kept."""
        for listener in self._listeners:
            listener.ran(cell, record)

    def trouble(self, text: str) -> None:
        """Something could not be done; the rest goes on."""
        for listener in self._listeners:
            listener.trouble(text)
