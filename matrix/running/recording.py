"""Making the record of a run."""

from __future__ import annotations

import platform
from typing import Any

from matrix.building.here import Setup
from matrix.building.machine import processor
from matrix.building.preparing import NOT_TRIED, Ready
from matrix.keeping.records import Loaded, Machine, Patch, ProbeFacts, Record, Run, StackFacts
from matrix.keeping.records import Source as SourceFacts
from matrix.planning.plan import Cell, Plan
from matrix.running import nodes
from matrix.running.asking import Parameters
from matrix.running.outcomes import Outcome


def make_record(
    plan: Plan,
    cell: Cell,
    setup: Setup,
    outcome: Outcome,
    *,
    run: Run,
    parameters: Parameters,
    ready: Ready | None,
    patches: tuple[tuple[str, str, str], ...] = (),
) -> Record:
    """The record of one run.

    Args:
        plan: names the machine.
        cell: the stack and the probe.
        setup: how the stack's environment is made here.
        outcome: what the run showed.
        run: when it ran.
        parameters: what the probe was asked with.
        ready: the prepared stack; None when it could not be prepared.
        patches: what came of each patch, where there is no prepared stack to tell.
    """
    return Record(
        run=run,
        machine=_machine(plan, cell, setup, outcome),
        stack=_stack(cell, outcome, ready, patches),
        probe=ProbeFacts(id=cell.probe.id, revision=cell.probe.revision, parameters=parameters),
        status=outcome.status,
        reason=None if outcome.status == "pass" else outcome.reason,
        detail=outcome.detail,
        measure=outcome.measure,
        parts=outcome.parts,
        control=outcome.control,
    )


def _machine(plan: Plan, cell: Cell, setup: Setup, outcome: Outcome) -> Machine:
    gpu = plan.gpu
    cuda = outcome.loaded.get("torch", Loaded()).notes.get("cuda")
    return Machine(
        name=plan.machine,
        gpu=gpu.name if gpu else None,
        sm=gpu.sm if gpu else None,
        driver=gpu.driver if gpu else None,
        cuda=gpu.cuda if gpu else None,
        torch_cuda=str(cuda) if cuda else None,
        python=setup.interpreter.version,
        cpu=processor(),
        kernel=platform.release(),
        platform=setup.interpreter.platform,
        network=nodes.reach(cell.probe),
    )


def _stack(
    cell: Cell,
    outcome: Outcome,
    ready: Ready | None,
    patches: tuple[tuple[str, str, str], ...],
) -> StackFacts:
    stack = cell.stack
    tried = patches if ready is None else ready.patches
    results = {(name, head): result for name, head, result in tried}
    common: dict[str, Any] = {
        "id": stack.id,
        "requested": stack.requested,
        "loaded": outcome.loaded,
        "provided": sorted(stack.provided),
        "patches": [
            Patch(id=name, head=head, result=results.get((name, head), NOT_TRIED))
            for name, head in stack.patches
        ],
    }
    if ready is None:
        absent = {name: reason for name, reason, _ in stack.absent}
        return StackFacts(**common, resolved={}, absent=absent)
    return StackFacts(
        **common,
        resolved=ready.environment.marker.installed,
        absent=ready.absent,
        source={
            name: SourceFacts(revision=tree.revision, tree=tree.tree)
            for name, tree in ready.trees.items()
        },
        contradicted=ready.environment.marker.contradicted,
        lock=ready.resolution.digest,
    )
