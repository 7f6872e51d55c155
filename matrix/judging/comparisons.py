"""With and without: what one changed component, or one patch, changes for each probe. Pure.

Two stacks are compared when they differ in exactly one thing. The question for each probe has seven
answers and no other: whatever two cells look like, one of them fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal, assert_never

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from matrix.components import NONE, Component
from matrix.judging.cells import CellStatus, CellVerdict, count_of
from matrix.judging.findings import StackFindings
from matrix.judging.noise import Difference, Noise, comparable, differences
from matrix.judging.told import Endings, Side, Telling, Told
from matrix.keeping.reasons import Status
from matrix.keeping.records import Record

Change = Literal[
    "fixed", "broken", "same (pass)", "same (fail)", "changed reason", "flaky", "unknown"
]

CHANGE_MEANING: Final[dict[Change, str]] = {
    "fixed": "it failed before and passes after",
    "broken": "it passed before and fails after",
    "same (pass)": "it passes on both sides",
    "same (fail)": "it fails on both sides, for the same reasons",
    "changed reason": "it fails on both sides, for other reasons",
    "flaky": "runs of one side disagree, so the sides can't be compared",
    "unknown": "one side has no counted run, or other questions were asked",
}


@dataclass(frozen=True, slots=True)
class PartChange:
    """A part that does not end as it did."""

    part: str
    before: str
    """Its status and reasons over the runs; `not there` where no run had it."""
    after: str


@dataclass(frozen=True, slots=True)
class ProbeChange:
    """What the change does to one probe."""

    probe: str
    change: Change
    why: str | None
    """For `unknown` and `flaky`."""
    before: Side
    after: Side
    one_machine: bool
    """Whether no machine but one ran both sides."""
    parts: list[PartChange]
    """Parts that end otherwise, where both sides have counted runs."""
    differences: list[Difference]
    """Measures above the noise."""
    within_noise: int
    """How many measures do not differ by more than the noise."""
    unknown_noise: int
    """How many measures were never repeated, so that nothing is claimed of them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two stacks that differ in exactly one thing."""

    kind: Literal["component", "patch"]
    what: str
    """The component, or the candidate."""
    before: str
    """Stack id: the older version, or without the patch."""
    after: str
    before_version: str
    """Version, or head of the patch; `none` for a stack without it."""
    after_version: str
    probes: list[ProbeChange]
    """Probes that either side has runs of, in the order of the probes."""

    def counts(self) -> dict[Change, int]:
        """How many probes there are of each change."""
        found: dict[Change, int] = {}
        for probe in self.probes:
            found[probe.change] = found.get(probe.change, 0) + 1
        return found


@dataclass(frozen=True)
class Pair:
    """Two stacks that differ in exactly one thing, and in what."""

    before: StackFindings
    """The older version, or without the patch."""
    after: StackFindings
    kind: Literal["component", "patch"]
    what: str
    before_version: str
    after_version: str


class Comparing:
    """Every pair of stacks that differ in exactly one component, or in exactly one patch.

    Patches come first, then components in the catalogue's order.

    Args:
        findings: what is known of every stack.
        components: the catalogue.
    """

    def __init__(
        self, findings: Mapping[str, StackFindings], components: Mapping[str, Component]
    ) -> None:
        self._telling = Telling()
        self._noise = Noise(findings, self._telling.values)
        order = [*components]

        def place(pair: Pair) -> tuple[object, ...]:
            component = components.get(pair.what) if pair.kind == "component" else None
            return (
                pair.kind == "component",
                order.index(pair.what) if component is not None else len(order),
                pair.what,
                _age(component, pair.before_version),
                _age(component, pair.after_version),
                pair.before.id,
                pair.after.id,
            )

        found = (_pair(findings[a], findings[b], components) for a, b in _alike(findings))
        self.pairs = sorted((pair for pair in found if pair is not None), key=place)

    def compared(self, pair: Pair) -> Comparison:
        """What changes from one stack of a pair to the other."""
        return _compare(pair, self._noise, self._telling)


def compare_all(
    findings: Mapping[str, StackFindings], components: Mapping[str, Component]
) -> list[Comparison]:
    """All of it, one after another."""
    comparing = Comparing(findings, components)
    return [comparing.compared(pair) for pair in comparing.pairs]


def _alike(findings: Mapping[str, StackFindings]) -> list[tuple[str, str]]:
    """Pairs of stacks that could differ in one thing alone: all pairs would take too long."""
    groups: dict[tuple[object, ...], list[str]] = defaultdict(list)
    names = sorted({name for stack in findings.values() for name in stack.requested})
    for stack in findings.values():
        versions = tuple((name, stack.requested.get(name)) for name in names)
        groups["patches", versions].append(stack.id)
        for place in range(len(names)):
            others = versions[:place] + versions[place + 1 :]
            groups[place, others, stack.patches].append(stack.id)
    pairs = {pair for group in groups.values() for pair in combinations(sorted(group), 2)}
    return sorted(pairs)


def only_difference(
    one: StackFindings, other: StackFindings
) -> tuple[Literal["component", "patch"], str, str, str] | None:
    """(kind, what, version of the one, version of the other) where exactly one thing differs."""
    names = [
        name
        for name in sorted(one.requested.keys() | other.requested.keys())
        if one.requested.get(name) != other.requested.get(name)
    ]
    if one.patches == other.patches:
        if len(names) != 1:
            return None
        (name,) = names
        return (
            "component",
            name,
            one.requested.get(name, NONE),
            other.requested.get(name, NONE),
        )
    if names:
        return None
    patch = _only_patch(one.patches, other.patches)
    return None if patch is None else ("patch", *patch)


def _only_patch(
    one: Sequence[tuple[str, str]], other: Sequence[tuple[str, str]]
) -> tuple[str, str, str] | None:
    """The one patch that is added, left out, or there with another head; the rest in order."""
    if len(one) == len(other):
        unlike = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
        if len(unlike) == 1 and unlike[0][0][0] == unlike[0][1][0]:
            (id_, head), (_, new) = unlike[0]
            return id_, head, new
        return None
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    for place, (id_, head) in enumerate(longer):
        if [*longer[:place], *longer[place + 1 :]] == list(shorter):
            return (id_, head, NONE) if longer is one else (id_, NONE, head)
    return None


def _pair(
    one: StackFindings, other: StackFindings, components: Mapping[str, Component]
) -> Pair | None:
    """Older first, without before with; None where more than one thing differs."""
    difference = only_difference(one, other)
    if difference is None:
        return None
    kind, what, was, now = difference
    if kind == "patch":
        swap = now == NONE
    else:
        component = components.get(what)
        swap = _age(component, was) > _age(component, now)
    if swap:
        return Pair(other, one, kind, what, now, was)
    return Pair(one, other, kind, what, was, now)


def _age(component: Component | None, version: str) -> tuple[int, object, str]:
    """Sorts versions: none, releases by number, revisions by date, and what can't be ordered."""
    if version == NONE:
        return 0, 0, ""
    try:
        return 1, Pep440(version), ""
    except InvalidVersion:
        listed = component.versions if component is not None else []
        date = next((known.date for known in listed if known.version == version), None)
        return (2, date.toordinal(), version) if date is not None else (3, 0, version)


def _compare(pair: Pair, noise: Noise, telling: Telling) -> Comparison:
    before, after = pair.before, pair.after
    probes = [*before.cells, *(probe for probe in after.cells if probe not in before.cells)]
    return Comparison(
        kind=pair.kind,
        what=pair.what,
        before=before.id,
        after=after.id,
        before_version=pair.before_version,
        after_version=pair.after_version,
        probes=[_probe(probe, before, after, noise, telling) for probe in probes],
    )


def _probe(
    probe: str, before: StackFindings, after: StackFindings, noise: Noise, telling: Telling
) -> ProbeChange:
    was, now = telling.of(before, probe), telling.of(after, probe)
    # A run with larger inputs can fail where the other side was never asked.
    both = was.inputs & now.inputs
    if both and was.inputs != both:
        was = telling.of(before, probe, both)
    if both and now.inputs != both:
        now = telling.of(after, probe, both)
    why = _incomparable(was.cell, now.cell) or (
        None if both else "the sides were asked with other inputs"
    )
    change: Change = "unknown"
    if why is None:
        change = _change(was, now)
        if change == "flaky":
            why = _disagree(was, now)
    pairs = comparable(was.values, now.values) if change != "unknown" else []
    measured = list(differences(was.values, now.values, noise, pairs))
    return ProbeChange(
        probe=probe,
        change=change,
        why=why,
        before=was.side,
        after=now.side,
        one_machine=len(was.machines & now.machines) == 1,
        parts=[] if change == "unknown" else _parts(was.endings, now.endings),
        differences=[d for d in measured if d.says in ("more", "less")],
        within_noise=sum(d.says == "no difference" for d in measured),
        unknown_noise=len(pairs) - len(measured),
    )


def _incomparable(before: CellVerdict | None, after: CellVerdict | None) -> str | None:
    """Why two cells can't be compared, or None when they can."""
    lacking = [
        f"{side}: {cell.status if cell is not None else 'not run'}"
        for side, cell in (("before", before), ("after", after))
        if cell is None or not _tells(cell.status)
    ]
    if lacking or before is None or after is None:
        return f"no counted run ({', '.join(lacking)})"
    if before.revision != after.revision:
        return "the sides were asked by different versions of the probe"
    return None


def _tells(status: CellStatus) -> bool:
    """Whether a cell's status says something of the software."""
    match status:
        case "pass" | "fail" | "flaky":
            return True
        case "error" | "void" | "skip" | "miss" | "not run":
            return False
        case _:
            assert_never(status)


def change_of(before: Sequence[Record], after: Sequence[Record]) -> Change:
    """The change between the counted runs of two sides; `unknown` where one has none."""
    return _change(Told(before), Told(after))


def _change(before: Told, after: Told) -> Change:
    was, now = before.ended, after.ended
    if was is None or now is None:
        return "unknown"
    if "flaky" in (was, now):
        return "flaky"
    if was == "pass":
        return "same (pass)" if now == "pass" else "broken"
    if now == "pass":
        return "fixed"
    return "same (fail)" if before.reasons == after.reasons else "changed reason"


def _disagree(before: Told, after: Told) -> str:
    said = []
    for side, told in (("before", before), ("after", after)):
        if told.ended == "flaky":
            said.append(f"{side}: {told.failed} of {count_of(len(told.runs), 'run')} failed")
    return "; ".join(said)


def _parts(was: Endings, now: Endings) -> list[PartChange]:
    if was == now:
        return []
    changed = []
    for part in [*was, *(part for part in now if part not in was)]:
        old, new = was.get(part, set()), now.get(part, set())
        if old != new:
            changed.append(PartChange(part=part, before=_words(old), after=_words(new)))
    return changed


def _words(endings: set[tuple[Status, str | None]]) -> str:
    if not endings:
        return "not there"
    return " or ".join(sorted(f"{status} {reason or ''}".strip() for status, reason in endings))
