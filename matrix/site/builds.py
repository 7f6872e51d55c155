"""What was really built and loaded of a stack, from its records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from matrix.components import Component
from matrix.keeping.records import Loaded, Record
from matrix.keeping.store import lock_name
from matrix.site.published import Build, BuildRow


def builds_of(
    records: Sequence[Record], parts: Sequence[str], components: Mapping[str, Component]
) -> list[Build]:
    """What was built, newest first: one entry for each machine, Python and lock."""
    groups: dict[tuple[str, str, str | None], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.machine.name, record.machine.python, record.stack.lock].append(record)
    return [_build(group, parts, components) for group in groups.values()]


def _build(
    records: Sequence[Record], parts: Sequence[str], components: Mapping[str, Component]
) -> Build:
    newest = records[0]
    machine = newest.machine
    return Build(
        machine=machine.name,
        gpu=machine.gpu,
        sm=machine.sm,
        driver=machine.driver,
        cuda=machine.cuda,
        # Not every probe asks torch for it.
        torch_cuda=next((r.machine.torch_cuda for r in records if r.machine.torch_cuda), None),
        python=machine.python,
        runs=len(records),
        newest=newest.run.started,
        packages=len(newest.stack.resolved),
        lock=(
            f"{machine.name}/{newest.stack.id}/{lock_name(newest.stack.lock)}"
            if newest.stack.lock
            else None
        ),
        rows=[_row(part, records, components.get(part)) for part in parts],
        patches=[patch.model_dump() for patch in newest.stack.patches],
    )


def _row(name: str, records: Sequence[Record], component: Component | None) -> BuildRow:
    newest = records[0].stack
    # Not every probe loads every component, so the newest process that did is asked.
    seen = [record.stack.loaded[name] for record in records if name in record.stack.loaded]
    loaded = seen[0] if seen else Loaded()
    known = {(loaded.version, loaded.sha256)}
    also = []
    for other in seen:
        # Probes may name different files of one component; only the same file can differ.
        comparable = (
            other.file == loaded.file
            or None in (other.file, loaded.file)
            or other.version != loaded.version
        )
        if comparable and (other.version, other.sha256) not in known:
            known.add((other.version, other.sha256))
            also.append(f"{other.version or 'no version'} ({(other.sha256 or 'no hash')[:12]})")
    source = newest.source.get(name)
    return BuildRow(
        component=name,
        requested=newest.requested[name],
        resolved=source.revision if source else _resolved(name, newest.resolved, component),
        tree=source.tree if source else None,
        loaded=loaded.version,
        origin=loaded.origin,
        file=loaded.file,
        sha256=loaded.sha256,
        also=also,
        notes=loaded.notes,
        absent=newest.absent.get(name),
    )


def _resolved(name: str, resolved: Mapping[str, str], component: Component | None) -> str | None:
    """A component's version in a lock; cuDNN's package carries the CUDA version in its name."""
    distribution = component.distribution if component is not None else None
    for key in (name, distribution or name):
        if key in resolved:
            return resolved[key]
    if component is not None and component.kind == "cudnn":
        found = [key for key in sorted(resolved) if re.fullmatch(r"nvidia-cudnn-cu\d+", key)]
        return resolved[found[0]] if found else None
    return None
