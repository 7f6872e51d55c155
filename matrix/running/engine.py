"""Carry out a plan: stacks are made ready ahead, and each GPU works through one at a time.

Preparing threads resolve, build, check out and put the gate to stacks, a few ahead of the GPUs. A
lane for each GPU takes a stack that is ready and runs its cells side by side. What only one thread
may do at a time is guarded by one condition, which also wakes whoever waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from matrix.building.environments import discard_if_damaged
from matrix.building.here import Setup
from matrix.building.preparing import Ready, prepare
from matrix.components import Component
from matrix.errors import ResolutionConflict, Unavailable
from matrix.keeping.records import Record
from matrix.keeping.redaction import redact
from matrix.keeping.store import Store
from matrix.planning.plan import Cell, Plan, opens
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from matrix.running.cell_runs import Progress, Result, Runs
from matrix.running.lanes import Lane, lanes_for
from matrix.running.outcomes import Outcome
from matrix.running.processes import Stopped, adopt_orphans
from matrix.running.sanitizer import Sanitizer
from matrix.stacks import Stack

__all__ = ["Engine", "Progress", "Result", "default_width"]


def default_width() -> int:
    """How many probes run at once: importing and compiling take a core and up to 6 GB each."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores * 3 // 4, memory // (6 * 2**30), 16))


@dataclass(frozen=True)
class _Wave:
    """A stack that is ready, and the cells still to be put to it."""

    ready: Ready
    cells: list[Cell]


class Engine:
    """Carries out one plan.

    Args:
        plan: what to run.
        rooms: the project folder.
        components: the catalogue.
        probes: all probes.
        store: where records go.
        progress: who is told.
        campaign: this campaign's name among those of the folder.
        sanitizer: a tool to run probes under.
        width: how many probes run at once, on all GPUs together.
        seconds: after this time nothing more is begun; what runs then is waited for.
    """

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
        sanitizer: Sanitizer | None = None,
        width: int | None = None,
        seconds: float | None = None,
    ) -> None:
        self._plan = plan
        self._rooms = rooms
        self._components = components
        self._progress = progress
        self._lanes = lanes_for(plan.gpus)
        all_together = 1 if sanitizer is not None else width or default_width()
        self._width = max(1, all_together // len(self._lanes))
        self._runs = Runs(
            plan=plan,
            rooms=rooms,
            components=components,
            probes=probes,
            store=store,
            progress=progress,
            campaign=campaign,
            sanitizer=sanitizer,
        )
        self._seconds = seconds
        self._started = time.monotonic()
        self._change = threading.Condition()
        self._waiting: deque[tuple[Stack, Setup, list[Cell]]] = deque()
        self._ready: deque[_Wave] = deque()
        self._together: list[_Wave] = []
        """What needs several GPUs, and so comes when no lane works any more."""
        self._preparing = 0
        self._in_flight = 0
        self._stopped = False
        self._error: BaseException | None = None

    def run(self) -> Result:
        """Run every cell that the plan says to run; each record is kept as soon as it is there.

        Raises:
            KeyboardInterrupt: a signal came; what was in flight is gone, the rest is kept.
            MatrixError: a record could not be written.
        """
        adopt_orphans()
        self._started = started = time.monotonic()
        for stack in self._plan.stacks():
            cells = [cell for cell in self._plan.of(stack) if cell.state == "run"]
            setup = self._plan.setups[stack.id]
            if cells and setup is not None:
                self._waiting.append((stack, setup, cells))
        self._preparing = min(2, self._width, max(1, len(self._waiting)))
        threads = [
            threading.Thread(target=self._guarded, args=(self._prepare_stacks,), name="prepare")
            for _ in range(self._preparing)
        ]
        threads += [
            threading.Thread(
                target=self._guarded, args=(lambda lane=lane: self._work(lane),), name=lane.label
            )
            for lane in self._lanes
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)  # in slices, so that a signal reaches this thread
        except BaseException:
            self._stop()
            for thread in threads:
                thread.join()
            raise
        if self._error is not None:
            raise self._error
        for wave in self._together:
            self._run_on_several(wave)
        result = self._runs.result
        result.seconds = time.monotonic() - started
        return result

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a thread's work; what escapes it stops the others and is raised by `run`."""
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            with self._change:
                self._error = self._error or error
            self._stop()

    def _stop(self) -> None:
        with self._change:
            self._stopped = True
            self._change.notify_all()
        self._runs.processes.stop()

    # Preparing threads

    def _prepare_stacks(self) -> None:
        try:
            while True:
                with self._change:
                    # No further ahead than what the lanes will take next: each is a folder.
                    self._change.wait_for(
                        lambda: self._stopped or len(self._ready) <= len(self._lanes)
                    )
                    if self._stopped or not self._waiting:
                        return
                    stack, setup, cells = self._waiting.popleft()
                if self._time_is_over():
                    self._runs.leave_out(cells)
                    continue
                wave = self._prepare(stack, setup, cells)
                if wave is not None:
                    with self._change:
                        self._ready.append(wave)
                        self._change.notify_all()
        finally:
            with self._change:
                self._preparing -= 1
                self._change.notify_all()

    def _prepare(self, stack: Stack, setup: Setup, cells: list[Cell]) -> _Wave | None:
        """Make a stack ready and put its gate to it; None when nothing can be run on it."""
        ready = self._made(stack, setup)
        closed = self._closed(ready, cells) if ready is not None else None
        if ready is not None and closed is not None and self._is_damaged(ready, closed):
            ready = self._made(stack, setup)
            closed = self._closed(ready, cells) if ready is not None else None
        if ready is None:
            return None
        if closed is not None:
            text = (
                f"{stack.name}: {closed.detail or closed.reason}; nothing else is run on software "
                "that is not what was asked for"
            )
            # A verdict of the gate on the software is an answer. That it had other software is not.
            tell = self._runs.give_up if closed.status == "void" else self._progress.trouble
            tell(text)
            return None
        rest = [cell for cell in cells if cell.probe.group != "gate"]
        # What waits for the GPU at its end comes last; of the others, the longest come first.
        rest.sort(key=lambda cell: (bool(cell.probe.alone), -self._runs.expected_s(cell)))
        several = [cell for cell in rest if cell.probe.gpu is not None and cell.probe.gpus > 1]
        if several:
            with self._change:
                self._together.append(_Wave(ready, several))
        rest = [cell for cell in rest if cell not in several]
        return _Wave(ready, rest) if rest else None

    def _made(self, stack: Stack, setup: Setup) -> Ready | None:
        """A stack made ready; where it can't be, the reason is kept, and None returned."""
        gate = min(self._plan.of(stack), key=lambda cell: cell.probe.group != "gate")
        try:
            return prepare(
                stack,
                setup,
                sources=self._plan.sources,
                components=self._components,
                rooms=self._rooms,
                doing=self._progress.doing,
                give_up=self._runs.give_up,
                going_on=self._runs.processes.may_start,
            )
        except ResolutionConflict as conflict:
            outcome = Outcome("fail", conflict.reason, redact(str(conflict), self._plan.places))
            self._runs.keep_without_process(gate, setup, outcome, conflict.patches)
        except Unavailable as error:
            outcome = Outcome("miss", error.reason, redact(str(error), self._plan.places))
            self._runs.keep_without_process(gate, setup, outcome)
            self._runs.give_up(f"{stack.name}: {error}")
        return None

    def _closed(self, ready: Ready, cells: list[Cell]) -> Record | None:
        """The run of a gate that lets nothing else run on the stack; None when all open."""
        for cell in [cell for cell in cells if cell.probe.group == "gate"]:
            record = self._runs.run(cell, ready, self._lanes[0])
            if record is not None and not opens(
                record.status, record.reason, record.stack.absent.values()
            ):
                return record
        return None

    def _is_damaged(self, ready: Ready, closed: Record) -> bool:
        """Whether the gate met changed files; then the environment is made anew."""
        if closed.status != "void":
            return False
        try:
            damaged = discard_if_damaged(ready.environment, self._runs.processes.may_start)
        except OSError as error:
            self._progress.trouble(f"{ready.stack.name}: {error}")
            return False
        if damaged:
            self._progress.trouble(f"{ready.stack.name}: the environment is built anew")
        return damaged

    # Lanes

    def _work(self, lane: Lane) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stopped or self._ready or self._nothing_comes())
                if self._stopped or not self._ready:
                    return
                wave = self._ready.popleft()
                self._in_flight += 1
                self._change.notify_all()
            left: list[Cell] = []
            try:
                left = self._run_wave(wave, lane)
            finally:
                with self._change:
                    self._in_flight -= 1
                    if left:
                        self._ready.appendleft(_Wave(wave.ready, left))
                    self._change.notify_all()
            if lane.broken and self._others_are_well(lane):
                return

    def _time_is_over(self) -> bool:
        return self._seconds is not None and time.monotonic() - self._started > self._seconds

    def _nothing_comes(self) -> bool:
        return self._preparing == 0 and self._in_flight == 0

    def _run_on_several(self, wave: _Wave) -> None:
        """Run cells that need several GPUs, one after another, with those GPUs to themselves."""
        for cell in wave.cells:
            well = [gpu for lane in self._lanes if not lane.broken for gpu in lane.gpus]
            if self._time_is_over():
                self._runs.leave_out([cell])
            elif len(well) < cell.probe.gpus:
                self._runs.give_up(
                    f"{cell.stack.name}, {cell.probe.id}: not run, {len(well)} GPUs are well"
                )
            else:
                lane = Lane(tuple(well if cell.probe.all_gpus else well[: cell.probe.gpus]))
                with lane.alone(self._rooms):
                    self._runs.run(cell, wave.ready, lane)
                for each in self._lanes if lane.broken else ():
                    each.broken = each.broken or each.gpus[0] in lane.gpus

    def _others_are_well(self, lane: Lane) -> bool:
        return any(not other.broken for other in self._lanes if other is not lane)

    def _run_wave(self, wave: _Wave, lane: Lane) -> list[Cell]:
        """Run a stack's cells side by side; what failed for want of room is run again alone.

        Returns:
            Cells that are left for another GPU, because this one is unwell.
        """
        crowded: list[Cell] = []
        left: list[Cell] = []
        company = self._width > 1 and len(wave.cells) > 1

        def run(cell: Cell, put_off: Callable[[Cell], None] | None) -> Record | None:
            if self._time_is_over():
                self._runs.leave_out([cell])
                return None
            if lane.broken and cell.probe.gpu is not None:
                if self._others_are_well(lane):
                    left.append(cell)
                else:
                    self._runs.give_up(
                        f"{cell.stack.name}, {cell.probe.id}: not run, the GPU is unwell"
                    )
                return None
            return self._runs.run(cell, wave.ready, lane, put_off)

        pool = ThreadPoolExecutor(max_workers=self._width, thread_name_prefix=lane.label)
        try:
            waiting: set[Future[Record | None]] = {
                pool.submit(run, cell, crowded.append if company else None) for cell in wave.cells
            }
            while waiting:
                ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ended:
                    future.result()
        except BaseException:
            self._stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        for cell in crowded:
            run(cell, None)
        return left
