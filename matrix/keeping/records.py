"""The evidence record: what one run of one cell showed on one machine. Schema 1.

A record is written once and never edited. Whatever readers are told is derived from records.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints, model_validator

from matrix.keeping.reasons import Status, status_of
from matrix.models import Model, Slug
from matrix.stacks import stack_id
from matrix.versions import same_version

Text = Annotated[str, StringConstraints(max_length=1000)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Number = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Text | None


class Run(Model):
    """One execution."""

    id: Annotated[str, StringConstraints(pattern=r"^\d{8}T\d{6}Z-[0-9a-f]{8}$")]
    started: AwareDatetime
    """UTC, to the second."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """Wall time of the probe's process, start to end; 0 when none was started."""

    @model_validator(mode="after")
    def _id_tells_the_start(self) -> Run:
        if self.started.utcoffset() != dt.timedelta(0) or self.started.year < 2020:
            raise ValueError("a run's start is a time in UTC, from 2020 on")
        if not self.id.startswith(f"{self.started:%Y%m%dT%H%M%SZ}-"):
            raise ValueError("the id and the start of a run differ")
        return self


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
    platform: str | None = None
    """Such as linux-x86_64; the same GPU architecture exists beside other processors."""
    network: Literal["none", "host"] | None = None
    """What network the probe could reach; `host` where this system does not let it be taken away,
    and for processes on several nodes, which talk over it.
    None in records from before this was noted."""


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

    claim: Text
    asked: Text


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
    lock: Digest | None = None
    """sha256 of the lock, which is kept beside the record as `lock--<first 16 digits>.txt`."""

    @model_validator(mode="after")
    def _is_what_its_id_says(self) -> StackFacts:
        patches = tuple((patch.id, patch.head) for patch in self.patches)
        if self.id != stack_id(self.requested, patches):
            raise ValueError("the stack's id is not that of the requested versions")
        return self


class ProbeFacts(Model):
    """Which question was put, in which version and with which inputs."""

    id: Slug
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    parameters: dict[str, Number | list[Number]]


class Part(Model):
    """One check within a run."""

    name: Name
    status: Status
    reason: str | None = None
    detail: Text | None = None
    measure: dict[Name, Number] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _reason_fits_status(self) -> Part:
        check_reason("part", self.status, self.reason)
        return self


class Control(Model):
    """A deliberately wrong answer, and whether the probe's own check caught it."""

    name: Name
    failed: bool
    """True when the check failed on the wrong answer, as it must."""
    detail: Text | None = None


class Record(Model):
    """One run of one cell on one machine."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    run: Run
    machine: Machine
    stack: StackFacts
    probe: ProbeFacts
    status: Status
    reason: str | None = None
    detail: Text | None = None
    measure: dict[Name, Number] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)
    control: list[Control] = Field(default_factory=list)

    @model_validator(mode="after")
    def _reason_fits_status(self) -> Record:
        check_reason("run", self.status, self.reason)
        return self

    @model_validator(mode="after")
    def _pass_was_earned(self) -> Record:
        if self.status != "pass":
            return self
        if any(part.status not in ("pass", "skip") for part in self.parts):
            raise ValueError("a passing run has a part that did not pass")
        if not any(part.status == "pass" for part in self.parts):
            raise ValueError("a passing run has no part that passed")
        if not self.control or any(not control.failed for control in self.control):
            raise ValueError("a passing run needs controls, all of them caught")
        if self.stack.lock is None or self.run.seconds == 0:
            raise ValueError("a passing run ran, on packages from a lock")
        for patch in self.stack.patches:
            if patch.result not in APPLIED:
                raise ValueError(f"a passing run lacked patch {patch.id}: {patch.result}")
        other = other_software(self.stack.requested, self.stack.loaded)
        if other is not None:
            raise ValueError(f"a passing run had other software: {other}")
        return self


#: Results of a patch that leave it in the tree that runs.
APPLIED = frozenset({"contained", "clean", "three-way"})

_VERSION = re.compile(r"\d+(\.\w+)+(\+\S+)?")


def check_reason(what: str, status: Status, reason: str | None) -> None:
    """Whether a status and a reason go together.

    Raises:
        ValueError: they don't.
    """
    if status == "pass" and reason is not None:
        raise ValueError(f"a passing {what} has no reason")
    if status != "pass" and reason is None:
        raise ValueError(f"a {what} with status {status} needs a reason")
    if reason is not None and status_of(reason) != status:
        raise ValueError(f"reason {reason!r} does not belong to status {status!r}")


def other_software(requested: dict[str, str], loaded: dict[str, Loaded]) -> str | None:
    """The first component that was loaded in another version than the requested one, or None."""
    for name, facts in loaded.items():
        asked = requested.get(name)
        if asked is None or facts.version is None or not _VERSION.fullmatch(asked):
            continue  # a git revision, or words such as `none`; `fingerprint` looks at those
        # cuDNN's library counts in three numbers; `fingerprint` compares those.
        have = facts.version
        fits = asked.startswith(f"{have}.") if name == "nvidia-cudnn" else False
        if not fits and not same_version(asked, have):
            return f"{name} {asked} requested, {have} loaded"
    return None


def new_run_id(now: dt.datetime) -> str:
    """A run's id: its start to the second, so that files sort by time, and 32 random bits."""
    return f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
