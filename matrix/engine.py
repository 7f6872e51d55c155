"""Carry out a plan: stack by stack, several probes at a time, one record per run."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Protocol

from matrix.asking import Parameters, ask
from matrix.components import Component
from matrix.errors import ResolutionConflict, Unavailable
from matrix.here import Setup
from matrix.outcomes import Outcome
from matrix.plan import Cell, Plan, cell_key, opens
from matrix.preparing import Ready, prepare
from matrix.probe_specs import ProbeSpec
from matrix.processes import Processes, adopt_orphans
from matrix.recording import make_record
from matrix.records import Record, Run, new_run_id
from matrix.redaction import redact
from matrix.resolution import Resolution
from matrix.rooms import Rooms
from matrix.sanitizer import Sanitizer
from matrix.stacks import Stack
from matrix.store import Store


class Progress(Protocol):
    """Who is told what the engine is doing. Called from several threads."""

    def doing(self, text: str) -> None:
        """Something that takes a while has begun."""

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


def default_width() -> int:
    """How many probes run at once: importing and compiling take a core and up to 6 GB each."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores * 3 // 4, memory // (6 * 2**30), 16))


class Engine:
    """Carries out one plan."""

    def __init__(
        self,
        *,
        plan: Plan,
        rooms: Rooms,
        components: dict[str, Component],
        probes: dict[str, ProbeSpec],
        store: Store,
        progress: Progress,
        sanitizer: Sanitizer | None = None,
        width: int | None = None,
    ) -> None:
        self._plan = plan
        self._rooms = rooms
        self._components = components
        self._health = next((spec for spec in probes.values() if spec.group == "health"), None)
        self._store = store
        self._progress = progress
        self._sanitizer = sanitizer
        self._width = width or default_width()
        self._processes = Processes()
        self._lock = threading.Lock()
        self._result = Result()
        self._gpu_broken = False

    def run(self) -> Result:
        """Run every cell that the plan says to run; each record is kept as soon as it is there."""
        adopt_orphans()
        for stack in self._plan.stacks():
            cells = [cell for cell in self._plan.of(stack) if cell.state == "run"]
            setup = self._plan.setups[stack.id]
            if cells and setup is not None:
                self._run_stack(stack, setup, cells)
        return self._result

    def _run_stack(self, stack: Stack, setup: Setup, cells: list[Cell]) -> None:
        gate = min(self._plan.of(stack), key=lambda cell: cell.probe.group != "gate")
        try:
            ready = prepare(
                stack,
                setup,
                sources=self._plan.sources,
                components=self._components,
                rooms=self._rooms,
                doing=self._progress.doing,
                give_up=self._give_up,
            )
        except ResolutionConflict as conflict:
            text = redact(str(conflict), self._plan.places)
            outcome = Outcome("fail", conflict.reason, text)
            self._keep_without_process(gate, setup, outcome, conflict.patches)
            return
        except Unavailable as error:
            text = redact(str(error), self._plan.places)
            self._keep_without_process(gate, setup, Outcome("miss", error.reason, text))
            self._give_up(f"{stack.name}: {error}")
            return
        for cell in [cell for cell in cells if cell.probe.group == "gate"]:
            record = self._run_cell(cell, ready)
            if record is not None and not opens(
                record.status, record.reason, record.stack.absent.values()
            ):
                self._progress.trouble(
                    f"{stack.name}: {record.detail or record.reason}; "
                    "nothing else is run on software that is not what was asked for"
                )
                return
        width = 1 if self._sanitizer is not None else self._width
        rest = [cell for cell in cells if cell.probe.group != "gate"]
        rest.sort(key=self._place)
        self._run_together(rest, ready, width)

    def _place(self, cell: Cell) -> tuple[bool, float]:
        """What waits for the GPU at its end comes last; of the others, the longest come first."""
        before = self._plan.newest.get(cell_key(cell, self._plan.setting, self._plan.sanitize))
        seconds = cell.probe.time_limit_s if before is None else before.seconds
        return bool(cell.probe.alone), -seconds

    def _run_together(self, cells: list[Cell], ready: Ready, width: int) -> None:
        """Run cells side by side; what failed for want of room is run again alone."""
        crowded: list[Cell] = []
        pool = ThreadPoolExecutor(max_workers=width, thread_name_prefix="probe")
        try:
            waiting: set[Future[Record | None]] = set()
            company = width > 1 and len(cells) > 1
            for cell in cells:
                put_off: Callable[[Cell], None] | None = crowded.append if company else None
                waiting.add(pool.submit(self._run_cell, cell, ready, put_off))
            while waiting:
                # In slices, so that a signal reaches this thread while probes run.
                ended, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
        except BaseException:
            self._processes.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        for cell in crowded:
            self._run_cell(cell, ready)

    def _run_cell(
        self, cell: Cell, ready: Ready, put_off: Callable[[Cell], None] | None = None
    ) -> Record | None:
        """Run one cell and keep its record; None when there is nothing to keep.

        Args:
            cell: what to run.
            ready: the prepared stack.
            put_off: takes the cell when company on the machine may have made it fail.
        """
        if cell.probe.gpu is not None and self._gpu_broken:
            self._give_up(f"{cell.stack.name}, {cell.probe.id}: not run, the GPU is unwell")
            return None
        started = dt.datetime.now(dt.UTC).replace(microsecond=0)
        run_id = new_run_id(started)
        parameters = cell.parameters or self._parameters(cell.probe)
        outcome, seconds = self._ask(cell.probe, parameters, ready, run_id)
        # Company on the machine can bring these about. A probe's own limits are wide enough for it.
        crowded = outcome.cut_off or outcome.reason == "machine:out-of-memory"
        if put_off is not None and crowded:
            self._progress.doing(f"{cell.stack.name}: {cell.probe.id} again, alone")
            put_off(cell)
            return None
        if outcome.suspects_gpu and cell.probe.gpu is not None and not self._gpu_is_well(ready):
            self._gpu_broken = True
            text = f"the GPU failed its health check after {outcome.reason}: {outcome.detail}"
            outcome = replace(
                outcome, status="miss", reason="machine:gpu-unhealthy", detail=text[:1000]
            )
        if outcome.status == "miss" and outcome.reason not in ready.absent.values():
            self._give_up(f"{cell.stack.name}, {cell.probe.id}: {outcome.reason}: {outcome.detail}")
        record = make_record(
            self._plan,
            cell,
            ready.setup,
            outcome,
            run=Run(id=run_id, started=started, seconds=seconds),
            parameters=parameters,
            ready=ready,
        )
        return self._keep(cell, record, ready.resolution)

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
        self, spec: ProbeSpec, parameters: Parameters, ready: Ready, run_id: str
    ) -> tuple[Outcome, float]:
        self._progress.doing(f"{ready.stack.name}: {spec.id}")
        return ask(
            spec,
            parameters,
            ready,
            run_id=run_id,
            rooms=self._rooms,
            components=self._components,
            places=self._plan.places,
            processes=self._processes,
            sanitizer=self._sanitizer if "sanitize" in parameters else None,
        )

    def _gpu_is_well(self, ready: Ready) -> bool:
        """Whether torch alone still works on this GPU; asked twice before the GPU is blamed."""
        if self._health is None:
            return True
        for _ in range(2):
            parameters: Parameters = {**self._health.parameters["quick"], "seed": 1}
            run_id = new_run_id(dt.datetime.now(dt.UTC))
            outcome, _ = self._ask(self._health, parameters, ready, run_id)
            if outcome.status == "pass":
                return True
        return False

    def _keep_without_process(
        self,
        cell: Cell,
        setup: Setup,
        outcome: Outcome,
        patches: tuple[tuple[str, str, str], ...] = (),
    ) -> None:
        before = self._plan.newest.get(cell_key(cell, self._plan.setting, self._plan.sanitize))
        if before is not None and (before.status, before.reason, before.detail) == (
            outcome.status,
            outcome.reason,
            outcome.detail,
        ):
            return  # trying again what is still missing is no new result
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
        self._keep(cell, record, None)

    def _keep(self, cell: Cell, record: Record, resolution: Resolution | None) -> Record:
        if resolution is not None:
            self._store.add_lock(
                record.machine.name, record.stack.id, resolution.digest, resolution.lock
            )
        self._store.add(record)
        with self._lock:
            self._result.runs += 1
            self._result.last = record
        self._progress.ran(cell, record)
        return record

    def _give_up(self, text: str) -> None:
        with self._lock:
            self._result.unfinished.append(text)
        self._progress.trouble(text)
