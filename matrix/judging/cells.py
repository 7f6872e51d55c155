"""Cells: what the runs of one probe on one stack say. Derived, never stored as truth.

Nothing here reads or writes a file. Which runs count, in short:

- Only `pass` and `fail` say something of the software; every other status is shown as itself.
- A run in which a deliberately wrong answer went unnoticed does not count, whatever it says.
- A cell counts the runs of one revision of its probe; runs of other revisions are listed only.
- A probe that needs a GPU is judged on that architecture alone.
- A run that lacked a component which the probe needs is not counted.
- A run in an environment where chance decided which wheel's files stand is not counted: another
  environment of the same lock has other files (see `matrix.keeping.overwritten`).
- Both outcomes in one cell are `flaky`, with the numbers; there is no majority.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from matrix.judging.strength import Strength, strength
from matrix.keeping.reasons import Status
from matrix.keeping.records import Record
from matrix.models import Model
from matrix.probe_specs import ProbeSpec

#: What a cell shows. `not run` stands for a cell without any run that says something.
CellStatus = Literal["pass", "flaky", "fail", "error", "void", "skip", "miss", "not run"]

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
CONFLICTS: Final = frozenset({"resolve:conflict", "patch:conflict", "patch:unsafe"})


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


def is_required(spec: ProbeSpec) -> bool:
    """Whether a stack must pass this probe to be supported."""
    return spec.required or spec.group == "gate"


def put_to_stacks(specs: Mapping[str, ProbeSpec]) -> dict[str, ProbeSpec]:
    """The probes that judge a stack: a health probe is put to a machine instead."""
    return {probe: spec for probe, spec in specs.items() if spec.group != "health"}


def judge_cell(
    stack: str,
    probe: str,
    records: Sequence[Record],
    spec: ProbeSpec | None,
    by_chance: Mapping[str, str],
) -> CellVerdict:
    """The verdict of one cell.

    Args:
        stack: its id.
        probe: its id.
        records: all of the cell.
        spec: of the probe; None for one that no longer exists.
        by_chance: by run id, what stood in an environment that was left to chance.
    """
    ordered = sorted(records, key=lambda r: r.run.id, reverse=True)
    # Not simply the newest run: a machine without the GPU would then hide what another one showed.
    # And the probe as it is now before any other: an older checkout may have run it last.
    telling = [r for r in ordered if _why_not(r, spec, by_chance) is None]
    current = [r for r in telling if spec is not None and r.probe.revision == spec.revision]
    chosen = next(iter(current or telling or ordered), None)
    revision = chosen.probe.revision if chosen is not None else None
    runs = [_line(record, spec, revision, by_chance) for record in ordered]
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
        words=_cell_words(status, runs, len(counted), len(failures), example),
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


def _line(
    record: Record, spec: ProbeSpec | None, revision: str | None, by_chance: Mapping[str, str]
) -> RunLine:
    why_not = _why_not(record, spec, by_chance)
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


def _why_not(record: Record, spec: ProbeSpec | None, by_chance: Mapping[str, str]) -> str | None:
    """Why a run says nothing of the software of its stack, or None when it does."""
    if record.status not in ("pass", "fail"):
        return f"a {record.status} says nothing of the software"
    unnoticed = [control.name for control in record.control if not control.failed]
    if unnoticed:
        # A check that misses a wrong answer may as well have made this one up.
        return f"a wrong answer went unnoticed: {', '.join(unnoticed)}"
    reason = record.reason or ""
    if record.probe.parameters.get("sanitize") and not reason.startswith("sanitizer:"):
        return "under a sanitizer only what it finds counts"
    if record.run.id in by_chance:
        return f"its environment was left to chance: {by_chance[record.run.id]}"
    # Versions that conflict on a machine that lacks something conflict with it too.
    if spec is None or record.reason in CONFLICTS:
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
    return runs[0].why_not


def _cell_words(
    status: CellStatus,
    runs: Sequence[RunLine],
    counted: int,
    failed: int,
    example: RunLine | None,
) -> str:
    match status:
        case "pass" | "fail" | "flaky":
            word = "pass" if status == "pass" else "fail" if status == "fail" else "flaky"
            return f"{word}, {failed} of {counted} failed"
        case "miss" if example is not None and example.parts_passed:
            return f"partly run, {example.parts_passed} of {example.parts_count} parts passed"
        case "miss":
            return "not run"
        case "not run" if runs:
            return f"{count_of(len(runs), 'run')} not counted"
        case "skip":
            return "does not apply"
        case _:
            return status


def count_of(number: int, noun: str) -> str:
    """A count with its noun, in the plural where it is one: `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
