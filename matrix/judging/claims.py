"""Claims: what upstreams state, dated and with a rule that evidence can confirm or contradict.

A claim never becomes true by itself, and never by the absence of evidence. `claim_judging.py` puts
claims to stacks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, Field, HttpUrl, ValidationError, model_validator

from matrix.components import NONE, Component, check_version
from matrix.errors import DataError
from matrix.keeping.records import Name, Number
from matrix.models import Model, Slug, explain, read_toml
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms

#: `hard`: fails. `risk`: a documented defect that may strike. `warn`: against a published
#: requirement. `info`: worth knowing.
Level = Literal["hard", "risk", "warn", "info"]

#: Where the statement was read. `inference` is ours, from the others.
Basis = Literal["thread", "repository", "package", "inference"]

ANY = "any"


def _specifier(text: str) -> str:
    if text in (NONE, ANY):
        return text
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is no version specifier such as '>=1.24.0,<=1.28.0'") from None
    return text


#: PEP 440 specifiers.
Specifiers = Annotated[str, AfterValidator(_specifier)]


class Published(Model):
    """A range of publication dates, both ends included."""

    since: dt.date | None = None
    until: dt.date | None = None


class When(Model):
    """Which stacks, and which runs of them, a claim speaks of: all that is said must hold."""

    versions: dict[Slug, Specifiers] = Field(default_factory=dict)
    """Component -> PEP 440 specifiers; `none` for a stack without it, `any` for one with it."""
    revisions: dict[Slug, list[str]] = Field(default_factory=dict)
    """Git component -> the revisions that the claim is known to speak of."""
    published: dict[Slug, Published] = Field(default_factory=dict)
    """Component -> when its version was published, by the catalogue's dates."""
    with_patches: list[Slug] = Field(default_factory=list)
    without_patches: list[Slug] = Field(default_factory=list)
    sm: list[Slug] = Field(default_factory=list)
    """GPU architectures of the runs; any when empty."""
    python: Specifiers | None = None
    """Python of the runs."""
    torch_cuda: Specifiers | None = None
    """CUDA release that the torch of the runs was built for."""
    locked: dict[Name, Specifiers] = Field(default_factory=dict)
    """Package -> specifiers that hold for the version in the lock of the runs."""


class RunExpectation(Model):
    """How a probe, or parts of it, should end."""

    probe: Slug
    part: Name | None = None
    """Names of parts, with `*` for any characters; None is the run as a whole."""
    status: Literal["pass", "fail", "skip"]
    reasons: list[Name] = Field(default_factory=list)
    """Of a failure or skip, with `*`; all when empty. For `pass`: the failures that contradict."""
    each_time: bool = False
    """For `fail`: whether it must happen in every run. If not, its absence contradicts nothing."""

    @model_validator(mode="after")
    def _only_failures_recur(self) -> RunExpectation:
        if self.each_time and self.status != "fail":
            raise ValueError("`each_time` is said of failures; a pass is meant each time anyway")
        return self


class MeasureExpectation(Model):
    """What a probe should measure."""

    probe: Slug
    part: Name | None = None
    """Names of parts, with `*`; None is a measure of the run as a whole."""
    measure: Name
    equals: Number = None
    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _one_bound(self) -> MeasureExpectation:
        if sum(x is not None for x in (self.equals, self.at_least, self.at_most)) != 1:
            raise ValueError("a measure needs one of `equals`, `at_least`, `at_most`")
        return self


class LockExpectation(Model):
    """What installing the stack should bring along."""

    package: Name
    versions: Specifiers
    """Specifiers that hold for the locked version; `none` where the lock should lack it."""


Expectation = RunExpectation | MeasureExpectation | LockExpectation


class Claim(Model):
    """One statement."""

    id: Slug
    statement: Annotated[str, Field(min_length=1, max_length=600)]
    """In our words."""
    links: Annotated[list[HttpUrl], Field(min_length=1)]
    """Where it is stated."""
    date: dt.date
    """When it was stated, or published."""
    level: Level
    basis: Basis
    when: When = When()
    expect: list[Expectation] = Field(default_factory=list)
    """Each is looked for; none where no probe of ours can tell."""
    contradiction: Annotated[str, Field(min_length=1, max_length=600)]
    """What would contradict it."""


class Incidents(Model):
    """How often the reported failure struck: what a soak has to stay clean of."""

    statement: str
    link: HttpUrl
    date: dt.date
    incidents_count: int = Field(gt=0)
    gpu_steps_count: int = Field(gt=0)
    """Training steps times GPUs over all runs of the report whose length it states."""


class Claims(Model):
    """The file `claims.toml`."""

    reported: Incidents | None = None
    claims: Annotated[list[Claim], Field(alias="claim")] = Field(default_factory=list)


def load_claims(
    rooms: Rooms, components: Mapping[str, Component], specs: Mapping[str, ProbeSpec]
) -> Claims:
    """Every claim, in the file's order; none where the file is not there.

    Raises:
        DataError: the file is malformed, or names a component or probe that does not exist.
    """
    path = rooms.catalogue / "claims.toml"
    if not path.exists():
        return Claims()
    shown = rooms.shown(path)
    try:
        file = Claims.model_validate(read_toml(path, shown))
    except ValidationError as error:
        raise DataError(f"{shown} does not fit the form of claims:\n{explain(error)}") from None
    seen: set[str] = set()
    for claim in file.claims:
        if claim.id in seen:
            raise DataError(f"{shown}: claim {claim.id!r} is there twice. Rename or remove one.")
        seen.add(claim.id)
        problem = _problem(claim, components, specs)
        if problem is not None:
            raise DataError(f"{shown}: claim {claim.id!r}: {problem}")
    return file


def _problem(
    claim: Claim, components: Mapping[str, Component], specs: Mapping[str, ProbeSpec]
) -> str | None:
    when = claim.when
    for name in (*when.versions, *when.revisions, *when.published):
        if name not in components:
            return f"unknown component {name!r}. Known components: {', '.join(components)}."
    for name, revisions in when.revisions.items():
        if components[name].kind != "git":
            return f"{name} has no revisions; say `versions`."
        for revision in revisions:
            wrong = check_version(components[name], revision)
            if wrong is not None:
                return f"{name}: {wrong}."
    for expectation in claim.expect:
        if isinstance(expectation, LockExpectation):
            continue
        if expectation.probe not in specs:
            known = ", ".join(specs)
            return f"unknown probe {expectation.probe!r}. Known probes: {known}."
    return None
