"""Rules that can't all be meant: they leave nothing, or forbid what the campaign asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matrix.planning.layout import Layout
from matrix.planning.rules import PATCHES, Rule
from matrix.planning.space import Space
from matrix.planning.strategies import included, row_of_entry


def contradictions(layout: Layout) -> Iterator[str]:
    """What is wrong with the rules as a whole, the plainest first."""
    space = layout.space
    if not space.allowed:
        yield f"no stack is left by {culprits(layout, {})}"
        return
    if not space.allows(layout.centre):
        yield f"reference: {breakers(layout, layout.centre)} forbids it"
    for number, rule in enumerate(layout.campaign.rules, start=1):
        if rule.include is None:
            continue
        row = row_of_entry(layout, included(layout, rule))
        if row is not None and not space.allows(row):
            yield (
                f"rule {number}: include: {breakers(layout, row)} forbids it. A [[stack]] may go "
                "against rules on purpose"
            )
    unseen = layout.unseen
    for number, axis in enumerate(space.axes):
        for place, value in enumerate(axis.values):
            if not space.possible({number: place}) and axis.name not in unseen:
                where = "optional_patches" if axis.patch else "axes"
                yield (
                    f"{where}: no stack can have {axis.name} {value}: that is ruled out by "
                    f"{culprits(layout, {number: place})}"
                )


def called(layout: Layout, rule: Rule) -> str:
    """What messages call a rule: its number in the file, or the file it follows from."""
    for number, other in enumerate(layout.campaign.rules, start=1):
        if other is rule:
            return f"rule {number}"
    (_, condition), *_ = rule.conditions
    return f"patches/candidates/{condition[PATCHES][0]}.toml"


def breakers(layout: Layout, row: Sequence[int]) -> str:
    """The first rule that a row goes against."""
    return next(
        called(layout, rule)
        for rule in layout.rules
        if not alone(layout, [rule]).allows(tuple(row))
    )


def culprits(layout: Layout, chosen: dict[int, int]) -> str:
    """A smallest set of rules that together leave no stack with the chosen values.

    Rules are left out one after another as long as the rest still leaves nothing.
    """
    needed = list(layout.rules)
    for rule in layout.rules:
        fewer = [other for other in needed if other is not rule]
        if not alone(layout, fewer).count(chosen):
            needed = fewer
    return " and ".join(called(layout, rule) for rule in needed)


def alone(layout: Layout, rules: Sequence[Rule]) -> Space:
    """The space as if there were only these rules."""
    return layout.given.space(rules)
