"""A campaign as events for programs: one JSON object on each line, in a documented form."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, Self, TextIO

from pydantic import AwareDatetime, Field, TypeAdapter

from matrix.keeping.reasons import Status
from matrix.keeping.records import Record
from matrix.keeping.store import place_of
from matrix.models import Model
from matrix.planning.plan import Cell, Plan
from matrix.visible import visible

#: Changes when a field changes its meaning or goes; fields and events may be added within it.
FORM: Literal[1] = 1


class _Event(Model):
    time: AwareDatetime
    """UTC, when it was written."""
    part: int | None = None
    """Of a campaign on a cluster: which of its parts says this, from 1."""


class _OfCell(_Event):
    stack_id: str
    stack_name: str
    """What the campaign calls the stack."""
    probe: str


class CampaignBegan(_Event):
    """The first line."""

    event: Literal["campaign"] = "campaign"
    form: Literal[1] = FORM
    campaign: str
    machine: str
    gpu: str | None
    """The GPU's product name; null on a machine without one."""
    to_run: int
    """Cells that this command will run."""
    done: int
    """Cells that have a result of this machine already."""
    not_here: int
    """Cells that can't run on this machine."""


class CellPlanned(_OfCell):
    """One cell of the plan; one line for each, after the first."""

    event: Literal["cell"] = "cell"
    state: Literal["run", "done", "not here"]
    reason: str | None
    """For a cell that can't run here: the `miss` reason."""
    why: str


class Doing(_Event):
    """Something that takes a while has begun: resolving, installing, a probe."""

    event: Literal["doing"] = "doing"
    text: str


class RunBegan(_OfCell):
    """A probe's process has started."""

    event: Literal["began"] = "began"
    gpu: str | None
    """Which GPU of the machine it was given; null for none."""


class RunEnded(_OfCell):
    """A run has ended, and its record is kept."""

    event: Literal["ran"] = "ran"
    status: Status
    reason: str | None
    detail: str | None
    seconds: float
    """Wall time of the probe's process; 0 when none was started."""
    gpu: str | None
    run: str
    """The run's id."""
    path: str
    """The record's file, relative to the project folder."""


class Trouble(_Event):
    """Something could not be done; the rest goes on."""

    event: Literal["trouble"] = "trouble"
    text: str


class CampaignEnded(_Event):
    """The last line; it is missing only when the command was killed outright."""

    event: Literal["ended"] = "ended"
    runs: int
    """Runs of this command that are kept."""
    unfinished: list[str]
    """What was begun and could not be finished; not empty means exit status 1."""
    interrupted: bool
    """Whether it was stopped, or ended by an error, before all was done."""


Event = Annotated[
    CampaignBegan | CellPlanned | Doing | RunBegan | RunEnded | Trouble | CampaignEnded,
    Field(discriminator="event"),
]

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def read_event(line: str) -> Event:
    """One line as an event.

    Raises:
        ValidationError: it is none of this form.
    """
    return _EVENT.validate_json(line)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class JsonLines:
    """A campaign's progress as lines of JSON.

    Every line is ASCII, so that nothing in it can act on a terminal. When the reader goes away,
    the campaign goes on without it.
    """

    def __init__(self, out: TextIO, now: Callable[[], dt.datetime] = _now) -> None:
        self._out: TextIO | None = out
        self._now = now
        self._lock = threading.Lock()
        self._gpus: dict[tuple[str, str], str | None] = {}
        self._runs = 0
        self._unfinished: list[str] = []
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended:
            self._end(interrupted=True)

    def plan(self, plan: Plan) -> None:
        """The campaign and its cells, before anything runs."""
        states = [cell.state for cell in plan.cells]
        self._write(
            CampaignBegan(
                time=self._now(),
                campaign=plan.campaign.name,
                machine=plan.machine,
                gpu=plan.gpu.name if plan.gpu else None,
                to_run=states.count("run"),
                done=states.count("done"),
                not_here=states.count("not here"),
            )
        )
        for cell in plan.cells:
            self._write(
                CellPlanned(
                    time=self._now(),
                    stack_id=cell.stack.id,
                    stack_name=visible(cell.stack.name),
                    probe=cell.probe.id,
                    state=cell.state,
                    reason=cell.reason,
                    why=visible(cell.why),
                )
            )

    def doing(self, text: str) -> None:
        """Something that takes a while has begun."""
        self._write(Doing(time=self._now(), text=visible(text)))

    def began(self, cell: Cell, gpu: str | None) -> None:
        """A probe's process has started, on this GPU or on none."""
        with self._lock:
            self._gpus[cell.stack.id, cell.probe.id] = gpu
        self._write(
            RunBegan(
                time=self._now(),
                stack_id=cell.stack.id,
                stack_name=visible(cell.stack.name),
                probe=cell.probe.id,
                gpu=None if gpu is None else visible(gpu),
            )
        )

    def ran(self, cell: Cell, record: Record) -> None:
        """A run has ended and is kept."""
        with self._lock:
            gpu = self._gpus.pop((cell.stack.id, cell.probe.id), None)
            self._runs += 1
        self._write(
            RunEnded(
                time=self._now(),
                stack_id=cell.stack.id,
                stack_name=visible(cell.stack.name),
                probe=cell.probe.id,
                status=record.status,
                reason=record.reason,
                detail=None if record.detail is None else visible(record.detail),
                seconds=record.run.seconds,
                gpu=None if gpu is None else visible(gpu),
                run=record.run.id,
                path=f"matrix/evidence/{place_of(record).as_posix()}",
            )
        )

    def trouble(self, text: str) -> None:
        """Something could not be done; the rest goes on."""
        self._write(Trouble(time=self._now(), text=visible(text)))

    def follow(self, part: int, event: Event) -> None:
        """Pass on what a part of a campaign on a cluster says."""
        if isinstance(event, RunEnded):
            with self._lock:
                self._runs += 1
        self._write(event.model_copy(update={"part": part}))

    def ended(self, unfinished: Iterable[str]) -> None:
        """All was carried out."""
        self._unfinished = [visible(line) for line in unfinished]
        self._end(interrupted=False)

    def _end(self, *, interrupted: bool) -> None:
        self._ended = True
        self._write(
            CampaignEnded(
                time=self._now(),
                runs=self._runs,
                unfinished=self._unfinished,
                interrupted=interrupted,
            )
        )

    def _write(self, event: Event) -> None:
        line = json.dumps(event.model_dump(mode="json"), ensure_ascii=True, allow_nan=False)
        with self._lock:
            if self._out is None:
                return
            try:
                self._out.write(line + "\n")
                self._out.flush()
            except OSError:
                # Nobody reads any more. What is left in the buffer must not fail at exit either.
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, self._out.fileno())
                os.close(devnull)
                self._out = None
