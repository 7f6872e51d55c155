"""Rules of a campaign: which versions it never puts together, and which go only together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, HttpUrl, model_validator

from matrix.components import SYSTEM, Component, check_version
from matrix.models import Model, Slug
from matrix.planning.space import Axis, Nogood, Space

#: Keys of a condition that name no component: patches that are there, and patches that are not.
PATCHES, LACKING = "patches", "without"

#: By component: a specifier (`>=4.6.2`), one exact version or revision, or a list of these, of
#: which one must fit. `patches` and `without` list candidates. All keys must hold.
Condition = Annotated[dict[str, str | list[str]], Field(min_length=1)]


class Requirement(Model):
    """If the one holds, so must the other."""

    when: Condition
    then: Condition


class Extra(Model):
    """One more stack; it obeys the rules."""

    name: Slug
    components: dict[str, str] = Field(default_factory=dict)
    """Versions that differ from those of the reference."""
    patches: list[Slug] = Field(default_factory=list)


class Rule(Model):
    """One fact about what goes together, and where it was read."""

    reason: str
    link: HttpUrl | None = None
    exclude: Condition | None = None
    """No generated stack fits this."""
    requires: Requirement | None = None
    include: Extra | None = None

    @model_validator(mode="after")
    def _one_of_three(self) -> Rule:
        if sum(part is not None for part in (self.exclude, self.requires, self.include)) != 1:
            raise ValueError("a rule says one of `exclude`, `requires` and `include`")
        return self

    @property
    def kind(self) -> Literal["exclude", "requires", "include"]:
        """Which of the three it is."""
        if self.exclude is not None:
            return "exclude"
        return "requires" if self.requires is not None else "include"

    @property
    def conditions(self) -> list[tuple[str, Condition]]:
        """Each condition, with where it stands in the rule."""
        if self.exclude is not None:
            return [("exclude", self.exclude)]
        if self.requires is not None:
            return [("requires.when", self.requires.when), ("requires.then", self.requires.then)]
        return []


@dataclass(frozen=True)
class Given:
    """What a campaign's rules speak of: axes, and what is the same in every stack."""

    axes: tuple[Axis, ...]
    fixed: Mapping[str, str]
    """Versions of the components that do not vary."""
    patches: frozenset[str] = frozenset()
    """Patches that every generated stack has."""

    def space(self, rules: Sequence[Rule]) -> Space:
        """The axes with what the rules forbid."""
        return Space(self.axes, tuple(nogood for rule in rules for nogood in self.nogoods(rule)))

    def nogoods(self, rule: Rule) -> list[Nogood]:
        """What one rule forbids. An empty one forbids everything."""
        if rule.exclude is not None:
            when = self._all_of(rule.exclude)
            return [] if when is None else [_ordered(when)]
        if rule.requires is None:
            return []
        when = self._all_of(rule.requires.when)
        if when is None:
            return []
        found = []
        for axis, mask in self._literals(rule.requires.then):
            if axis is None and not mask:
                found.append(_ordered(when))
            elif axis is not None:
                lacking = self.axes[axis].all & ~mask & when.get(axis, -1)
                if lacking:
                    found.append(_ordered({**when, axis: lacking}))
        return found

    def versions(self, name: str) -> tuple[str, ...]:
        """Every version that a component has in the campaign."""
        for axis in self.axes:
            if axis.name == name and not axis.patch:
                return axis.values
        return (self.fixed[name],) if name in self.fixed else ()

    def _all_of(self, condition: Condition) -> dict[int, int] | None:
        """The sets of values that together fit a condition; None where nothing can."""
        found: dict[int, int] = {}
        for axis, mask in self._literals(condition):
            if not mask:
                return None
            if axis is not None:
                found[axis] = found.get(axis, -1) & mask
                if not found[axis]:
                    return None
        return found

    def _literals(self, condition: Condition) -> Iterator[tuple[int | None, int]]:
        """(axis, fitting values) of each key; without an axis 1 stands for true and 0 for false."""
        for key, wanted in condition.items():
            if key in (PATCHES, LACKING):
                for patch in _listed(wanted):
                    place = self._place(patch, patch=True)
                    present = key == PATCHES
                    if place is None:
                        yield None, int((patch in self.patches) == present)
                    else:
                        yield place, 0b10 if present else 0b01
                continue
            place = self._place(key, patch=False)
            if place is None:
                yield None, int(fits(wanted, self.fixed.get(key, "")))
            else:
                values = self.axes[place].values
                yield place, sum(1 << n for n, value in enumerate(values) if fits(wanted, value))

    def _place(self, name: str, *, patch: bool) -> int | None:
        for place, axis in enumerate(self.axes):
            if (axis.name, axis.patch) == (name, patch):
                return place
        return None


def fits(wanted: str | list[str], version: str) -> bool:
    """Whether a version is one of those wanted. A revision is in no range of releases."""
    return any(_fits_one(one, version) for one in _listed(wanted))


def is_specifier(text: str) -> bool:
    """Whether a condition's text is a range (PEP 440) rather than one exact version."""
    return re.match(r"\s*[<>=!~]", text) is not None


def problems(given: Given, rule: Rule, components: Mapping[str, Component]) -> Iterator[str]:
    """What is wrong with a rule's conditions, each with the key it is about."""
    for where, condition in rule.conditions:
        for key, wanted in condition.items():
            at = f"{where}.{key}"
            if key in (PATCHES, LACKING):
                known = {axis.name for axis in given.axes if axis.patch} | given.patches
                for patch in _listed(wanted):
                    if patch not in known:
                        yield f"{at}: {patch!r} is none of the campaign's optional patches"
                if not wanted:
                    yield f"{at} is empty"
            elif key not in components:
                yield f"{at}: unknown component. Known components: {', '.join(components)}"
            elif not wanted:
                yield f"{at} is empty"
            else:
                for one in _listed(wanted):
                    yield from (
                        f"{at}: {why}" for why in _version_problem(given, components[key], one)
                    )


def unused(given: Given, rule: Rule) -> Iterator[str]:
    """Exact versions of a rule that the campaign does not have: a typing mistake, or left over."""
    for where, condition in rule.conditions:
        for key, wanted in condition.items():
            if key in (PATCHES, LACKING):
                continue
            for one in _listed(wanted):
                if not is_specifier(one) and one not in given.versions(key):
                    yield f"{where}.{key}: no stack of the campaign has {one}"


def _version_problem(given: Given, component: Component, wanted: str) -> Iterator[str]:
    if not is_specifier(wanted):
        problem = check_version(component, wanted)
        if problem is not None:
            yield problem
        return
    try:
        SpecifierSet(wanted)
    except InvalidSpecifier:
        yield f"{wanted!r} is no version specifier"
        return
    if SYSTEM in given.versions(component.name):
        # What it stands for differs from machine to machine, so a range can't be judged here.
        yield f"{wanted!r} can't be judged while the campaign has {component.name} {SYSTEM!r}"


def _fits_one(wanted: str, version: str) -> bool:
    if not is_specifier(wanted):
        return wanted == version
    try:
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _listed(wanted: str | list[str]) -> list[str]:
    return [wanted] if isinstance(wanted, str) else wanted


def _ordered(literals: Mapping[int, int]) -> Nogood:
    return tuple(sorted(literals.items()))
