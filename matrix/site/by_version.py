"""What stacks that share a version have in common: what breaks, and a probe's answers in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import HttpUrl

from matrix.components import NONE, SYSTEM, Component
from matrix.judging.chance import DOUBT, all_among
from matrix.site.derived import Break, Dot, DotColumn, DotStrip, VersionView
from matrix.site.published import CellView, StackView
from matrix.site.table import version_order
from matrix.versions import short_version


def version_of(stack: StackView, component: str) -> str:
    """The version that a stack asks for; `none` where it names none."""
    return next((c.version for c in stack.components if c.component == component), NONE)


def cell_of(stack: StackView, probe: str) -> CellView | None:
    """A stack's cell of a probe."""
    return next((cell for cell in stack.cells if cell.probe == probe), None)


def differing(one: StackView, other: StackView) -> list[str]:
    """Components in which two stacks differ, and `patches` where those differ."""
    names = dict.fromkeys(c.component for stack in (one, other) for c in stack.components)
    found = [name for name in names if version_of(one, name) != version_of(other, name)]
    if [p.id for p in one.patches] != [p.id for p in other.patches]:
        found.append("patches")
    return found


def _by_version(component: str, stacks: Sequence[StackView]) -> dict[str, list[StackView]]:
    found: dict[str, list[StackView]] = {}
    for stack in stacks:
        found.setdefault(version_of(stack, component), []).append(stack)
    return found


def versions_of(
    name: str, component: Component | None, stacks: Sequence[StackView]
) -> list[VersionView]:
    """Every version of a component that a stack has or the catalogue names, newest first."""
    listed = {v.version: v for v in component.versions} if component else {}
    by_version = _by_version(name, stacks)
    found = by_version.keys() | listed.keys()
    views = []
    for version in sorted(found - {NONE}, key=version_order, reverse=True):
        having = by_version.get(version, [])
        known = listed.get(version)
        views.append(
            VersionView(
                version=version,
                short=short_version(version),
                link=_revision_link(component, version),
                date=known.date if known else None,
                reason=known.reason if known else None,
                source=known.link if known else None,
                stacks=[stack.id for stack in having],
                breaks=breaks_of(having),
            )
        )
    return views


def _revision_link(component: Component | None, version: str) -> HttpUrl | None:
    if component is None or component.remote is None or not component.is_revision(version):
        return None
    return HttpUrl(f"{component.remote.removesuffix('.git')}/commit/{version}")


def breaks_of(stacks: Sequence[StackView]) -> list[Break]:
    """Probes that fail in some of these stacks; required ones first."""
    by_probe: dict[str, list[tuple[str, CellView]]] = {}
    for stack in stacks:
        # A stack has one cell of each probe.
        for cell in stack.cells:
            by_probe.setdefault(cell.probe, []).append((stack.id, cell))
    found = []
    for probe, cells in by_probe.items():
        failing = [(id_, cell) for id_, cell in cells if cell.status in ("fail", "flaky")]
        if failing:
            found.append(
                Break(
                    probe=probe,
                    required=failing[0][1].required,
                    failing=[id_ for id_, _ in failing],
                    passing=[id_ for id_, cell in cells if cell.status == "pass"],
                    reasons=sorted({reason for _, cell in failing for reason in cell.reasons}),
                )
            )
    return sorted(found, key=lambda one: not one.required)


def strips_of(
    probe: str, components: Mapping[str, Component], stacks: Sequence[StackView]
) -> list[DotStrip]:
    """A probe's answers over the versions of each component that has more than one."""
    asked = [stack for stack in stacks if stack.runs]
    dots = {
        stack.id: Dot(
            stack=stack.id,
            title=stack.title,
            status=cell.status,
            reason=cell.reason,
            failed=cell.failed,
            counted=cell.counted,
        )
        for stack in asked
        if (cell := cell_of(stack, probe))
    }
    strips = []
    for name in components:
        by_version = _by_version(name, asked)
        versions = sorted(by_version, key=version_order)
        if len([version for version in versions if version != SYSTEM]) < 2:
            continue
        columns = [
            DotColumn(
                version=version,
                short=short_version(version),
                dots=[dots[stack.id] for stack in by_version[version] if stack.id in dots],
            )
            for version in versions
        ]
        strips.append(DotStrip(component=name, columns=columns, turns=_turns(columns)))
    return strips


def _turns(columns: Sequence[DotColumn]) -> str | None:
    """Where failing ends for good: no stack before passes, and no stack from there on fails.

    Only releases have an order; git revisions and missing components tell no `since`. Where a
    failure comes and goes, so many runs have to pass from there on that chance does not explain it.
    """
    told: list[tuple[str, set[str]]] = []
    for column in columns:
        if version_order(column.version)[0] != 2:
            return None
        answers: set[str] = {
            "fail" if dot.status == "flaky" else dot.status
            for dot in column.dots
            if dot.status in ("pass", "flaky", "fail")
        }
        if answers:
            told.append((column.version, answers))
    if any(len(answers) > 1 for _, answers in told):
        return None
    states = [(version, answers == {"pass"}) for version, answers in told]
    first = next((at for at, (_, passes) in enumerate(states) if passes), None)
    if not first or not all(passes for _, passes in states[first:]):
        return None
    since = states[first][0]
    dots = [
        (dot, version_order(c.version) < version_order(since)) for c in columns for dot in c.dots
    ]
    if any(dot.status == "flaky" for dot, _ in dots):
        there = sum(dot.counted for dot, before in dots if before)
        elsewhere = sum(dot.counted for dot, before in dots if not before)
        if all_among(sum(dot.failed for dot, _ in dots), there, elsewhere) > DOUBT:
            return None
    return since
