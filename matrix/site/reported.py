"""Answers to a report's questions, from the evidence of its stack alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, HttpUrl, ValidationError

from matrix.components import NONE, Component
from matrix.errors import DataError
from matrix.judging.chance import may_be_chance
from matrix.judging.explanations import PATCH
from matrix.judging.neighbours import RANK, Neighbour, nearest_of
from matrix.judging.strength import bounds
from matrix.models import Model, Slug, explain, read_toml
from matrix.rooms import Rooms
from matrix.site.by_version import cell_of, differing, version_of
from matrix.site.derived import DotStrip, Mended, Reported, Symptom
from matrix.site.published import CellView, StackView


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
    components: Mapping[str, Component],
) -> list[Reported]:
    """The answers for every stack that has evidence and stands for a report.

    Args:
        reports: from the catalogue.
        stacks: all of them.
        strips: for each probe, its answers over the versions of components.
        components: the catalogue.
    """
    return [
        _answers(report, stack, stacks, strips, components)
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
    components: Mapping[str, Component],
) -> Reported:
    by_id = {other.id: other for other in stacks}
    better = [
        Neighbour(other.id, _point(other), other.verdict, _fewest_runs(other))
        for other in stacks
        if other.runs
        and RANK[other.verdict] < RANK[stack.verdict]
        and other.verdict in ("supported", "caveat")
    ]
    nearest = nearest_of(_point(stack), better, components, verdict_first=True)
    best = by_id[nearest.stack] if nearest else None
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
            _mended(cell, stack, by_id, strips.get(cell.probe, ()), components)
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


def _point(stack: StackView) -> dict[str, str]:
    patches = {f"{PATCH}{patch.id}": patch.head for patch in stack.patches}
    return {choice.component: choice.version for choice in stack.components} | patches


def _mended(
    cell: CellView,
    stack: StackView,
    stacks: Mapping[str, StackView],
    strips: Sequence[DotStrip],
    components: Mapping[str, Component],
) -> Mended:
    passing = [
        Neighbour(other.id, _point(other), other.verdict, answer.counted)
        for other in stacks.values()
        if (answer := cell_of(other, cell.probe)) is not None
        and answer.status == "pass"
        and not may_be_chance(cell.failed, cell.counted, answer.counted)
    ]
    nearest = nearest_of(_point(stack), passing, components)
    return Mended(
        probe=cell.probe,
        required=cell.required,
        reason=cell.reason,
        failed=cell.failed,
        counted=cell.counted,
        since={strip.component: strip.turns for strip in strips if strip.turns},
        nearest=nearest.stack if nearest else None,
        differs=differing(stack, stacks[nearest.stack]) if nearest else [],
        passed=nearest.runs if nearest else 0,
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
