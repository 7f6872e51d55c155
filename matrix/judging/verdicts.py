"""Verdicts: what the evidence says about a stack. Derived, never stored as truth.

Nothing here reads or writes a file. What a cell says is in `matrix.cells`; the rest, in short:

- A stack is supported when every required probe passed, with every component present.
- A run that lacked a component counts for its cell, but it can't make the stack supported: the
  stack is a choice of every component.
- Broken names the first failing required probe; a failure seen on one machine only stays marked.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from matrix.components import NONE
from matrix.judging.cells import (
    CELL_MEANING,
    CONFLICTS,
    CellStatus,
    CellVerdict,
    RunLine,
    count_of,
    is_required,
    judge_cell,
    put_to_stacks,
)
from matrix.judging.strength import Strength
from matrix.keeping.overwritten import left_to_chance, overwrites_of
from matrix.keeping.records import Record
from matrix.models import Model
from matrix.probe_specs import ProbeSpec, gates_of

__all__ = [
    "CELL_MEANING",
    "VERDICT_MEANING",
    "CellStatus",
    "CellVerdict",
    "Note",
    "NoteKind",
    "RunLine",
    "StackVerdict",
    "Verdict",
    "is_required",
    "judge",
    "judge_cell",
    "judge_stack",
    "put_to_stacks",
]

Verdict = Literal["supported", "caveat", "broken", "cannot install", "unknown"]

VERDICT_MEANING: Final[dict[Verdict, str]] = {
    "supported": "every required probe passed and none failed",
    "caveat": "every required probe passed, but a run failed, or a probe that is not required does",
    "broken": "a required probe fails",
    "cannot install": "the versions can't be installed together, or a patch can't be applied",
    "unknown": "the evidence is not enough to say",
}

NoteKind = Literal["flaky", "informative", "contradicted", "overwritten", "older-probe"]


class Note(Model):
    """Something a reader of the verdict should know."""

    number: int
    """Counted from 1 within the stack."""
    kind: NoteKind
    text: str
    probes: list[str]
    """The cells it belongs to."""


class StackVerdict(Model):
    """What is known of one stack."""

    stack: str
    verdict: Verdict
    summary: str
    """One sentence."""
    probe: str | None
    """The first failing required probe of a broken stack."""
    reason: str | None
    missing: list[str]
    """What an unknown stack lacks, one line a probe."""
    notes: list[Note]
    strength: Strength | None
    """Of the required cell with the fewest counted runs, gates aside, when every one has some."""
    weakest: str | None
    """That cell's probe."""
    newest: dt.datetime | None
    """Start of the stack's newest run."""
    cells: list[CellVerdict]
    """In the order of the probes; probes that no longer exist come last."""

    def cell(self, probe: str) -> CellVerdict | None:
        """The cell of a probe."""
        return next((cell for cell in self.cells if cell.probe == probe), None)


def judge(
    records: Iterable[Record], specs: Mapping[str, ProbeSpec], planned: Iterable[str] = ()
) -> list[StackVerdict]:
    """The verdict of every stack that has evidence or is planned, by stack id.

    `specs` holds the probes in the order in which a stack is judged; `planned` holds the ids of
    stacks that a campaign names, so that one without evidence is shown as unknown.
    """
    by_stack: dict[str, list[Record]] = {stack: [] for stack in planned}
    for record in records:
        by_stack.setdefault(record.stack.id, []).append(record)
    return [judge_stack(stack, by_stack[stack], specs) for stack in sorted(by_stack)]


def judge_stack(
    stack: str, records: Sequence[Record], specs: Mapping[str, ProbeSpec]
) -> StackVerdict:
    """The verdict of one stack from all its records."""
    by_probe: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_probe[record.probe.id].append(record)
    retired = sorted(probe for probe in by_probe if probe not in specs)
    specs = put_to_stacks(specs)
    gates = gates_of(specs)
    chance = left_to_chance(records, gates)
    cells = [judge_cell(stack, probe, by_probe[probe], specs[probe], chance) for probe in specs]
    cells += [judge_cell(stack, probe, by_probe[probe], None, chance) for probe in retired]

    requested = records[0].stack.requested if records else None
    required = [
        cell for cell in cells if cell.required and _applies(specs.get(cell.probe), requested)
    ]
    notes = _notes([cell for cell in cells if cell.probe in specs], records, chance)
    missing = _missing(required)
    failing = next((cell for cell in required if cell.status == "fail"), None)
    conflict = next(
        (
            cell
            for cell in required
            if cell.probe in gates and cell.status == "fail" and cell.reason in CONFLICTS
        ),
        None,
    )
    # A gate is asked once for each build, which says nothing of intermittent faults.
    # Of equals the last is taken: probes that need a GPU come last, and faults hide there.
    weakest = (
        min(
            reversed([cell for cell in required if cell.probe not in gates] or required),
            key=lambda cell: cell.counted,
        )
        if required and all(cell.counted for cell in required)
        else None
    )

    verdict: Verdict
    if conflict is not None:
        verdict, failing = "cannot install", conflict
        patch = (conflict.reason or "").startswith("patch:")
        what = "A patch can't be applied" if patch else "The versions can't be installed together"
        summary = f"{what}{_only_on(conflict)}."
    elif failing is not None:
        verdict = "broken"
        summary = f"{failing.probe} fails: {failing.reason}, {_tally(failing)}{_only_on(failing)}."
        others = [c for c in required if c.status == "fail" and c.probe != failing.probe]
        if others:
            listed = ", ".join(f"{cell.probe} ({cell.reason})" for cell in others)
            summary += f" So do {listed}."
    elif missing:
        verdict = "unknown"
        summary = f"Not enough evidence. Missing: {'; '.join(missing)}."
    elif any(note.kind in ("flaky", "informative") for note in notes):
        verdict = "caveat"
        numbers = [str(note.number) for note in notes if note.kind in ("flaky", "informative")]
        summary = (
            "Every required probe passed at least once, but see "
            f"note{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}."
        )
    else:
        verdict = "supported"
        summary = "Every required probe passed and none failed."
    if weakest is not None and weakest.strength is not None and verdict in ("supported", "caveat"):
        summary += f" Fewest runs: {weakest.probe}, {weakest.strength.text}."
    return StackVerdict(
        stack=stack,
        verdict=verdict,
        summary=summary,
        probe=failing.probe if failing is not None else None,
        reason=failing.reason if failing is not None else None,
        missing=missing if verdict == "unknown" else [],
        notes=notes,
        strength=weakest.strength if weakest is not None else None,
        weakest=weakest.probe if weakest is not None else None,
        newest=max(records, key=lambda r: r.run.id).run.started if records else None,
        cells=cells,
    )


def _applies(spec: ProbeSpec | None, requested: Mapping[str, str] | None) -> bool:
    """Whether a stack has every component that a probe needs; one without is not asked for it."""
    if spec is None or requested is None:
        return True
    needs = [need for need in spec.needs if not need.startswith("gpu:")]
    return all(requested.get(need, NONE) != NONE for need in needs)


def _missing(required: Sequence[CellVerdict]) -> list[str]:
    if not required:
        return ["no probe is required, so nothing could be shown"]
    missing = []
    for cell in required:
        if not cell.counted:
            why = f", {cell.reason}" if cell.reason else ""
            missing.append(f"{cell.probe} ({cell.words}{why})")
        elif cell.lacked:
            missing.append(f"{cell.probe} (run only without {', '.join(cell.lacked)})")
    return missing


def _notes(
    cells: Sequence[CellVerdict], records: Sequence[Record], chance: Mapping[str, str]
) -> list[Note]:
    found: list[tuple[NoteKind, str, list[str]]] = []
    for cell in cells:
        if cell.status == "flaky":
            reasons = ", ".join(cell.reasons)
            text = f"{cell.probe}: {_tally(cell)} ({reasons}){_only_on(cell)}."
            found.append(("flaky", text, [cell.probe]))
        elif cell.status == "fail" and not cell.required:
            text = f"{cell.probe} is not required, but fails: {cell.reason}, {_tally(cell)}"
            found.append(("informative", f"{text}{_only_on(cell)}.", [cell.probe]))
    claims = {(c.claim, c.asked) for record in records for c in record.stack.contradicted}
    for claim, asked in sorted(claims):
        text = f"A published requirement is set aside: {claim}. This stack has {asked}."
        found.append(("contradicted", text, []))
    others = f"; {count_of(len(chance), 'run')} had something else" if chance else ""
    for wheels, paths in _shared_paths(records):
        text = (
            f"{' and '.join(wheels)} write {paths} of the same paths with different content, and "
            f"an installer may leave either. Runs count where {wheels[-1]} stands everywhere, as "
            "it does when it is installed last"
            f"{others}."
        )
        found.append(("overwritten", text, []))
    changed = [cell.probe for cell in cells if cell.counted and cell.probe_changed]
    if changed:
        text = f"Counted runs are from an earlier version of the probe: {', '.join(changed)}."
        found.append(("older-probe", text, changed))
    return [
        Note(number=number, kind=kind, text=text, probes=probes)
        for number, (kind, text, probes) in enumerate(found, start=1)
    ]


def _shared_paths(records: Sequence[Record]) -> list[tuple[tuple[str, ...], int]]:
    """Wheels that wrote over each other in any environment of a stack, and on how many paths."""
    paths = {each.wheels: each.paths for record in records for each in overwrites_of(record)}
    return sorted(paths.items())


def _tally(cell: CellVerdict) -> str:
    return f"{cell.failed} of {count_of(cell.counted, 'run')} failed"


def _only_on(cell: CellVerdict) -> str:
    return f", seen on one machine ({cell.failed_on[0]})" if cell.one_machine else ""
