"""Findings: the cells of every stack together with the runs behind them.

What claims, comparisons and explanations read. Pure, like the verdicts that it is made from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matrix.components import NONE
from matrix.judging.cells import CellVerdict, judge_cell, put_to_stacks
from matrix.keeping.overwritten import left_to_chance
from matrix.keeping.records import Record
from matrix.probe_specs import ProbeSpec, gates_of
from matrix.stacks import Stack


@dataclass(frozen=True)
class StackFindings:
    """One stack, and what is known of it."""

    id: str
    requested: Mapping[str, str]
    """Components that the stack has, with their versions."""
    patches: tuple[tuple[str, str], ...]
    """(candidate, head) in order of application."""
    cells: Mapping[str, CellVerdict]
    """By probe, for probes of today that have runs."""
    records: Mapping[str, Record]
    """By run id."""

    def counted(self, probe: str) -> list[Record]:
        """The counted runs of a probe, newest first."""
        cell = self.cells.get(probe)
        return [] if cell is None else [self.records[r.id] for r in cell.runs if r.counted]

    def telling(self, probe: str) -> list[Record]:
        """Counted runs, and those that found the question not to apply, newest first."""
        cell = self.cells.get(probe)
        if cell is None:
            return []
        kept = [
            run
            for run in cell.runs
            if run.counted or (run.status == "skip" and run.revision == cell.revision)
        ]
        return [self.records[run.id] for run in kept]


def find(
    records: Iterable[Record],
    specs: Mapping[str, ProbeSpec],
    planned: Iterable[Stack] = (),
    judged: Mapping[str, Sequence[CellVerdict]] | None = None,
) -> dict[str, StackFindings]:
    """What is known of every stack, by its id.

    Args:
        records: the evidence.
        specs: the probes.
        planned: adds stacks without evidence.
        judged: the cells of each stack, where the same evidence was judged before.
    """
    asking = put_to_stacks(specs)
    by_stack: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_stack[record.stack.id].append(record)
    found = {
        stack.id: StackFindings(stack.id, present(stack.requested), stack.patches, {}, {})
        for stack in planned
    }
    for stack, own in by_stack.items():
        facts = own[0].stack
        found[stack] = StackFindings(
            id=stack,
            requested=present(facts.requested),
            patches=tuple((patch.id, patch.head) for patch in facts.patches),
            cells=(
                {cell.probe: cell for cell in judged[stack] if cell.runs and cell.probe in asking}
                if judged is not None
                else dict(_cells(stack, own, asking))
            ),
            records={record.run.id: record for record in own},
        )
    return dict(sorted(found.items()))


def present(requested: Mapping[str, str]) -> dict[str, str]:
    """The components that a stack has: `none` and no entry are the same."""
    return {name: version for name, version in requested.items() if version != NONE}


def _cells(
    stack: str, records: Sequence[Record], specs: Mapping[str, ProbeSpec]
) -> Iterator[tuple[str, CellVerdict]]:
    by_probe: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_probe[record.probe.id].append(record)
    chance = left_to_chance(records, gates_of(specs))
    for probe, spec in specs.items():
        if by_probe[probe]:
            yield probe, judge_cell(stack, probe, by_probe[probe], spec, chance)
