"""Verdicts: what the evidence says about a cell and about a stack. Derived, never stored as truth.

Nothing here reads or writes a file. The rules, in short:

- Only `pass` and `fail` say something of the software; every other status is shown as itself.
- A cell counts the runs of one revision of its probe; runs of other revisions are listed only.
- A probe that needs a GPU is judged on that architecture alone.
- A run that lacked a component which the probe needs is not counted. One that lacked another
  component is, but it can't make the stack supported: the stack is a choice of every component.
- Both outcomes in one cell are `flaky`, with the numbers; there is no majority.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from matrix.components import NONE
from matrix.models import Model
from matrix.probe_specs import ProbeSpec
from matrix.reasons import Status
from matrix.records import Record
from matrix.strength import Strength, strength

Verdict = Literal["supported", "caveat", "broken", "cannot install", "unknown"]

#: What a cell shows. `not run` stands for a cell without any run that says something.
CellStatus = Literal["pass", "flaky", "fail", "error", "void", "skip", "miss", "not run"]

VERDICT_MEANING: Final[dict[Verdict, str]] = {
    "supported": "every required probe passed and none failed",
    "caveat": "every required probe passed, but a run failed, or a probe that is not required does",
    "broken": "a required probe fails",
    "cannot install": "the versions can't be installed together, or a patch can't be applied",
    "unknown": "the evidence is not enough to say",
}

CELL_MEANING: Final[dict[CellStatus, str]] = {
    "pass": "every counted run passed",
    "flaky": "some counted runs passed and some failed",
    "fail": "every counted run failed: the tested software is at fault",
    "error": "our probe is at fault; nothing is known of the software",
    "void": "the loaded software was not the requested software; nothing is known of it",
    "skip": "the question does not apply to this stack",
    "miss": "not run: the machine, the network or the harness could not do it",
    "not run": "no run says anything yet",
}

#: When nothing counts, the cell shows the first of these. A run elsewhere that could not be made
#: (`miss`) says less than one that found the question not to apply (`skip`).
_UNCOUNTED: Final[tuple[CellStatus, ...]] = ("error", "void", "skip", "miss")

#: A stack that can't be put together, whatever the machine.
_CONFLICTS: Final = frozenset({"resolve:conflict", "patch:conflict", "patch:unsafe"})


class RunLine(Model):
    """One run of a cell, and whether it counts."""

    id: str
    started: dt.datetime
    seconds: float
    machine: str
    sm: str | None
    revision: str
    """Revision of the probe."""
    status: Status
    reason: str | None
    detail: str | None
    parts_passed: int
    parts_count: int
    """Checks within the run; some can have passed where the run as a whole could not be made."""
    counted: bool
    why_not: str | None
    """Why it does not count, when it does not."""
    file: str
    """The record, below the evidence folder."""


class CellVerdict(Model):
    """What is known of one probe on one stack."""

    stack: str
    probe: str
    required: bool
    status: CellStatus
    words: str
    """The status with its numbers, as a table shows it."""
    reason: str | None
    """Of the newest counted failure; without one, of the newest run that has the shown status."""
    detail: str | None
    counted: int
    """Runs that say something of the software."""
    failed: int
    """How many of them failed."""
    reasons: dict[str, int]
    """Reasons of the counted failures, with how often each was given."""
    lacked: list[str]
    """Components that none of the counted runs had."""
    machines: list[str]
    """Machines of the counted runs."""
    failed_on: list[str]
    """Machines of the counted failures."""
    one_machine: bool
    """Whether there are counted failures and all are from one machine."""
    uncounted: dict[str, int]
    """Runs that are not counted, by status."""
    revision: str | None
    """Revision of the probe whose runs are counted."""
    probe_changed: bool
    """Whether the probe has changed since the counted runs."""
    newest: dt.datetime | None
    """Start of the newest counted run."""
    strength: Strength | None
    runs: list[RunLine]
    """Newest first."""


NoteKind = Literal["flaky", "informative", "contradicted", "older-probe"]


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


def is_required(spec: ProbeSpec) -> bool:
    """Whether a stack must pass this probe to be supported."""
    return spec.required or spec.group == "gate"


def put_to_stacks(specs: Mapping[str, ProbeSpec]) -> dict[str, ProbeSpec]:
    """The probes that judge a stack: a health probe is put to a machine instead."""
    return {probe: spec for probe, spec in specs.items() if spec.group != "health"}


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
    cells = [judge_cell(stack, probe, by_probe[probe], specs[probe]) for probe in specs]
    cells += [judge_cell(stack, probe, by_probe[probe], None) for probe in retired]

    requested = records[0].stack.requested if records else None
    required = [
        cell for cell in cells if cell.required and _applies(specs.get(cell.probe), requested)
    ]
    notes = _notes([cell for cell in cells if cell.probe in specs], records)
    missing = _missing(required)
    failing = next((cell for cell in required if cell.status == "fail"), None)
    gates = {probe for probe, spec in specs.items() if spec.group == "gate"}
    conflict = next(
        (
            cell
            for cell in required
            if cell.probe in gates and cell.status == "fail" and cell.reason in _CONFLICTS
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


def judge_cell(
    stack: str, probe: str, records: Sequence[Record], spec: ProbeSpec | None
) -> CellVerdict:
    """The verdict of one cell; `spec` is None for a probe that no longer exists."""
    ordered = sorted(records, key=lambda r: r.run.id, reverse=True)
    # Not simply the newest run: a machine without the GPU would then hide what another one showed.
    # And the probe as it is now before any other: an older checkout may have run it last.
    telling = [r for r in ordered if _why_not(r, spec) is None]
    current = [r for r in telling if spec is not None and r.probe.revision == spec.revision]
    chosen = next(iter(current or telling or ordered), None)
    revision = chosen.probe.revision if chosen is not None else None
    runs = [_line(record, spec, revision) for record in ordered]
    counted = [run for run in runs if run.counted]
    failures = [run for run in counted if run.status == "fail"]
    failed_on = sorted({run.machine for run in failures})

    status: CellStatus
    if not counted:
        present = {run.status for run in runs if run.revision == revision}
        status = next((shown for shown in _UNCOUNTED if shown in present), "not run")
    elif not failures:
        status = "pass"
    else:
        status = "fail" if len(failures) == len(counted) else "flaky"
    example = failures[0] if failures else next((r for r in runs if r.status == status), None)
    explained = example if status != "pass" else None
    return CellVerdict(
        stack=stack,
        probe=probe,
        required=spec is not None and is_required(spec),
        status=status,
        words=_cell_words(status, len(counted), len(failures), example),
        reason=explained.reason if explained is not None else None,
        detail=explained.detail if explained is not None else _first_why_not(status, runs),
        counted=len(counted),
        failed=len(failures),
        reasons=dict(sorted(Counter(run.reason for run in failures if run.reason).items())),
        lacked=_lacked([record for record, run in zip(ordered, runs, strict=True) if run.counted]),
        machines=sorted({run.machine for run in counted}),
        failed_on=failed_on,
        one_machine=len(failed_on) == 1,
        uncounted=dict(sorted(Counter(run.status for run in runs if not run.counted).items())),
        revision=revision,
        probe_changed=spec is not None and bool(runs) and revision != spec.revision,
        newest=counted[0].started if counted else None,
        strength=strength(len(counted), len(failures)),
        runs=runs,
    )


def _line(record: Record, spec: ProbeSpec | None, revision: str | None) -> RunLine:
    why_not = _why_not(record, spec)
    if why_not is None and record.probe.revision != revision:
        why_not = "made with another version of the probe"
    return RunLine(
        id=record.run.id,
        started=record.run.started,
        seconds=record.run.seconds,
        machine=record.machine.name,
        sm=record.machine.sm,
        revision=record.probe.revision,
        status=record.status,
        reason=record.reason,
        detail=record.detail,
        parts_passed=sum(part.status == "pass" for part in record.parts),
        parts_count=len(record.parts),
        counted=why_not is None,
        why_not=why_not,
        file=f"{record.machine.name}/{record.stack.id}/{record.probe.id}--{record.run.id}.json",
    )


def _why_not(record: Record, spec: ProbeSpec | None) -> str | None:
    """Why a run says nothing of the software of its stack, or None when it does."""
    if record.status not in ("pass", "fail"):
        return f"a {record.status} says nothing of the software"
    reason = record.reason or ""
    if record.probe.parameters.get("sanitize") and not reason.startswith("sanitizer:"):
        return "under a sanitizer only what it finds counts"
    # Versions that conflict on a machine that lacks something conflict with it too.
    if spec is None or record.reason in _CONFLICTS:
        return None
    lacking = [name for name in sorted(record.stack.absent) if name in spec.needs]
    if lacking:
        return f"the machine could not provide {', '.join(lacking)}"
    if spec.gpu is not None and record.machine.sm != spec.gpu:
        return f"the probe needs {spec.gpu}; this machine has {record.machine.sm or 'no GPU'}"
    return None


def _lacked(counted: Sequence[Record]) -> list[str]:
    if not counted:
        return []
    return sorted(set.intersection(*(set(record.stack.absent) for record in counted)))


def _first_why_not(status: CellStatus, runs: Sequence[RunLine]) -> str | None:
    """What a cell that shows `not run` says of the runs it has all the same."""
    if status != "not run" or not runs:
        return None
    return f"{_count(len(runs), 'run')} not counted: {runs[0].why_not}"


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


def _notes(cells: Sequence[CellVerdict], records: Sequence[Record]) -> list[Note]:
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
    changed = [cell.probe for cell in cells if cell.counted and cell.probe_changed]
    if changed:
        text = f"Counted runs are from an earlier version of the probe: {', '.join(changed)}."
        found.append(("older-probe", text, changed))
    return [
        Note(number=number, kind=kind, text=text, probes=probes)
        for number, (kind, text, probes) in enumerate(found, start=1)
    ]


def _cell_words(status: CellStatus, counted: int, failed: int, example: RunLine | None) -> str:
    match status:
        case "pass" | "fail" | "flaky":
            word = "pass" if status == "pass" else "fail" if status == "fail" else "flaky"
            return f"{word}, {failed} of {counted} failed"
        case "miss" if example is not None and example.parts_passed:
            return f"partly run, {example.parts_passed} of {example.parts_count} parts passed"
        case "miss":
            return "not run"
        case "skip":
            return "does not apply"
        case _:
            return status


def _tally(cell: CellVerdict) -> str:
    return f"{cell.failed} of {_count(cell.counted, 'run')} failed"


def _only_on(cell: CellVerdict) -> str:
    return f", seen on one machine ({cell.failed_on[0]})" if cell.one_machine else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
