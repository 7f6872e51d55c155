"""Campaigns: which stacks and probes to run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, HttpUrl, ValidationError

from matrix.components import NONE, SYSTEM, Component, check_version
from matrix.errors import DataError
from matrix.models import Model, Slug, explain, read_toml
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from matrix.stacks import patched_name
from patches.candidates import load_candidates


class StackEntry(Model):
    """A stack written out."""

    name: Slug
    reason: str
    link: HttpUrl | None = None
    components: dict[str, str] = Field(default_factory=dict)
    """Versions that differ from those of the campaign."""
    patches: list[Slug] = Field(default_factory=list)
    """Candidates, by id, in order of application."""


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
    stacks: Annotated[list[StackEntry], Field(alias="stack", min_length=1)]

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
        if best is None:
            return None
        return patched_name(best.name, patches[len(best.patches) :])


def load_campaign(
    rooms: Rooms, name: str, components: dict[str, Component], specs: dict[str, ProbeSpec]
) -> Campaign:
    """A campaign, checked against the catalogue and the probes that exist.

    Raises:
        DataError: the file is missing or malformed, or names something unknown.
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
    candidates = load_candidates(rooms.candidates)
    seen: set[str] = set()
    for entry in campaign.stacks:
        where = f"{shown}: stack {entry.name!r}"
        if entry.name in seen:
            raise DataError(f"{where} is listed twice. Rename or remove one.")
        seen.add(entry.name)
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
    return campaign
