"""One cell put to a prepared stack: run it, judge it, keep its record."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from matrix.building.environments import used
from matrix.building.here import Setup
from matrix.building.preparing import Ready, prepare_again
from matrix.building.resolution import Resolution
from matrix.components import Component
from matrix.errors import Unavailable
from matrix.keeping.ledger import Entry, entry_of
from matrix.keeping.records import Record, Run, new_run_id
from matrix.keeping.redaction import redact
from matrix.keeping.store import Store
from matrix.planning.plan import CONCLUSIVE, Cell, Key, Plan, cell_key
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from matrix.running.asking import Parameters, ask
from matrix.running.exclusive import claimed
from matrix.running.lanes import Lane
from matrix.running.outcomes import Outcome
from matrix.running.processes import Processes
from matrix.running.recording import make_record
from matrix.running.sanitizer import Sanitizer

#: How often an environment is made for one run; who needs more has a neighbour that edits it.
_BUILDS = 3


class Progress(Protocol):
    """Who is told what the engine is doing. Called from several threads."""

    def doing(self, text: str) -> None:
        """Something that takes a while has begun."""

    def began(self, cell: Cell, gpu: str | None) -> None:
        """A probe's process is started, on this GPU or on none."""

    def ran(self, cell: Cell, record: Record) -> None:
        """A run has ended and is kept."""

    def trouble(self, text: str) -> None:
        """Something could not be done; the rest goes on."""


@dataclass
class Result:
    """What came of carrying out a plan."""

    runs: int = 0
    last: Record | None = None
    """The newest record."""
    unfinished: list[str] = field(default_factory=list)
    """What was begun and could not be finished, one sentence each."""
    seconds: float = 0.0
    """From start to end."""
    busy_s: float = 0.0
    """While at least one probe's process was running."""
    left_out: list[Cell] = field(default_factory=list)
    """Not begun, because the time was over."""


class Runs:
    """Runs cells and keeps what they showed. Used from several threads."""

    def __init__(
        self,
        *,
        plan: Plan,
        rooms: Rooms,
        components: dict[str, Component],
        probes: dict[str, ProbeSpec],
        store: Store,
        progress: Progress,
        campaign: str,
        sanitizer: Sanitizer | None,
    ) -> None:
        self.processes = Processes(campaign)
        self.result = Result()
        self._plan = plan
        self._rooms = rooms
        self._components = components
        self._health = next((spec for spec in probes.values() if spec.group == "health"), None)
        self._store = store
        self._progress = progress
        self._sanitizer = sanitizer
        self._lock = threading.Lock()
        self._active = 0
        self._active_since = 0.0
        self._own: set[str] = set()
        """Names of the files that this campaign wrote."""

    def key(self, cell: Cell) -> Key:
        """The key that records of a cell have in this campaign."""
        return cell_key(cell, self._plan.setting, self._plan.sanitize)

    def expected_s(self, cell: Cell) -> float:
        """Seconds that a cell will take, by its last run on this machine or else its limit."""
        before = self._plan.newest.get(self.key(cell))
        return cell.probe.time_limit_s if before is None else before.seconds

    def run(
        self, cell: Cell, ready: Ready, lane: Lane, put_off: Callable[[Cell], None] | None = None
    ) -> Record | None:
        """Run one cell and keep its record; None when there is nothing to keep.

        Args:
            cell: what to run.
            ready: the prepared stack.
            lane: where.
            put_off: takes the cell when company on the machine may have made it fail.
        """
        # What a gate says of somebody else's environment a moment ago opens nothing here.
        wait = self.processes.may_start if cell.probe.group == "gate" else None
        with claimed(self._rooms, self._plan.machine, *self.key(cell), wait=wait) as ours:
            name = f"{cell.stack.name}, {cell.probe.id}"
            if not ours:
                self._progress.doing(f"{name}: another campaign is running it")
                return None
            if cell.probe.group != "gate" and self._meanwhile(cell) is not None:
                self._progress.doing(f"{name}: another campaign has run it")
                return None
            return self._run(cell, ready, lane, put_off)

    def _run(
        self, cell: Cell, ready: Ready, lane: Lane, put_off: Callable[[Cell], None] | None
    ) -> Record | None:
        parameters = cell.parameters or self._parameters(cell.probe)
        try:
            with self._held(ready) as whole:
                started = dt.datetime.now(dt.UTC).replace(microsecond=0)
                run_id = new_run_id(started)
                self._progress.began(cell, lane.label if cell.probe.gpu else None)
                outcome, seconds = self._ask(cell.probe, parameters, whole, lane, run_id)
                changed = whole.environment.changed()
            # Company on the machine can bring these about. A probe's own limits are wide enough.
            crowded = outcome.cut_off or outcome.reason == "machine:out-of-memory" or changed
            if put_off is not None and crowded:
                self._progress.doing(f"{cell.stack.name}: {cell.probe.id} again, alone")
                put_off(cell)
                return None
            suspicious = outcome.suspects_gpu and cell.probe.gpu is not None
            if suspicious and not self._gpu_is_well(whole, lane):
                lane.broken = True
                text = f"the GPU failed its health check after {outcome.reason}: {outcome.detail}"
                outcome = replace(
                    outcome, status="miss", reason="machine:gpu-unhealthy", detail=text[:1000]
                )
            elif changed:
                outcome = self._void(cell, outcome)
        except Unavailable as error:
            # Somebody changed the environment, and it can't be made anew.
            outcome = Outcome("miss", error.reason, redact(str(error), self._plan.places))
            self.give_up(f"{cell.stack.name}, {cell.probe.id}: {error}")
            return self._keep_told(cell, ready.setup, outcome, ready.patches)
        if outcome.status == "miss" and outcome.reason not in ready.absent.values():
            self.give_up(f"{cell.stack.name}, {cell.probe.id}: {outcome.reason}: {outcome.detail}")
        record = make_record(
            self._plan,
            cell,
            ready.setup,
            outcome,
            run=Run(id=run_id, started=started, seconds=seconds),
            parameters=parameters,
            ready=whole,
        )
        return self._keep(cell, record, ready.resolution)

    @contextmanager
    def _held(self, ready: Ready) -> Iterator[Ready]:
        """The stack, with its environment as it was built, and so until the end of this.

        Raises:
            Unavailable: it can't be made anew.
        """
        going_on = self.processes.may_start
        for _ in range(_BUILDS):
            with used(ready.environment, going_on) as whole:
                if whole:
                    yield ready
                    return
            ready = prepare_again(
                ready,
                components=self._components,
                rooms=self._rooms,
                doing=self._progress.doing,
                going_on=going_on,
            )
        raise Unavailable("install:failed", "the files of the environment keep changing")

    def _void(self, cell: Cell, outcome: Outcome) -> Outcome:
        """What becomes of a run whose environment was changed meanwhile: it says nothing."""
        text = "files of the environment were changed while it ran"
        if cell.probe.group != "gate":
            # A gate is asked again at once, of a new environment.
            self.give_up(f"{cell.stack.name}, {cell.probe.id}: {text}; run again")
        said = f"; {outcome.status} {outcome.reason or ''}: {outcome.detail or ''}".rstrip(": ")
        return replace(
            outcome, status="void", reason="loaded:mismatch", detail=(text + said)[:1000]
        )

    def keep_without_process(
        self, cell: Cell, setup: Setup, outcome: Outcome, patches: Patched = ()
    ) -> None:
        """Keep a result that no process gave, unless it repeats what is known.

        Args:
            cell: the gate of the stack that could not be prepared.
            setup: how its environment would have been made.
            outcome: what came of preparing it.
            patches: what came of each patch.
        """
        with claimed(
            self._rooms, self._plan.machine, *self.key(cell), wait=self.processes.may_start
        ) as ours:
            before = self._meanwhile(cell) or self._plan.newest.get(self.key(cell))
            told = None if before is None else (before.status, before.reason, before.detail)
            # Trying again what is still missing is no new result.
            if ours and told != (outcome.status, outcome.reason, outcome.detail):
                self._keep_told(cell, setup, outcome, patches)

    def _keep_told(self, cell: Cell, setup: Setup, outcome: Outcome, patches: Patched) -> Record:
        started = dt.datetime.now(dt.UTC).replace(microsecond=0)
        record = make_record(
            self._plan,
            cell,
            setup,
            outcome,
            run=Run(id=new_run_id(started), started=started, seconds=0.0),
            parameters={},
            ready=None,
            patches=patches,
        )
        return self._keep(cell, record, None)

    def give_up(self, text: str) -> None:
        """Note what was begun and can't be finished."""
        with self._lock:
            self.result.unfinished.append(text)
        self._progress.trouble(text)

    def leave_out(self, cells: list[Cell]) -> None:
        """Note cells that are not begun, because the time is over."""
        with self._lock:
            self.result.left_out += cells

    def _meanwhile(self, cell: Cell) -> Entry | None:
        """What another campaign found out of the cell since this one was planned."""
        known = self._plan.known
        if known is None:
            return None
        for path in self._store.files(self._plan.machine, cell.stack.id):
            name = f"{self._plan.machine}/{cell.stack.id}/{path.name}"
            if name in known or not path.name.startswith(f"{cell.probe.id}--"):
                continue
            with self._lock:
                if path.name in self._own:
                    continue
            entry = entry_of(self._store.read_at(path), name)
            if entry.key == self.key(cell) and entry.status in CONCLUSIVE:
                return entry
        return None

    def _parameters(self, spec: ProbeSpec) -> Parameters:
        setting = self._plan.setting
        chosen = setting if setting in spec.parameters else "quick"
        parameters: Parameters = {
            **spec.parameters[chosen],
            "setting": chosen,
            "seed": secrets.randbelow(2**31),
        }
        if self._sanitizer is not None and spec.group != "gate":
            parameters["sanitize"] = self._sanitizer.tool
        return parameters

    def _ask(
        self, spec: ProbeSpec, parameters: Parameters, ready: Ready, lane: Lane, run_id: str
    ) -> tuple[Outcome, float]:
        self._progress.doing(f"{ready.stack.name}: {spec.id}")
        self._count(1)
        try:
            return ask(
                spec,
                parameters,
                ready,
                run_id=run_id,
                rooms=self._rooms,
                components=self._components,
                places=self._plan.places,
                processes=self.processes,
                lane=lane,
                sanitizer=self._sanitizer if "sanitize" in parameters else None,
            )
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._lock:
            now = time.monotonic()
            if self._active:
                self.result.busy_s += now - self._active_since
            self._active_since = now
            self._active += more

    def _gpu_is_well(self, ready: Ready, lane: Lane) -> bool:
        """Whether torch alone still works on this GPU; asked twice before the GPU is blamed."""
        if self._health is None:
            return True
        for _ in range(2):
            parameters: Parameters = {**self._health.parameters["quick"], "seed": 1}
            run_id = new_run_id(dt.datetime.now(dt.UTC))
            with self._held(ready) as whole:
                outcome, _ = self._ask(self._health, parameters, whole, lane, run_id)
            if outcome.status == "pass":
                return True
        return False

    def _keep(self, cell: Cell, record: Record, resolution: Resolution | None) -> Record:
        if resolution is not None:
            self._store.add_lock(
                record.machine.name, record.stack.id, resolution.digest, resolution.lock
            )
        path = self._store.add(record)
        with self._lock:
            self._own.add(path.name)
            self.result.runs += 1
            self.result.last = record
        self._progress.ran(cell, record)
        return record


#: (candidate, head, result) of each patch.
Patched = tuple[tuple[str, str, str], ...]
