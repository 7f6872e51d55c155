"""The evidence record: what one run of one cell showed on one machine. Schema 1.

A record is written once and never edited. Whatever readers are told is derived from records.
"""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from matrix.models import Model
from matrix.reasons import Status, status_of

SCHEMA = 1

Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Detail = Annotated[str, StringConstraints(max_length=1000)]
Number = bool | int | float | str | None


class Run(Model):
    """One execution."""

    id: Annotated[str, StringConstraints(pattern=r"^\d{8}T\d{6}Z-[0-9a-f]{8}$")]
    started: AwareDatetime
    """UTC."""
    seconds: float = Field(ge=0)
    """Wall time of the probe's process, start to end."""


class Machine(Model):
    """Where it ran. Nothing here identifies a person or a network address."""

    name: Slug
    gpu: str | None
    sm: str | None
    """Compute capability as upstreams write it: `sm90`."""
    driver: str | None
    cuda: str | None
    """The newest CUDA version the driver supports."""
    torch_cuda: str | None
    """The CUDA version torch was built for; None for a CPU build."""
    python: str
    """Python of the tested environment."""
    cpu: str
    kernel: str


class Loaded(Model):
    """What a process really had of one component."""

    version: str | None = None
    file: str | None = None
    """The module's file, relative to the environment, image or tree it came from."""
    sha256: str | None = None
    origin: str | None = None
    """environment, image or tree."""
    notes: dict[str, Number] = Field(default_factory=dict)


class Source(Model):
    """A git component: the revision asked for and the tree that ran."""

    revision: str
    tree: str


class Patch(Model):
    """A candidate pull request as applied."""

    id: str
    head: str
    result: str


class Contradiction(Model):
    """A published requirement that the stack goes against on purpose."""

    claim: str
    asked: str


class StackFacts(Model):
    """The stack as requested, as resolved to a lock, and as the process loaded it."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]
    requested: dict[str, str]
    resolved: dict[str, str]
    """Every package of the lock, components and what they need."""
    loaded: dict[str, Loaded]
    source: dict[str, Source] = Field(default_factory=dict)
    patches: list[Patch] = Field(default_factory=list)
    absent: dict[str, str] = Field(default_factory=dict)
    """Components this machine could not provide, with the `miss` reason."""
    provided: list[str] = Field(default_factory=list)
    """Components taken from the machine's own image."""
    contradicted: list[Contradiction] = Field(default_factory=list)
    lock: str | None = None
    """sha256 of the lock, which is kept beside the record as `lock--<first 16 digits>.txt`."""


class ProbeFacts(Model):
    """Which question was put, in which version and with which inputs."""

    id: Slug
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    parameters: dict[str, Number | list[Number]]


class Part(Model):
    """One check within a run."""

    name: str
    status: Status
    reason: str | None = None
    detail: Detail | None = None
    measure: dict[str, Number] = Field(default_factory=dict)


class Control(Model):
    """A deliberately wrong answer, and whether the probe's own check caught it."""

    name: str
    failed: bool
    """True when the check failed on the wrong answer, as it must."""
    detail: Detail | None = None


class Record(Model):
    """One run of one cell on one machine."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    run: Run
    machine: Machine
    stack: StackFacts
    probe: ProbeFacts
    status: Status
    reason: str | None = None
    detail: Detail | None = None
    measure: dict[str, Number] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)
    control: list[Control] = Field(default_factory=list)

    @model_validator(mode="after")
    def _reason_fits_status(self) -> Record:
        if self.status == "pass" and self.reason is not None:
            raise ValueError("a passing run has no reason")
        if self.status != "pass" and self.reason is None:
            raise ValueError(f"a run with status {self.status} needs a reason")
        if self.reason is not None and status_of(self.reason) != self.status:
            raise ValueError(f"reason {self.reason!r} does not belong to status {self.status!r}")
        return self

    @model_validator(mode="after")
    def _pass_means_every_check_passed(self) -> Record:
        if self.status == "pass":
            if any(part.status not in ("pass", "skip") for part in self.parts):
                raise ValueError("a passing run has a part that did not pass")
            if any(not control.failed for control in self.control):
                raise ValueError("a passing run has a control that was not caught")
        return self


def new_run_id(now: dt.datetime) -> str:
    """A run's id: its start to the second, so that files sort by time, and 32 random bits."""
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
