"""What a campaign's rules do: how much each removes, and what can never be tested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from matrix.components import Component
from matrix.planning.bisecting import undated
from matrix.planning.campaign_forms import Campaign
from matrix.planning.contradictions import alone, called, culprits
from matrix.planning.layout import Layout
from matrix.planning.naming import version_text
from matrix.planning.rules import unused
from matrix.planning.space import WITH
from patches.candidates import Candidate


@dataclass(frozen=True)
class Removal:
    """What one rule removes."""

    rule: str
    """What it is called."""
    reason: str
    stacks: int
    """Stacks that it forbids."""
    stacks_alone: int
    """Those that no other rule forbids."""
    pairs: int
    """Pairs of versions that it alone makes impossible."""


@dataclass(frozen=True)
class Findings:
    """What there is to say of one campaign."""

    campaign: str
    strategy: str
    stacks: int
    """Stacks written out, or always part of it."""
    size: int = 0
    """Stacks of the axes, forbidden ones included; 0 without axes."""
    allowed: int = 0
    pairs: int = 0
    """Pairs of versions of different axes."""
    pairs_allowed: int = 0
    removals: list[Removal] = field(default_factory=list)
    never: list[str] = field(default_factory=list)
    """Versions that can never be tested together, with the rules that say so."""
    warnings: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """The same for people."""
        if not self.size:
            yield f"{self.campaign}: {self.strategy}, {_count(self.stacks, 'stack')}"
            return
        yield (
            f"{self.campaign}: {self.strategy}, {self.allowed:,} of {self.size:,} stacks and "
            f"{self.pairs_allowed:,} of {self.pairs:,} pairs of versions allowed"
        )
        for found in self.removals:
            yield (
                f"  {found.rule} removes {_count(found.stacks, 'stack')} ({found.stacks_alone:,} "
                f"that no other rule does) and {_count(found.pairs, 'pair')}: {found.reason}"
            )
        for text in self.never:
            yield f"  never together: {text}"
        for text in self.warnings:
            yield f"  warning: {text}"


def lint(
    campaign: Campaign,
    components: Mapping[str, Component],
    candidates: Mapping[str, Candidate],
) -> Findings:
    """What the rules of a loaded campaign do.

    Args:
        campaign: as `load_campaign` gives it, so its rules contradict nothing.
        components: the catalogue.
        candidates: what there is to put onto a stack.
    """
    if campaign.reference is None:
        return Findings(campaign.name, campaign.strategy, len(campaign.stacks))
    layout = Layout(campaign, components, candidates)
    space = layout.space
    every, able = space.all_tuples(2), set(space.tuples(2))
    removals, warnings = [], []
    for rule in layout.rules:
        if rule.include is not None:
            continue
        only = alone(layout, [rule])
        others = alone(layout, [other for other in layout.rules if other is not rule])
        found = Removal(
            rule=called(layout, rule),
            reason=rule.reason,
            stacks=only.size - only.allowed,
            stacks_alone=others.allowed - space.allowed,
            pairs=sum(not only.possible(dict(pair)) for pair in every),
        )
        removals.append(found)
        if not found.stacks:
            warnings.append(f"{found.rule} removes nothing: {rule.reason}")
        warnings += [f"{found.rule}: {text}" for text in unused(layout.given, rule)]
    if campaign.bisect is not None:
        axis = campaign.bisect.axis
        lacking = undated(components[axis], campaign.axes[axis])
        if lacking:
            warnings.append(
                f"axes.{axis}: ordered by number, since the catalogue has no date of "
                f"{', '.join(lacking)}"
            )
    impossible = [pair for pair in every if pair not in able]
    return Findings(
        campaign=campaign.name,
        strategy=campaign.strategy,
        stacks=len(campaign.stacks),
        size=space.size,
        allowed=space.allowed,
        pairs=len(every),
        pairs_allowed=len(able),
        removals=removals,
        never=list(_never(layout, impossible)),
        warnings=warnings,
    )


def _never(layout: Layout, pairs: list[tuple[tuple[int, int], ...]]) -> Iterator[str]:
    """Impossible pairs in few words: versions that miss the same others stand together."""
    axes = layout.space.axes
    absent = {
        (axis, place)
        for axis, one in enumerate(axes)
        for place in range(len(one.values))
        if not layout.space.possible({axis: place})
    }
    for axis, place in sorted(absent):
        yield f"{_said(layout, axis, [place])} and anything ({culprits(layout, {axis: place})})"
    missed: dict[tuple[int, int, str, int], set[int]] = {}
    for pair in pairs:
        (a, value), (b, other) = pair
        if absent.isdisjoint(pair):
            missed.setdefault((a, b, culprits(layout, dict(pair)), value), set()).add(other)
    together: dict[tuple[int, int, str, tuple[int, ...]], list[int]] = {}
    for (a, b, why, value), misses in missed.items():
        together.setdefault((a, b, why, tuple(sorted(misses))), []).append(value)
    for (a, b, why, others), values in together.items():
        yield f"{_said(layout, a, values)} and {_said(layout, b, others)} ({why})"


def _said(layout: Layout, axis: int, values: Sequence[int]) -> str:
    """Some versions of an axis in words."""
    one = layout.space.axes[axis]
    listed = [version_text(one.values[place], one.values) for place in sorted(values)]
    if one.patch:
        return f"patch {one.name}" if listed == [WITH] else f"no patch {one.name}"
    return f"{one.name} {', '.join(listed)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
