"""A bisection in progress: what evidence says of each version, and which stacks to run next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.keeping.ledger import Entry
from matrix.planning.bisecting import Answer, Run, Step, Stuck, Tally, in_order, next_step
from matrix.planning.coverage import Seen
from matrix.planning.rules import Given

if TYPE_CHECKING:
    from matrix.components import Component
    from matrix.keeping.records import Record
    from matrix.planning.campaign_forms import Campaign, GeneratedStack
    from matrix.planning.layout import Layout
    from matrix.planning.space import Row
    from matrix.probe_specs import ProbeSpec

#: `miss` reasons that another try on another machine would not change.
_NOT_TO_BE_HAD = ("registry:", "wheelhouse:", "source:no-such-revision", "patch:unavailable")

#: Gives the record of a file, by its path below the evidence folder.
Reader = Callable[[str], "Record"]


@dataclass(frozen=True)
class Progress:
    """How far a bisection is."""

    step: Step
    campaign: Campaign
    """The campaign with the stacks that come next, and its one probe; none once it is over."""
    again: bool
    """Whether the next stacks have been run before, and are to be run once more."""
    lines: tuple[str, ...]
    """The same for people."""


def progress(
    layout: Layout,
    *,
    components: Mapping[str, Component],
    specs: Mapping[str, ProbeSpec],
    seen: Seen,
    entries: Iterable[Entry],
    read: Reader,
) -> Progress:
    """Where a bisection stands.

    Args:
        layout: the campaign's axes; it has a [bisect] table.
        components: the catalogue, for the dates of versions.
        specs: the probes that exist.
        seen: which stacks of the evidence lie in the campaign's space.
        entries: all evidence in short.
        read: reads a record, where one part of a probe is asked for.
    """
    asked = layout.campaign.bisect
    assert asked is not None  # noqa: S101 - asked by the caller
    number = next(n for n, axis in enumerate(layout.space.axes) if axis.name == asked.axis)
    axis = layout.space.axes[number]
    versions = between(in_order(components[asked.axis], axis.values), asked.good, asked.bad)
    rows = {
        version: layout.space.nearest(layout.centre, {number: axis.values.index(version)})
        for version in versions
    }
    setting = layout.campaign.setting
    spec = specs[asked.probe]
    counts = _Counts(
        spec, setting if setting in spec.parameters else "quick", asked.part, specs, read
    )
    tallies = counts.tallies({v: row for v, row in rows.items() if row is not None}, seen, entries)
    step = next_step(versions, tallies, flaky=asked.flaky, confidence=asked.confidence)
    stacks: list[GeneratedStack] = []
    again = False
    if isinstance(step, Run):
        for version in step.versions:
            row = rows[version]
            assert row is not None  # noqa: S101 - loading refuses versions that no stack can have
            stacks.append(layout.entry(row, f"Bisection: {step.why}."))
            again = again or tallies[version].runs > 0
    campaign = layout.campaign.model_copy(
        update={"stacks": [*layout.campaign.stacks, *stacks], "probes": [asked.probe]}
    )
    what = f"{asked.probe}, {asked.part}" if asked.part else asked.probe
    known = sum(tally.runs > 0 for tally in tallies.values())
    head = (
        f"Bisection of {axis.name} by {what}: {known} of {len(versions)} versions have answered, "
        f"in {sum(tally.runs for tally in tallies.values())} runs."
    )
    told = _told(step, layout.given, {v: row for v, row in rows.items() if row is not None})
    return Progress(step, campaign, again, (head, *told))


def between(versions: Sequence[str], good: str, bad: str) -> list[str]:
    """The versions from the good one to the bad one, both included, whichever is older."""
    start, end = versions.index(good), versions.index(bad)
    return list(versions[start : end + 1] if start <= end else versions[end : start + 1][::-1])


@dataclass(frozen=True)
class _Counts:
    """What counts as an answer."""

    spec: ProbeSpec
    setting: str
    part: str | None
    specs: Mapping[str, ProbeSpec]
    read: Reader

    def tallies(
        self, rows: Mapping[str, Row], seen: Seen, entries: Iterable[Entry]
    ) -> dict[str, Tally]:
        """By version; every version has one."""
        versions: dict[str, list[str]] = {}
        for id_, row in seen.rows.items():
            versions[id_] = [version for version, own in rows.items() if own == row]
        passed, failed = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
        untestable = dict.fromkeys(rows, False)
        for entry in entries:
            for version in versions.get(entry.stack, ()):
                answer = self._answer(entry)
                passed[version] += answer == "pass"
                failed[version] += answer == "fail"
                untestable[version] = untestable[version] or answer == "untestable"
        return {v: Tally(passed[v], failed[v], untestable[v]) for v in rows}

    def _answer(self, entry: Entry) -> str | None:
        """`pass`, `fail`, `untestable`, or None where a record tells nothing."""
        spec = self.specs.get(entry.probe)
        if spec is None or entry.sanitize:
            return None
        if spec.group == "gate":
            shut = entry.status == "fail" or self._not_to_be_had(entry)
            return "untestable" if shut else None
        # What an earlier revision of the probe said is no answer to what it asks now.
        if (entry.probe, entry.revision) != (self.spec.id, self.spec.revision):
            return None
        if entry.setting != self.setting:
            return None
        if entry.status in ("skip", "error") or self._not_to_be_had(entry):
            return "untestable"
        if entry.status not in ("pass", "fail") or entry.lacked:
            return None
        return entry.status if self.part is None else self._part(entry, self.part)

    def _part(self, entry: Entry, name: str) -> str | None:
        """The answer of one part; a run that failed before it came to the part tells nothing."""
        part = next((p for p in self.read(entry.path).parts if p.name == name), None)
        if part is None:
            return None if entry.status == "fail" else "untestable"
        if part.status in ("pass", "fail"):
            return part.status
        return "untestable" if part.status in ("skip", "error") else None

    @staticmethod
    def _not_to_be_had(entry: Entry) -> bool:
        return entry.status == "miss" and (entry.reason or "").startswith(_NOT_TO_BE_HAD)


def _told(step: Step, given: Given, rows: Mapping[str, Row]) -> list[str]:
    if isinstance(step, Run):
        return [f"Next: {', '.join(step.versions)}; {step.why}."]
    if isinstance(step, Stuck):
        return [f"No answer: {step.why}."]
    return _answered(step, given, rows)


def _answered(step: Answer, given: Given, rows: Mapping[str, Row]) -> list[str]:
    sure = "" if step.probability is None else f" (probability {step.probability:.3f})"
    lines = [f"Answer: {step.first} is the first bad version, {step.last} the last good one{sure}."]
    if step.between:
        lines.append(
            f"Between them could not be tested: {', '.join(step.between)}. The change may be in "
            "any of these."
        )
    moved = [
        f"{axis.name} {axis.values[before]} and {axis.values[after]}"
        for axis, before, after in zip(given.axes, rows[step.last], rows[step.first], strict=True)
        if before != after
    ]
    if len(moved) > 1:
        lines.append(f"More than one component differs between the two: {', '.join(moved)}.")
    return lines
