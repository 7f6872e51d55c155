"""The form of a campaign: stacks written out, or axes, rules and a strategy that chooses stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, HttpUrl, StringConstraints

from matrix.components import NONE, SYSTEM
from matrix.models import Model, Slug
from matrix.planning.naming import changed_name, version_text
from matrix.planning.rules import Rule
from matrix.stacks import patched_name

Strategy = Literal["explicit", "one-at-a-time", "pairwise", "three-way", "bisect"]

#: Names of generated stacks join what differs by a plus sign.
GeneratedName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._+-]{0,127}$")]


class StackEntry(Model):
    """A stack written out."""

    name: Slug
    reason: str
    link: HttpUrl | None = None
    components: dict[str, str] = Field(default_factory=dict)
    """Versions that differ from those of the campaign."""
    patches: list[Slug] = Field(default_factory=list)
    """Candidates, by id, in order of application."""


class GeneratedStack(StackEntry):
    """A stack that a strategy chose. Its `components` hold every version."""

    name: GeneratedName


class Reference(StackEntry):
    """The stack around which, or in whose surroundings, others are chosen."""


class Bisection(Model):
    """Between which two versions of one axis a probe's answer changes."""

    axis: Slug
    good: str
    """A version with which the probe passes."""
    bad: str
    """A version with which it fails; it may be older than the good one."""
    probe: Slug
    part: str | None = None
    """One part of the probe, by name, instead of the whole run."""
    flaky: bool = False
    """Whether to reckon with a fault that strikes in some runs only, from the first run on."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """How sure to be before a flaky probe is given an answer."""


class Campaign(Model):
    """Stacks and probes, with what they share."""

    name: Slug
    reason: str
    probes: list[Slug]
    setting: str = "quick"
    """Which of a probe's parameter settings is used."""
    python: str | None = None
    """Python of the tested environments; None is the one that runs nox."""
    components: dict[str, str] = Field(default_factory=dict)
    """Versions shared by every stack that does not say otherwise."""
    stacks: Annotated[list[StackEntry], Field(alias="stack")] = Field(default_factory=list)
    """Stacks written out and, once the campaign is loaded, those that are always part of it."""
    strategy: Strategy = "explicit"
    reference: Reference | None = None
    axes: dict[str, list[str]] = Field(default_factory=dict)
    """Components that vary, and their versions."""
    optional_patches: list[Slug] = Field(default_factory=list)
    """Candidates that a stack may have or lack, in order of application."""
    rules: Annotated[list[Rule], Field(alias="rule")] = Field(default_factory=list)
    bisect: Bisection | None = None
    tags: dict[str, Slug] = Field(default_factory=dict)
    """What names of generated stacks call a component, where the catalogue's word won't do."""

    def requested(self, entry: StackEntry) -> dict[str, str]:
        """The versions of one stack, `system` not yet replaced."""
        return {**self.components, **entry.components}

    def name_of(self, requested: dict[str, str], patches: Sequence[str] = ()) -> str | None:
        """What this campaign calls a stack; `system` fits whatever a machine's image had.

        Args:
            requested: the versions of the stack.
            patches: ids of its patches; those that no entry names are put behind the name.
        """
        best: StackEntry | None = None
        for entry in self.stacks:
            asked = self.requested(entry)
            fits = {**asked, **requested}.keys() == asked.keys() and all(
                version in (SYSTEM, requested.get(name, NONE)) for name, version in asked.items()
            )
            named = entry.patches == list(patches[: len(entry.patches)])
            if fits and named and (best is None or len(entry.patches) > len(best.patches)):
                best = entry
        if best is None or len(best.patches) < len(patches):
            choice = self.choice_of(requested, patches)
            if choice is not None:
                return self.generated_name(*choice)
        if best is None:
            return None
        return patched_name(best.name, patches[len(best.patches) :])

    def choice_of(
        self, requested: Mapping[str, str], patches: Sequence[str]
    ) -> tuple[dict[str, str], list[str]] | None:
        """The value of each axis, and the optional patches, of a stack as some machine had it.

        None where it is no stack of this campaign's axes.
        """
        if self.reference is None:
            return None
        base = self.requested(self.reference)
        if {**base, **requested}.keys() != base.keys():
            return None
        chosen = {}
        for name, version in base.items():
            have = requested.get(name, NONE)
            values = self.axes.get(name, [version])
            if have not in values and SYSTEM not in values:
                return None
            if name in self.axes:
                chosen[name] = have if have in values else SYSTEM
        optional = [patch for patch in self.optional_patches if patch in patches]
        return (chosen, optional) if self.patches_of(optional) == list(patches) else None

    def patches_of(self, optional: Sequence[str]) -> list[str]:
        """All patches of a generated stack, in order of application."""
        assert self.reference is not None  # noqa: S101 - only campaigns with one have such stacks
        always = [p for p in self.reference.patches if p not in self.optional_patches]
        return [*always, *(patch for patch in self.optional_patches if patch in optional)]

    def generated_name(self, chosen: Mapping[str, str], optional: Sequence[str]) -> str:
        """What a stack is called that has these values of the axes and these optional patches."""
        assert self.reference is not None  # noqa: S101 - only campaigns with one have such stacks
        base = self.requested(self.reference)
        patches = self.patches_of(optional)
        return changed_name(
            self.reference.name,
            [
                (self.tags.get(name, name), version_text(chosen[name], values))
                for name, values in self.axes.items()
                if chosen[name] != base[name]
            ],
            added=[patch for patch in patches if patch not in self.reference.patches],
            removed=[patch for patch in self.reference.patches if patch not in patches],
        )
