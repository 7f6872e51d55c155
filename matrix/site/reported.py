"""Answers to a report's questions, from the evidence of its stack alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import Field, HttpUrl, ValidationError

from matrix.components import NONE
from matrix.errors import DataError
from matrix.judging.strength import bounds
from matrix.judging.verdicts import Verdict
from matrix.models import Model, Slug, explain, read_toml
from matrix.rooms import Rooms
from matrix.site.by_version import cell_of, differing, version_of
from matrix.site.derived import DotStrip, Mended, Reported, Symptom
from matrix.site.published import CellView, StackView

_BEST_FIRST: Final[tuple[Verdict, ...]] = (
    "supported",
    "caveat",
    "unknown",
    "broken",
    "cannot install",
)


class SymptomEntry(Model):
    """An error that a report saw."""

    reason: str
    where: str
    """In which computation, in our words."""
    probes: list[Slug]
    """Probes that ask for it."""


class ReportEntry(Model):
    """A report of a failure."""

    id: Slug
    title: str
    """In our words."""
    link: HttpUrl
    date: dt.date
    """When it was made."""
    reason: str
    stack: Slug
    """What campaigns call the stack that stands for it."""
    candidates: list[Slug] = Field(default_factory=list)
    components: dict[str, str]
    """What the report ran; the tested stack may have others, where a machine provides them."""
    symptoms: Annotated[list[SymptomEntry], Field(alias="symptom")] = Field(default_factory=list)


class _File(Model):
    report: list[ReportEntry] = Field(default_factory=list)


def load_reports(rooms: Rooms) -> list[ReportEntry]:
    """Every report of the catalogue; none where the file is missing.

    Raises:
        DataError: the file does not fit.
    """
    path = rooms.catalogue / "reports.toml"
    if not path.exists():
        return []
    shown = rooms.shown(path)
    try:
        return _File.model_validate(read_toml(path, shown)).report
    except ValidationError as error:
        raise DataError(f"{shown} does not fit a report's form:\n{explain(error)}") from None


def reported_of(
    reports: Sequence[ReportEntry],
    stacks: Sequence[StackView],
    strips: Mapping[str, Sequence[DotStrip]],
) -> list[Reported]:
    """The answers for every stack that has evidence and stands for a report.

    Args:
        reports: from the catalogue.
        stacks: all of them.
        strips: for each probe, its answers over the versions of components.
    """
    return [
        _answers(report, stack, stacks, strips)
        for report in reports
        for stack in stacks
        if stack.runs
        and not stack.patches
        and any(name.name == report.stack for name in stack.names)
    ]


def _answers(
    report: ReportEntry,
    stack: StackView,
    stacks: Sequence[StackView],
    strips: Mapping[str, Sequence[DotStrip]],
) -> Reported:
    better = [
        other
        for other in stacks
        if other.runs
        and _BEST_FIRST.index(other.verdict) < _BEST_FIRST.index(stack.verdict)
        and other.verdict in ("supported", "caveat")
    ]
    best = min(
        better,
        key=lambda o: (
            _BEST_FIRST.index(o.verdict),
            len(differing(stack, o)),
            -_fewest_runs(o),
            o.id,
        ),
        default=None,
    )
    return Reported(
        id=report.id,
        title=report.title,
        link=report.link,
        stack=stack.id,
        verdict=stack.verdict,
        differs={
            name: [version, has]
            for name, version in report.components.items()
            if (has := version_of(stack, name)) != version
        },
        symptoms=[_symptom(symptom, stack, stacks) for symptom in report.symptoms],
        fails=[
            _mended(cell, stack, stacks, strips.get(cell.probe, ()))
            for cell in sorted(stack.cells, key=lambda c: not c.required)
            if cell.status in ("fail", "flaky") and cell.probe in strips
        ],
        better=best.id if best else None,
        better_differs=differing(stack, best) if best else [],
        candidates=list(report.candidates),
        record=_record(report, stack),
    )


def _fewest_runs(stack: StackView) -> int:
    """How often the required probe was run that was run least."""
    return min((cell.counted for cell in stack.cells if cell.required), default=0)


def _symptom(symptom: SymptomEntry, stack: StackView, stacks: Sequence[StackView]) -> Symptom:
    cells = [cell for probe in symptom.probes if (cell := cell_of(stack, probe)) is not None]
    runs = sum(cell.counted for cell in cells)
    seen = [cell.probe for cell in stack.cells if symptom.reason in cell.reasons]
    return Symptom(
        reason=symptom.reason,
        where=symptom.where,
        runs=runs,
        seen_here=seen,
        seen_elsewhere=[
            other.id
            for other in stacks
            if other.id != stack.id and any(symptom.reason in cell.reasons for cell in other.cells)
        ],
        upper=bounds(runs, 0)[1] if runs and not seen else None,
    )


def _mended(
    cell: CellView, stack: StackView, stacks: Sequence[StackView], strips: Sequence[DotStrip]
) -> Mended:
    passing = [
        (other, answer.counted)
        for other in stacks
        if (answer := cell_of(other, cell.probe)) is not None and answer.status == "pass"
    ]

    def worse(candidate: tuple[StackView, int]) -> tuple[int, int, int, str]:
        other, runs = candidate
        verdict = _BEST_FIRST.index(other.verdict)
        return len(differing(stack, other)), verdict, -runs, other.id

    nearest, runs = min(passing, key=worse, default=(None, 0))
    return Mended(
        probe=cell.probe,
        required=cell.required,
        reason=cell.reason,
        failed=cell.failed,
        counted=cell.counted,
        since={strip.component: strip.turns for strip in strips if strip.turns},
        nearest=nearest.id if nearest else None,
        differs=differing(stack, nearest) if nearest else [],
        passed=runs,
    )


def _record(report: ReportEntry, stack: StackView) -> list[str]:
    """What evidence of this stack holds beyond the versions that the report names."""
    found = []
    rows = [row for build in stack.builds[:1] for row in build.rows]
    hashed = [row.component for row in rows if row.sha256]
    trees = [row.component for row in rows if row.tree]
    noted = sorted({name for row in rows for name in row.notes})
    if hashed:
        found.append(
            f"the file that was loaded of each component, with its hash: {', '.join(hashed)}"
        )
    if trees:
        found.append(f"the git tree that ran: {', '.join(trees)}")
    if noted:
        found.append(f"what the loaded libraries say of themselves: {', '.join(noted)}")
    unnamed = [
        choice.component
        for choice in stack.components
        if choice.component not in report.components and choice.version != NONE
    ]
    if unnamed:
        found.append(f"components that the report does not name: {', '.join(unnamed)}")
    inputs = sorted(
        {
            name
            for cell in stack.cells
            if cell.status in ("fail", "flaky")
            for example in cell.examples
            for name in example.parameters
        }
    )
    if inputs:
        found.append(f"the inputs under which its failing probes fail: {', '.join(inputs)}")
    measured = sorted(
        {
            name
            for symptom in report.symptoms
            for cell in stack.cells
            if cell.probe in symptom.probes
            for example in cell.examples
            for name in example.measure
        }
    )
    if measured:
        found.append(f"what the probes near the reported calls measure: {', '.join(measured)}")
    return found
