"""Which stacks a campaign runs: those that are always part of it, and those that a strategy picks.

Everything here is pure. The same campaign, catalogue and evidence give the same stacks in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matrix.planning.campaign_forms import Campaign, GeneratedStack, StackEntry
from matrix.planning.covering import covering_rows
from matrix.planning.layout import Layout
from matrix.planning.rules import Rule
from matrix.planning.space import Row
from matrix.stacks import stack_id

#: How many versions each stack of a covering strategy brings together for the first time.
STRENGTH = {"pairwise": 2, "three-way": 3}


def standing_stacks(layout: Layout) -> list[StackEntry]:
    """The stacks that are part of a campaign whatever the evidence says, explicit ones first.

    The reference, what `include` rules add, and the steps of `one-at-a-time`. Of two entries for
    the same stack the first stands.
    """
    campaign = layout.campaign
    entries: list[StackEntry] = [*campaign.stacks]
    if campaign.strategy == "bisect":
        return entries
    entries.append(as_entry(layout))
    entries += [included(layout, rule) for rule in campaign.rules if rule.include is not None]
    if campaign.strategy == "one-at-a-time":
        entries += steps(layout)
    return distinct(campaign, entries)


def steps(layout: Layout) -> list[GeneratedStack]:
    """For each value of each axis the nearest allowed stack to the reference that has it."""
    found: dict[Row, GeneratedStack] = {}
    for number, axis in enumerate(layout.space.axes):
        for place in range(len(axis.values)):
            row = layout.space.nearest(layout.centre, {number: place})
            if place != layout.centre[number] and row is not None and row not in found:
                found[row] = layout.entry(row, _why_step(layout, row, number))
    return list(found.values())


def covering_stacks(layout: Layout, strength: int, asked: Sequence[Row]) -> list[StackEntry]:
    """Stacks that together have every allowed pair, or triple, of versions.

    The standing stacks that lie in the space, and those that have evidence, come first.
    """
    campaign = layout.campaign
    standing = [
        row for row in (row_of_entry(layout, entry) for entry in campaign.stacks) if row is not None
    ]
    seeds = list(dict.fromkeys([*standing, *asked]))
    words = "pair" if strength == 2 else "triple"
    entries: list[StackEntry] = [*campaign.stacks]
    for row in covering_rows(layout.space, strength, seeds, prefer=layout.centre):
        if row in asked:
            why = "Has evidence already."
        else:
            why = f"Shows {words}s of versions together that no earlier stack does."
        entries.append(layout.entry(row, why))
    return distinct(campaign, entries)


def as_entry(layout: Layout) -> StackEntry:
    """The reference as a stack."""
    return StackEntry(**layout.reference.model_dump())


def included(layout: Layout, rule: Rule) -> StackEntry:
    """The stack that an `include` rule adds."""
    assert rule.include is not None  # noqa: S101 - asked by the caller
    return StackEntry(
        name=rule.include.name,
        reason=rule.reason,
        link=rule.link,
        components={**layout.reference.components, **rule.include.components},
        patches=rule.include.patches,
    )


def row_of_entry(layout: Layout, entry: StackEntry) -> Row | None:
    """The row of a stack written out; None where it is outside of the axes."""
    return layout.row_of(layout.campaign.requested(entry), entry.patches)


def distinct(campaign: Campaign, entries: Iterable[StackEntry]) -> list[StackEntry]:
    """Each stack once, under the first of its names; no name twice."""
    found: dict[str, StackEntry] = {}
    names: set[str] = set()
    for entry in entries:
        content = stack_id(campaign.requested(entry), tuple((id_, "") for id_ in entry.patches))
        if content in found:
            continue
        taken = entry.name in names and isinstance(entry, GeneratedStack)
        name = f"{entry.name}+{content[:8]}" if taken else entry.name
        names.add(name)
        found[content] = entry.model_copy(update={"name": name}) if taken else entry
    return list(found.values())


def _why_step(layout: Layout, row: Row, axis: int) -> str:
    """What the step changes, and what had to move along."""
    changed = layout.space.axes[axis]
    told = _said(layout, axis, row[axis])
    along = [
        number
        for number, (place, before) in enumerate(zip(row, layout.centre, strict=True))
        if place != before and number != axis
    ]
    text = f"One step from {layout.reference.name}: {told}."
    if not along:
        return text
    moved = " and ".join(_said(layout, number, row[number]) for number in along)
    alone = (*layout.centre[:axis], row[axis], *layout.centre[axis + 1 :])
    why = " ".join(
        f"{rule.reason[0].upper()}{rule.reason[1:]}"
        for rule in layout.rules
        if not layout.given.space([rule]).allows(alone)
    )
    count = {1: "Two", 2: "Three"}.get(len(along), str(len(along) + 1))
    return f"{text} {count} components differ: {changed.name} takes {moved} along. {why}"


def _said(layout: Layout, axis: int, place: int) -> str:
    return f"{layout.space.axes[axis].name} {layout.space.axes[axis].values[place]}"
