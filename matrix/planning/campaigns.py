"""Campaigns: which stacks and probes to run, read from their files and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from matrix.components import Component, check_version
from matrix.errors import DataError
from matrix.models import explain, read_toml
from matrix.planning.campaign_forms import Campaign, GeneratedStack, StackEntry
from matrix.planning.contradictions import contradictions
from matrix.planning.layout import Layout
from matrix.planning.naming import tag_of
from matrix.planning.rules import problems
from matrix.planning.strategies import STRENGTH, included, standing_stacks
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from patches.candidates import Candidate, load_candidates

__all__ = ["Campaign", "GeneratedStack", "StackEntry", "load_campaign"]


def load_campaign(
    rooms: Rooms, name: str, components: dict[str, Component], specs: dict[str, ProbeSpec]
) -> Campaign:
    """A campaign, checked against the catalogue and the probes that exist.

    Its `stacks` are those that are part of it whatever the evidence says; `matrix.choosing` adds
    what a strategy chooses.

    Raises:
        DataError: the file is missing or malformed, names something unknown, or contradicts
            itself.
    """
    path = rooms.campaigns / f"{name}.toml"
    shown = rooms.shown(path)
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name) or not path.exists():
        known = ", ".join(sorted(file.stem for file in rooms.campaigns.glob("*.toml"))) or "none"
        raise DataError(f"There is no campaign {name!r} ({shown}). Known campaigns: {known}.")
    try:
        campaign = Campaign.model_validate({"name": name, **read_toml(path, shown)})
    except ValidationError as error:
        raise DataError(f"{shown} does not fit a campaign's form:\n{explain(error)}") from None
    if campaign.name != name:
        raise DataError(f"{shown}: the campaign calls itself {campaign.name!r}; use {name!r}.")
    # Health probes judge machines, not stacks.
    probes = [spec.id for spec in specs.values() if spec.group != "health"]
    for probe in campaign.probes:
        if probe not in probes:
            raise DataError(
                f"{shown}: probes: unknown probe {probe!r}. Known probes: {', '.join(probes)}."
            )
    settings = {name for spec in specs.values() for name in spec.parameters}
    if campaign.setting not in settings:
        raise DataError(
            f"{shown}: setting: no probe has a setting {campaign.setting!r}. "
            f"Settings: {', '.join(sorted(settings))}."
        )
    for problem in _strategy_problems(campaign):
        raise DataError(f"{shown}: {problem}.")
    candidates = load_candidates(rooms.candidates)
    seen: set[str] = set()
    for entry in campaign.stacks:
        where = f"{shown}: stack {entry.name!r}"
        if entry.name in seen:
            raise DataError(f"{where} is listed twice. Rename or remove one.")
        seen.add(entry.name)
        _check_stack(where, campaign, entry, components, candidates)
    reference = campaign.reference
    if reference is None:
        return campaign
    if reference.name in seen:
        raise DataError(f"{shown}: reference: a stack has the name {reference.name!r} too.")
    _check_stack(f"{shown}: reference", campaign, reference, components, candidates)
    for problem in _axis_problems(campaign, components, candidates):
        raise DataError(f"{shown}: {problem}.")
    tags = {name: campaign.tags.get(name, tag_of(part)) for name, part in components.items()}
    campaign = campaign.model_copy(update={"tags": tags})
    layout = Layout(campaign, components, candidates)
    for number, rule in enumerate(campaign.rules, start=1):
        where = f"{shown}: rule {number}"
        for problem in problems(layout.given, rule, components):
            raise DataError(f"{where}: {problem}.")
        if rule.include is not None:
            if rule.include.name in {*seen, reference.name}:
                raise DataError(f"{where}: include: {rule.include.name!r} is listed twice.")
            seen.add(rule.include.name)
            extra = included(layout, rule)
            _check_stack(f"{where}: include", campaign, extra, components, candidates)
    for problem in contradictions(layout):
        raise DataError(f"{shown}: {problem}.")
    return campaign.model_copy(update={"stacks": standing_stacks(layout)})


def _check_stack(
    where: str,
    campaign: Campaign,
    entry: StackEntry,
    components: Mapping[str, Component],
    candidates: Mapping[str, Candidate],
) -> None:
    requested = campaign.requested(entry)
    for component, version in requested.items():
        if component not in components:
            raise DataError(
                f"{where}: unknown component {component!r}. "
                f"Known components: {', '.join(components)}."
            )
        problem = check_version(components[component], version)
        if problem is not None:
            raise DataError(f"{where}: {component}: {problem}.")
    for patch in entry.patches:
        if patch not in candidates:
            known = ", ".join(candidates) or "none"
            raise DataError(f"{where}: unknown patch {patch!r}. Known candidates: {known}.")
        part = candidates[patch].component
        if part not in components or not components[part].is_revision(requested.get(part, "")):
            raise DataError(
                f"{where}: patch {patch!r} is for a git revision of {part}; the stack has none."
            )
    missing = [component for component in components if component not in requested]
    if missing:
        raise DataError(
            f"{where} says nothing of {', '.join(missing)}. A stack is an exact choice of "
            "every component: add a version."
        )


def _strategy_problems(campaign: Campaign) -> Iterator[str]:
    """Parts of the file that don't go with its strategy."""
    parts = {
        "reference": campaign.reference,
        "axes": campaign.axes,
        "optional_patches": campaign.optional_patches,
        "rule": campaign.rules,
        "bisect": campaign.bisect,
    }
    if campaign.strategy == "explicit":
        for key, value in parts.items():
            if value:
                yield f"{key}: nothing uses it. Say which `strategy` chooses the stacks"
        if not campaign.stacks:
            yield "stack: list at least one [[stack]], or say which `strategy` chooses them"
        return
    if campaign.reference is None:
        yield f"reference: strategy {campaign.strategy!r} needs a stack to start from"
    needed = STRENGTH.get(campaign.strategy, 1)
    have = len(campaign.axes) + len(campaign.optional_patches)
    if have < needed:
        yield (
            f"axes: strategy {campaign.strategy!r} needs at least {needed} of them, optional "
            f"patches included; there {'is' if have == 1 else 'are'} {have}"
        )
    if (campaign.strategy == "bisect") != (campaign.bisect is not None):
        yield "bisect: a [bisect] table and strategy 'bisect' go together"
    if campaign.bisect is None:
        return
    asked = campaign.bisect
    if asked.probe not in campaign.probes:
        yield f"bisect.probe: {asked.probe!r} is none of the campaign's probes"
    if asked.axis not in campaign.axes:
        known = ", ".join(campaign.axes) or "none"
        yield f"bisect.axis: there is no axis {asked.axis!r}. Axes: {known}"
        return
    for key, version in (("good", asked.good), ("bad", asked.bad)):
        if version not in campaign.axes[asked.axis]:
            yield f"bisect.{key}: {version!r} is not on axis {asked.axis}"
    if asked.good == asked.bad:
        yield "bisect: good and bad are the same version"


def _axis_problems(
    campaign: Campaign,
    components: Mapping[str, Component],
    candidates: Mapping[str, Candidate],
) -> Iterator[str]:
    assert campaign.reference is not None  # noqa: S101 - asked by the caller
    base = campaign.requested(campaign.reference)
    for name, versions in campaign.axes.items():
        if name not in components:
            yield f"axes: unknown component {name!r}. Known components: {', '.join(components)}"
            return
        for version in versions:
            problem = check_version(components[name], version)
            if problem is not None:
                yield f"axes.{name}: {problem}"
        if len(set(versions)) < len(versions):
            yield f"axes.{name}: a version is listed twice"
        if len(versions) < 2:
            yield f"axes.{name}: an axis has at least two versions"
        if base[name] not in versions:
            yield f"axes.{name}: the reference has {base[name]}, which is not listed"
    known = ", ".join(candidates) or "none"
    for place, patch in enumerate(campaign.optional_patches):
        where = f"optional_patches: {patch!r}"
        earlier = {*campaign.optional_patches[:place], *campaign.reference.patches}
        if patch not in candidates:
            yield f"{where}: no such candidate. Known candidates: {known}"
            return
        if patch in campaign.optional_patches[:place]:
            yield f"{where} is listed twice"
        candidate = candidates[patch]
        if candidate.stacked_on is not None and candidate.stacked_on not in earlier:
            yield f"{where} is stacked on {candidate.stacked_on}; list that before it"
        versions = campaign.axes.get(candidate.component, [base.get(candidate.component, "")])
        part = components.get(candidate.component)
        if part is None or not any(part.is_revision(version) for version in versions):
            yield f"{where} is for a git revision of {candidate.component}; no stack has one"
    listed = [p for p in campaign.reference.patches if p in campaign.optional_patches]
    if listed != [p for p in campaign.optional_patches if p in campaign.reference.patches]:
        yield "reference.patches: not in the order of optional_patches"
