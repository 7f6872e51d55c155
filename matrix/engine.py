"""Carry out a plan: stack by stack, cell by cell, one record per run."""

from __future__ import annotations

import datetime as dt
import platform
import re
import secrets
import shutil
from dataclasses import dataclass, field, replace
from typing import Protocol

from matrix.components import NONE, Component
from matrix.environments import Environment, build
from matrix.errors import ResolutionConflict, Unavailable
from matrix.machine import processor
from matrix.outcomes import Outcome, judge
from matrix.plan import Cell, Plan, Setup
from matrix.probe_specs import ProbeSpec
from matrix.processes import clean_environment, run_process
from matrix.records import (
    Loaded,
    Machine,
    Number,
    ProbeFacts,
    Record,
    Run,
    StackFacts,
    new_run_id,
)
from matrix.records import (
    Source as SourceFacts,
)
from matrix.requests import make_request
from matrix.resolution import Resolution, Target, resolve
from matrix.rooms import Rooms
from matrix.stacks import Stack
from matrix.store import Store
from matrix.torch_choice import WITH_TORCH
from matrix.versions import same_version
from patches.sources import SourceError, Worktree


class Progress(Protocol):
    """Who is told what the engine is doing."""

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
    unfinished: list[str] = field(default_factory=list)
    """What was begun and could not be finished, one sentence each."""


@dataclass(frozen=True)
class _Ready:
    """A stack that probes can be put to."""

    resolution: Resolution
    environment: Environment
    trees: dict[str, Worktree]
    absent: dict[str, str]


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
    ) -> None:
        self._plan = plan
        self._rooms = rooms
        self._components = components
        self._health = next((spec for spec in probes.values() if spec.group == "health"), None)
        self._store = store
        self._progress = progress
        self._result = Result()
        self._gpu_broken = False

    def run(self) -> Result:
        """Run every cell that the plan says to run; each record is kept as soon as it is there."""
        for stack in self._plan.stacks():
            cells = [cell for cell in self._plan.of(stack) if cell.state == "run"]
            setup = self._plan.setups[stack.id]
            if cells and setup is not None:
                self._run_stack(stack, setup, cells)
        shutil.rmtree(self._rooms.scratch, ignore_errors=True)
        return self._result

    def _run_stack(self, stack: Stack, setup: Setup, cells: list[Cell]) -> None:
        gate = next((c for c in self._plan.of(stack) if c.probe.group == "gate"), cells[0])
        try:
            ready = self._prepare(stack, setup)
        except ResolutionConflict as conflict:
            self._keep_without_process(
                gate, setup, Outcome("fail", "resolve:conflict", self._redact(str(conflict)))
            )
            return
        except Unavailable as error:
            self._keep_without_process(
                gate, setup, Outcome("miss", error.reason, self._redact(str(error)))
            )
            self._give_up(f"{stack.name}: {error}")
            return
        for cell in cells:
            if cell.probe.gpu is not None and self._gpu_broken:
                self._give_up(f"{stack.name}, {cell.probe.id}: not run, the GPU is unwell")
                continue
            record = self._run_cell(cell, setup, ready)
            if cell.probe.group == "gate" and not _opens(record):
                self._progress.trouble(
                    f"{stack.name}: {record.detail or record.reason}; "
                    "nothing else is run on software that is not what was asked for"
                )
                return

    def _prepare(self, stack: Stack, setup: Setup) -> _Ready:
        self._progress.doing(f"{stack.name}: resolving versions")
        image_provides = ("torch",) if "torch" in stack.provided else ()
        resolution = resolve(
            requested=stack.requested,
            components=self._components,
            torch_requirements=setup.torch.requirements,
            excluded=image_provides,
            target=Target.of(setup.interpreter),
            packages=setup.torch.packages,
            rooms=self._rooms,
            python_version=setup.interpreter.version,
        )
        self._progress.doing(f"{stack.name}: building the environment")
        environment = build(
            resolution=resolution,
            interpreter=setup.interpreter,
            image=setup.torch.image,
            packages=setup.torch.packages,
            components=self._components,
            rooms=self._rooms,
        )
        absent = {name: reason for name, reason, _ in stack.absent}
        trees: dict[str, Worktree] = {}
        for name, source in self._plan.sources.items():
            version = stack.requested[name]
            if name in absent or not self._components[name].is_revision(version):
                continue
            self._progress.doing(f"{stack.name}: checking out {name} {version[:12]}")
            try:
                trees[name] = source.worktree(version)
            except SourceError as error:
                absent[name] = error.reason
                self._give_up(f"{stack.name}: {error}")
        return _Ready(resolution, environment, trees, absent)

    def _run_cell(self, cell: Cell, setup: Setup, ready: _Ready) -> Record:
        started = dt.datetime.now(dt.UTC).replace(microsecond=0)
        run_id = new_run_id(started)
        parameters = self._parameters(cell.probe)
        outcome, seconds = self._put(cell.probe, parameters, cell.stack, ready, run_id)
        outcome = self._check_loaded(cell.stack, outcome)
        if (
            outcome.suspects_gpu
            and cell.probe.gpu is not None
            and not self._gpu_is_well(cell.stack, ready)
        ):
            self._gpu_broken = True
            text = f"the GPU failed its health check after {outcome.reason}: {outcome.detail}"
            outcome = replace(outcome, status="miss", reason="machine:gpu-unhealthy", detail=text)
            self._give_up(f"{cell.stack.name}, {cell.probe.id}: {text}")
        record = self._record(
            cell,
            setup,
            outcome,
            run=Run(id=run_id, started=started, seconds=seconds),
            parameters=parameters,
            ready=ready,
        )
        return self._keep(cell, record, ready.resolution)

    def _parameters(self, spec: ProbeSpec) -> dict[str, Number | list[Number]]:
        setting = self._plan.campaign.setting
        chosen = setting if setting in spec.parameters else "quick"
        return {**spec.parameters[chosen], "setting": chosen, "seed": secrets.randbelow(2**31)}

    def _put(
        self,
        spec: ProbeSpec,
        parameters: dict[str, Number | list[Number]],
        stack: Stack,
        ready: _Ready,
        run_id: str,
    ) -> tuple[Outcome, float]:
        """Put a probe's question to a stack, in a process of its own."""
        self._progress.doing(f"{stack.name}: {spec.id}")
        scratch = self._rooms.scratch / f"{run_id}-{spec.id}"
        request = make_request(
            spec=spec,
            parameters=parameters,
            stack=stack,
            components=self._components,
            environment=ready.environment,
            trees=ready.trees,
            absent=ready.absent,
            scratch=scratch,
        )
        ended = run_process(
            [str(ready.environment.python), "-s", "-P", str(self._rooms.probes / "runner.py")],
            request=request,
            environment=clean_environment(scratch, [tree.path for tree in ready.trees.values()]),
            scratch=scratch,
            log=self._rooms.logs / f"{run_id}-{spec.id}.txt",
            time_limit_s=spec.time_limit_s,
        )
        shutil.rmtree(scratch, ignore_errors=True)
        outcome = judge(ended, spec.time_limit_s)
        if outcome.detail is not None:
            outcome = replace(outcome, detail=self._redact(outcome.detail))
        return outcome, ended.seconds

    def _check_loaded(self, stack: Stack, outcome: Outcome) -> Outcome:
        """A run whose process had other software than the stack's is void, whatever it says."""
        for name, loaded in outcome.loaded.items():
            asked = stack.requested.get(name)
            if asked in (None, NONE, WITH_TORCH) or loaded.version is None:
                continue
            if self._components[name].is_revision(asked) or same_version(asked, loaded.version):
                continue
            if self._components[name].kind == "cudnn":
                continue  # the library counts in another form; `fingerprint` compares it
            return replace(
                outcome,
                status="void",
                reason="loaded:mismatch",
                detail=f"{name}: {asked} requested, {loaded.version} loaded",
            )
        return outcome

    def _gpu_is_well(self, stack: Stack, ready: _Ready) -> bool:
        """Whether torch alone still works on this GPU; asked twice before the GPU is blamed."""
        if self._health is None:
            return True
        for _ in range(2):
            run_id = new_run_id(dt.datetime.now(dt.UTC))
            outcome, _ = self._put(
                self._health, self._parameters(self._health), stack, ready, run_id
            )
            if outcome.status == "pass":
                return True
        return False

    def _keep_without_process(self, cell: Cell, setup: Setup, outcome: Outcome) -> None:
        key = (cell.stack.id, cell.probe.id, cell.probe.revision)
        before = self._plan.newest.get(key)
        if before is not None and (before.status, before.reason, before.detail) == (
            outcome.status,
            outcome.reason,
            outcome.detail,
        ):
            return  # trying again what is still missing is no new result
        started = dt.datetime.now(dt.UTC).replace(microsecond=0)
        run_id = new_run_id(started)
        record = self._record(
            cell,
            setup,
            outcome,
            run=Run(id=run_id, started=started, seconds=0.0),
            parameters={},
            ready=None,
        )
        self._keep(cell, record, None)

    def _keep(self, cell: Cell, record: Record, resolution: Resolution | None) -> Record:
        if resolution is not None:
            self._store.add_lock(
                record.machine.name, record.stack.id, resolution.digest, resolution.lock
            )
        self._store.add(record)
        self._result.runs += 1
        self._progress.ran(cell, record)
        return record

    def _record(
        self,
        cell: Cell,
        setup: Setup,
        outcome: Outcome,
        *,
        run: Run,
        parameters: dict[str, Number | list[Number]],
        ready: _Ready | None,
    ) -> Record:
        stack = cell.stack
        gpu = self._plan.gpu
        torch = outcome.loaded.get("torch", Loaded())
        cuda = torch.notes.get("cuda")
        return Record(
            run=run,
            machine=Machine(
                name=self._plan.machine,
                gpu=gpu.name if gpu else None,
                sm=gpu.sm if gpu else None,
                driver=gpu.driver if gpu else None,
                cuda=gpu.cuda if gpu else None,
                torch_cuda=str(cuda) if cuda else None,
                python=setup.interpreter.version,
                cpu=processor(),
                kernel=platform.release(),
            ),
            stack=StackFacts(
                id=stack.id,
                requested=stack.requested,
                resolved=ready.environment.marker.installed if ready else {},
                loaded=outcome.loaded,
                source={
                    name: SourceFacts(revision=tree.revision, tree=tree.tree)
                    for name, tree in (ready.trees if ready else {}).items()
                },
                absent=ready.absent
                if ready
                else {name: reason for name, reason, _ in stack.absent},
                provided=sorted(stack.provided),
                contradicted=ready.environment.marker.contradicted if ready else [],
                lock=ready.resolution.digest if ready else None,
            ),
            probe=ProbeFacts(id=cell.probe.id, revision=cell.probe.revision, parameters=parameters),
            status=outcome.status,
            reason=None if outcome.status == "pass" else outcome.reason,
            detail=outcome.detail,
            measure=outcome.measure,
            parts=outcome.parts,
            control=outcome.control,
        )

    def _give_up(self, text: str) -> None:
        self._result.unfinished.append(text)
        self._progress.trouble(text)

    def _redact(self, text: str) -> str:
        return redact(text, self._plan.places)


_PATH = re.compile(r"(?<![\w:/.~>-])/(?:[\w.+@-]+/)+[\w.+@-]*")


def redact(text: str, places: dict[str, str]) -> str:
    """Take this machine's paths out of a text that becomes evidence."""
    for path, name in places.items():
        text = text.replace(path, name)
    return _PATH.sub("<path>", text)[:1000]


def _opens(record: Record) -> bool:
    """Whether a gate's run lets other probes run on the stack.

    A component that this machine can't provide closes nothing: what is there was proven, and each
    probe says for itself what it could not do.
    """
    if record.status == "pass":
        return True
    return record.status == "miss" and record.reason in record.stack.absent.values()
