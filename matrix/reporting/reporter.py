"""What a person sees while a campaign runs: a live display on a terminal, lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from matrix.keeping.records import Record
from matrix.planning.plan import Cell
from matrix.reporting.events import CampaignBegan, Event, RunBegan, RunEnded, Trouble
from matrix.reporting.pace import Name, Pace, shown_seconds
from matrix.reporting.terminal import look
from matrix.visible import visible

#: Lines of the live display beside those of what runs.
_OTHER_LINES = 4


class Reporter:
    """Progress for people.

    On a terminal: cells done, seconds for each, about how long the rest will take, and what runs on
    each GPU. Elsewhere one line for each finished run and each step, with nothing but text.
    """

    def __init__(
        self, screen: Console, cells: int, expected: Mapping[Name, float] | None = None
    ) -> None:
        self._screen = screen
        self._pace = Pace(cells, expected or {})
        self._lock = threading.Lock()
        self._running: dict[Name, tuple[str, str | None, float]] = {}
        """(what it is called, GPU, start on the clock)"""
        self._doing = "starting"
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.is_terminal:
            self._live = Live(
                console=self._screen,
                get_renderable=self._display,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def doing(self, text: str) -> None:
        """Something that takes a while has begun."""
        with self._lock:
            self._doing = text
            cells = self._pace.cells
            place = f"[{min(self._pace.done + 1, cells)}/{cells}] " if cells else ""
        if self._live is None:
            self._print(Text(visible(f"{place}{text}")))

    def began(self, cell: Cell, gpu: str | None) -> None:
        """A probe's process has started, on this GPU or on none."""
        self._began((cell.stack.id, cell.probe.id), f"{cell.stack.name}, {cell.probe.id}", gpu)

    def ran(self, cell: Cell, record: Record) -> None:
        """A run has ended and is kept."""
        detail = record.detail or ""
        if len(record.parts) > 1:
            passed = sum(part.status == "pass" for part in record.parts)
            detail += f" ({passed} of {len(record.parts)} parts passed)"
        self._ran(
            (cell.stack.id, cell.probe.id),
            f"{cell.stack.name}, {cell.probe.id}",
            ended=(record.status, record.reason),
            detail=detail,
            seconds=record.run.seconds,
        )

    def follow(self, part: int, event: Event) -> None:
        """What a part of a campaign on a cluster says."""
        match event:
            case CampaignBegan():
                with self._lock:
                    self._pace.cells += event.to_run
            case RunBegan():
                where = f"part {part}" if event.gpu is None else f"part {part}, {event.gpu}"
                called = f"{event.stack_name}, {event.probe}"
                self._began((event.stack_id, event.probe), called, where)
            case RunEnded():
                self._ran(
                    (event.stack_id, event.probe),
                    f"part {part}, {event.stack_name}, {event.probe}",
                    ended=(event.status, event.reason),
                    detail=event.detail or "",
                    seconds=event.seconds,
                )
            case Trouble():
                self.trouble(f"part {part}: {event.text}")
            case _:
                pass

    def _began(self, name: Name, called: str, where: str | None) -> None:
        with self._lock:
            self._pace.began(name)
            self._running[name] = (called, where, time.monotonic())

    def _ran(
        self,
        name: Name,
        called: str,
        *,
        ended: tuple[str, str | None],
        detail: str,
        seconds: float,
    ) -> None:
        with self._lock:
            self._running.pop(name, None)
            self._pace.ended(name, seconds)
        status, reason = ended
        sign, style = look(status)
        said = f": {detail}" if detail and status != "pass" else ""
        self._print(
            Text.assemble(
                (f"{sign} {status}{f' {reason}' if reason else ''}", style),
                visible(f"  {called}, {seconds:.1f} s{said}"),
            )
        )

    def trouble(self, text: str) -> None:
        """Something could not be done; the rest goes on."""
        self._print(Text(visible(f"! {text}"), style="yellow"))

    def _print(self, line: Text) -> None:
        # Where nobody watches, a line stays one line: programs such as grep read it.
        self._screen.print(line, soft_wrap=self._live is None)

    def _display(self) -> RenderableType:
        with self._lock:
            return Group(self._head(), self._rows(), self._step())

    def _head(self) -> RenderableType:
        pace = self._pace
        parts = [f"{pace.done} of {pace.cells} cells"]
        each = pace.seconds_per_cell()
        if each is not None:
            parts.append(f"{shown_seconds(each)} per cell")
        left = pace.seconds_left()
        parts.append("time left unknown" if left is None else f"about {shown_seconds(left)} left")
        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(total=max(1, pace.cells), completed=pace.done, width=24),
            Text(", ".join(parts)),
        )
        return line

    def _rows(self) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(no_wrap=True, max_width=20)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        rows.add_column(no_wrap=True, justify="right")
        now = time.monotonic()
        running = sorted(self._running.values(), key=lambda row: (row[1] or "~", row[2]))
        room = max(1, self._screen.height - _OTHER_LINES)
        for called, gpu, start in running[:room]:
            where = "no GPU" if gpu is None else visible(gpu)
            rows.add_row(
                Text(f"  {where}", style="bold" if gpu is not None else "dim"),
                Text(visible(called)),
                Text(shown_seconds(now - start), style="dim"),
            )
        if len(running) > room:
            rows.add_row("", Text(f"and {len(running) - room} more", style="dim"), "")
        return rows

    def _step(self) -> RenderableType:
        self._spinner.update(text=Text(visible(self._doing), no_wrap=True, overflow="ellipsis"))
        return self._spinner
