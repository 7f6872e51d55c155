"""The catalogue of components: parts of a stack that have versions."""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, Literal

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440
from pydantic import (
    Field,
    HttpUrl,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from matrix.errors import DataError
from matrix.models import Model, Slug, explain, read_toml
from matrix.rooms import Rooms

#: A version that stands for whatever the runner's own image has.
SYSTEM = "system"
#: The stack has no such component.
NONE = "none"
#: cuDNN is the one that torch's own wheel requires; that wheel pins it exactly.
WITH_TORCH = "with-torch"

_SHA = re.compile(r"[0-9a-f]{40}")


DistributionName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]

ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*(:\w+)?$")]


class Version(Model):
    """A version worth knowing about, why, and where that was read."""

    version: str
    date: dt.date | None = None
    reason: str
    link: HttpUrl


class Component(Model):
    """One component: how it is named, got and recognised."""

    name: Slug
    title: str
    short: str
    """A column heading."""
    tag: Slug | None = None
    """What names of stacks call it, where `short` is too long."""
    kind: Literal["package", "torch", "cudnn", "git", "image"]
    """`image`: on no package index; what the runner's image has is used, or the stack has none."""
    reason: str
    link: HttpUrl
    distribution: DistributionName | None = None
    """PyPI distribution, when it can be installed as one."""
    module: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*$")] | None = None
    """Import name, when it has one."""
    extra: DistributionName | None = None
    """An extra that brings the other components at versions the publisher chose."""
    remote: str | None = None
    """Public git repository."""
    precompile: list[ModuleName] = Field(default_factory=list)
    """Modules, or `module:attribute`, whose import loads what probes will load."""
    requires: list[DistributionName] = Field(default_factory=list)
    """Distributions that a git tree needs to be imported."""
    default: str | None = None
    """Installed where `system` is asked for and the runner's image has none."""
    versions: Annotated[list[Version], Field(alias="version")] = Field(default_factory=list)

    @field_validator("remote")
    @classmethod
    def _remote_is_https(cls, remote: str | None) -> str | None:
        if remote is not None and (not remote.startswith("https://") or "@" in remote):
            raise ValueError("a public git repository is named by its https address, no user in it")
        return remote

    @model_validator(mode="after")
    def _git_has_a_remote(self) -> Component:
        if self.kind == "git" and self.remote is None:
            raise ValueError("a git component needs its public remote")
        return self

    @property
    def roots(self) -> tuple[str, ...]:
        """Folders of a git tree that are imported; everything else in it may be left out."""
        return (self.module.partition(".")[0],) if self.module else ()

    def is_revision(self, version: str) -> bool:
        """Whether a version of this component is a git revision rather than a release."""
        return self.kind == "git" and _SHA.fullmatch(version) is not None


def check_version(component: Component, version: str) -> str | None:
    """What is wrong with a version's form, or None."""
    if version == SYSTEM:
        if component.kind in ("torch", "cudnn", "image"):
            return None
        return f"{component.name} is installed for each stack, not taken from the runner's image"
    if version == NONE:
        may_lack = component.kind in ("cudnn", "image")
        return None if may_lack else f"{component.name} can't be left out"
    if version == WITH_TORCH and component.kind == "cudnn":
        return None
    if component.is_revision(version):
        return None
    if component.kind == "git" and re.fullmatch(r"[0-9a-f]{7,64}", version):
        return f"{version!r} is not a full commit SHA (40 hexadecimal digits)"
    try:
        # One stack has one id, so a version is written in one way.
        if str(Pep440(version)) != version:
            return f"{version!r} is written {str(Pep440(version))!r}"
    except InvalidVersion:
        kinds = "a release number or a full commit SHA" if component.kind == "git" else "a version"
        return f"{version!r} is not {kinds}"
    return None


class Catalogue(Model):
    """The file `components.toml`."""

    component: list[Component]


def load_components(rooms: Rooms) -> dict[str, Component]:
    """Every component, by name, in the catalogue's order.

    Raises:
        DataError: the file is missing, malformed or inconsistent.
    """
    path = rooms.catalogue / "components.toml"
    shown = rooms.shown(path)
    try:
        file = Catalogue.model_validate(read_toml(path, shown))
    except ValidationError as error:
        raise DataError(f"{shown} does not fit the catalogue's form:\n{explain(error)}") from None
    components: dict[str, Component] = {}
    for component in file.component:
        if component.name in components:
            raise DataError(f"{shown}: component {component.name!r} is listed twice. Remove one.")
        for version in component.versions:
            problem = check_version(component, version.version)
            if problem is not None:
                raise DataError(f"{shown}: {component.name}, {version.version!r}: {problem}.")
        components[component.name] = component
    return components
