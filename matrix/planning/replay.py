"""Run exactly one recorded run again: same stack, same lock, same inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from matrix.building.here import Here
from matrix.building.machine import alike
from matrix.building.resolution import Resolution, read_lock
from matrix.components import Component
from matrix.errors import DataError, MatrixError
from matrix.keeping.records import Number, Record
from matrix.planning.campaigns import Campaign, StackEntry
from matrix.planning.plan import Cell, Plan, blocked
from matrix.probe_specs import ProbeSpec


def plan_replay(
    record: Record,
    file: Path,
    lock: Path | None,
    *,
    here: Here,
    components: dict[str, Component],
    probes: dict[str, ProbeSpec],
    machine: str,
    patches: tuple[str, ...] = (),
) -> Plan:
    """A plan of one cell with the recorded inputs, built from the recorded lock.

    Args:
        record: the run to repeat.
        file: its evidence file.
        lock: the lock it names.
        here: this machine.
        components: the catalogue.
        probes: the probes that exist.
        machine: this machine's name.
        patches: patch files that the record names.

    Raises:
        DataError: the probe is gone, or a patch.
        MatrixError: this machine can't provide the recorded stack.
    """
    spec = probes.get(record.probe.id)
    if spec is None:
        raise DataError(f"{file.name}: there is no probe {record.probe.id!r} any more.")
    if not record.probe.parameters:
        raise DataError(f"{file.name}: no process was started in this run; nothing to repeat.")
    heads = [(patch.id, patch.head) for patch in record.stack.patches]
    pins = here.patching.recorded(heads, patches)
    stack, setup = here.stack(record.stack.requested, "replay", pins)
    lacking = {name: (reason, why) for name, reason, why in stack.absent}
    problem = blocked(stack, spec, setup, here.gpus, lacking)
    if problem is not None or setup is None:
        raise MatrixError(f"{file.name} can't be repeated here: {problem[1] if problem else ''}")
    if stack.id != record.stack.id:
        differing = ", ".join(
            f"{name} {stack.requested.get(name)} instead of {version}"
            for name, version in record.stack.requested.items()
            if stack.requested.get(name) != version
        )
        raise MatrixError(f"{file.name} can't be repeated here: this machine has {differing}.")
    if lock is not None:
        setup = replace(setup, resolution=_recorded_lock(record, lock, components))
    cell = Cell(stack, spec, "run", parameters=record.probe.parameters)
    return Plan(
        campaign=Campaign(
            name="replay",
            reason=f"run {record.run.id} once more",
            probes=[spec.id],
            stacks=[
                StackEntry(name="replay", reason="recorded", components=record.stack.requested)
            ],
        ),
        machine=machine,
        gpu=here.gpu,
        gpus=alike(here.gpus),
        cells=(cell,),
        setups={stack.id: setup},
        sources=here.sources,
        newest={},
        places=here.places(),
        setting=str(record.probe.parameters.get("setting", "quick")),
    )


def _recorded_lock(record: Record, lock: Path, components: dict[str, Component]) -> Resolution:
    text = lock.read_text(encoding="utf-8")
    left_out = tuple(
        name
        for name, component in components.items()
        if component.extra
        and any(
            contradiction.claim.startswith(f"{component.distribution}[{component.extra}]")
            for contradiction in record.stack.contradicted
        )
    )
    return Resolution(text, read_lock(text), left_out)


@dataclass(frozen=True)
class Difference:
    """Something that came out otherwise than recorded."""

    what: str
    before: Number
    after: Number


def differences(before: Record, after: Record) -> list[Difference]:
    """Software first, then what was found: status, reason, and every measure that differs.

    Durations (seconds, `_s`) are left out: no two runs take the same time.
    """
    found = [
        Difference(f"loaded {name}", _version(before, name), _version(after, name))
        for name in sorted({*before.stack.loaded, *after.stack.loaded})
        if before.stack.loaded.get(name) != after.stack.loaded.get(name)
    ]
    if before.probe.revision != after.probe.revision:
        found.append(Difference("the probe itself", before.probe.revision, after.probe.revision))
    found += [
        Difference(name, getattr(before, name), getattr(after, name))
        for name in ("status", "reason")
        if getattr(before, name) != getattr(after, name)
    ]
    parts = {part.name: part for part in before.parts}
    for part in after.parts:
        old = parts.get(part.name)
        if old is None or (old.status, old.reason) != (part.status, part.reason):
            found.append(
                Difference(part.name, old.status if old else None, part.reason or part.status)
            )
            continue
        found += [
            Difference(f"{part.name}: {name}", old.measure.get(name), value)
            for name, value in part.measure.items()
            if not name.endswith("_s") and old.measure.get(name) != value
        ]
    return found


def _version(record: Record, name: str) -> str | None:
    loaded = record.stack.loaded.get(name)
    return f"{loaded.version} ({(loaded.sha256 or '')[:12]})" if loaded else None
