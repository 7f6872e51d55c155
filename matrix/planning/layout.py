"""Between rows of a space and stacks of a campaign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from matrix.components import Component
from matrix.planning.campaign_forms import Campaign, GeneratedStack, Reference
from matrix.planning.coverage import Pair
from matrix.planning.rules import PATCHES, Given, Requirement, Rule
from matrix.planning.space import WITH, WITHOUT, Axis, Row, Space, tuples_of
from patches.candidates import UNKNOWN, Candidate


class Layout:
    """A campaign's axes as a space, and back.

    Args:
        campaign: one with a reference.
        components: the catalogue.
        candidates: what there is to put onto a stack.
    """

    def __init__(
        self,
        campaign: Campaign,
        components: Mapping[str, Component],
        candidates: Mapping[str, Candidate],
    ) -> None:
        if campaign.reference is None:
            raise ValueError(f"campaign {campaign.name} has no reference")
        self.campaign = campaign
        self.reference: Reference = campaign.reference
        self._base = campaign.requested(campaign.reference)
        versions = [Axis(name, tuple(values)) for name, values in campaign.axes.items()]
        optional = [Axis(id_, (WITHOUT, WITH), patch=True) for id_ in campaign.optional_patches]
        self.given = Given(
            axes=(*versions, *optional),
            fixed={name: v for name, v in self._base.items() if name not in campaign.axes},
            patches=frozenset(self.reference.patches) - frozenset(campaign.optional_patches),
        )
        self.unseen = frozenset(
            id_
            for id_ in campaign.optional_patches
            if candidates[id_].path is None and candidates[id_].head == UNKNOWN
        )
        """Optional patches that no stack can have before somebody has seen their head."""
        self.rules = [*campaign.rules, *self._implied(components, candidates)]
        """The campaign's own, then those that follow from the candidates' files."""

    @cached_property
    def space(self) -> Space:
        """What the strategy chooses from."""
        return self.given.space(self.rules)

    @cached_property
    def centre(self) -> Row:
        """The reference's row."""
        return self.row(self._base, self.reference.patches)

    def row(self, requested: Mapping[str, str], patches: Sequence[str]) -> Row:
        """The row of a stack written out, whose versions are all among the axes."""
        return tuple(
            int(axis.name in patches) if axis.patch else axis.values.index(requested[axis.name])
            for axis in self.given.axes
        )

    def row_of(self, requested: Mapping[str, str], patches: Sequence[str]) -> Row | None:
        """The row of a stack as some machine had it; None where it is none of this campaign's."""
        choice = self.campaign.choice_of(requested, patches)
        if choice is None:
            return None
        return self.row({**self._base, **choice[0]}, choice[1])

    def entry(self, row: Row, reason: str) -> GeneratedStack:
        """A row as a stack of the campaign."""
        chosen = {
            axis.name: axis.values[place]
            for axis, place in zip(self.given.axes, row, strict=True)
            if not axis.patch
        }
        optional = [
            axis.name
            for axis, place in zip(self.given.axes, row, strict=True)
            if axis.patch and place
        ]
        return GeneratedStack(
            name=self.campaign.generated_name(chosen, optional),
            reason=reason,
            link=self.reference.link,
            components={**self._base, **chosen},
            patches=self.campaign.patches_of(optional),
        )

    def pairs(self, row: Row) -> frozenset[Pair]:
        """The pairs of versions of a row."""
        return frozenset(self.pair(values) for values in tuples_of(row, 2))

    def pair(self, values: Sequence[tuple[int, int]]) -> Pair:
        """A pair of the space in words."""
        (a, b) = (
            (self.given.axes[axis].name, self.given.axes[axis].values[place])
            for axis, place in values
        )
        return a, b

    def _implied(
        self, components: Mapping[str, Component], candidates: Mapping[str, Candidate]
    ) -> list[Rule]:
        """What needs no rule: a patch is for revisions, and comes with what it is stacked on."""
        found = []
        for id_ in self.campaign.optional_patches:
            candidate = candidates[id_]
            if id_ in self.unseen:
                # What is tested is one commit; there is none to name yet.
                why = f"Nobody has seen the head of {id_} yet."
                found.append(Rule(reason=why, exclude={PATCHES: [id_]}))
            part = components[candidate.component]
            plain = [v for v in self.given.versions(part.name) if not part.is_revision(v)]
            if plain:
                why = f"{id_} is for git revisions of {part.name} alone."
                exclude: dict[str, str | list[str]] = {PATCHES: [id_], part.name: plain}
                found.append(Rule(reason=why, exclude=exclude))
            if candidate.stacked_on is not None:
                found.append(
                    Rule(
                        reason=f"{id_} is stacked on {candidate.stacked_on}.",
                        requires=Requirement(
                            when={PATCHES: [id_]}, then={PATCHES: [candidate.stacked_on]}
                        ),
                    )
                )
        return found
