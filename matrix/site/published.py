"""The published data: everything the pages show, in one versioned file.

A public form of its own, apart from evidence records and from what the verdicts work with: those
may change without breaking whoever reads `api/v1/matrix.json`. Within version 1 fields are added,
never renamed or removed.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final, Literal

from pydantic import Field, HttpUrl

from matrix.indented import indented
from matrix.judging.explanations import Failure
from matrix.judging.staleness import Mark
from matrix.judging.strength import Strength
from matrix.judging.verdicts import CellVerdict, Note, Verdict
from matrix.keeping.records import Control, Number, Part
from matrix.models import Model
from matrix.parallel import in_processes
from matrix.site.derived import (
    Change,
    ClaimView,
    ComparisonView,
    Coverage,
    DotStrip,
    PatchView,
    Reported,
    VersionView,
)
from patches.bases import Base

#: Below the site's root.
MATRIX_FILE = "api/v1/matrix.json"


class Word(Model):
    """A word that the table uses, with a sign so that colour is never needed to tell it."""

    id: str
    label: str
    sign: str
    meaning: str


class Reason(Model):
    """A reason that a run can give for not passing."""

    id: str
    status: str
    meaning: str


class ComponentView(Model):
    """A column of the table."""

    name: str
    title: str
    short: str
    kind: str
    reason: str
    link: HttpUrl
    names: list[str] = Field(default_factory=list)
    """What tools call it, in small letters: package names, and words of reports."""
    versions: list[VersionView] = Field(default_factory=list)
    """Newest first."""


class ProbeView(Model):
    """A question, and how it is answered."""

    id: str
    code: str = ""
    """Two signs that stand for it where there is no room."""
    question: str
    method: list[str]
    """Paragraphs."""
    required: bool
    group: str | None
    gpu: str | None
    """The GPU architecture it needs."""
    gpus: int = 1
    """How many such GPUs it needs, if any."""
    needs: list[str]
    revision: str | None
    retired: bool
    """Whether the probe is no longer in the project; its evidence is still shown."""
    time_limit_s: float | None = None
    parameters: dict[str, dict[str, Number | list[Number]]] = Field(default_factory=dict)
    """Parameter settings by name."""
    controls: list[str] = Field(default_factory=list)
    """Deliberately wrong answers that its runs show to its own check."""
    strips: list[DotStrip] = Field(default_factory=list)
    """Its answers over the versions of each component that has several."""


class MachineView(Model):
    """A machine as its newest run describes it."""

    name: str
    gpu: str | None
    sm: str | None
    driver: str | None
    cuda: str | None
    cpu: str
    kernel: str
    runs: int
    newest: dt.datetime


class NameView(Model):
    """What a campaign calls a stack, and why it is there."""

    campaign: str
    name: str
    reason: str
    link: HttpUrl | None
    patches: list[str] = Field(default_factory=list)
    """Candidates that the campaign puts onto it, in order."""


class Choice(Model):
    """The version of one component that a stack asks for."""

    component: str
    version: str
    short: str
    """The version as a narrow column shows it."""
    link: HttpUrl | None
    """Where a git revision can be read."""


class PatchChoice(Model):
    """A candidate change, pinned to its head."""

    id: str
    head: str


class BuildRow(Model):
    """One component as requested, as resolved to a lock and as processes loaded it."""

    component: str
    requested: str
    resolved: str | None
    tree: str | None
    """The git tree that ran, for a git component."""
    loaded: str | None
    """The version the software gives of itself."""
    origin: str | None
    """environment, image or tree."""
    file: str | None
    sha256: str | None
    also: list[str]
    """Other versions or hashes that processes of the same build reported; none is expected."""
    notes: dict[str, Number]
    absent: str | None
    """Why the machine could not provide it."""


class Build(Model):
    """A stack as built on one machine from one lock."""

    machine: str
    gpu: str | None
    sm: str | None
    driver: str | None
    cuda: str | None
    torch_cuda: str | None
    python: str
    runs: int
    newest: dt.datetime
    packages: int
    """Packages in the lock."""
    lock: str | None
    """The lock, below the evidence folder."""
    rows: list[BuildRow]
    patches: list[dict[str, str]]


class PartTally(Model):
    """One check within a cell's counted runs."""

    name: str
    passed: int
    failed: int
    other: int


class Example(Model):
    """One run in detail."""

    why: Literal["newest run", "newest counted run", "newest failure"]
    run: str
    machine: str
    started: dt.datetime
    status: str
    reason: str | None
    detail: str | None
    parameters: dict[str, Number | list[Number]]
    measure: dict[str, Number]
    parts: list[Part]
    control: list[Control]
    file: str


class CellView(CellVerdict):
    """A cell's verdict with what its runs checked."""

    parts: list[PartTally]
    examples: list[Example]


class ContradictionView(Model):
    """A published requirement that the stack goes against on purpose."""

    claim: str
    asked: str


class StackView(Model):
    """A row of the table and a page of its own."""

    id: str
    title: str
    page: str
    """Below the site's root."""
    names: list[NameView]
    repeat: str | None
    """The command that runs it, when a campaign names it."""
    campaign_entry: list[str]
    """Lines that would name it in a campaign, when none does."""
    verdict: Verdict
    summary: str
    probe: str | None
    reason: str | None
    missing: list[str]
    notes: list[Note]
    strength: Strength | None
    weakest: str | None
    marks: list[Mark] = Field(default_factory=list)
    """That its evidence is old, or that a newer release of a part exists. Replaces no verdict."""
    newest: dt.datetime | None
    runs: int
    machines: list[str]
    components: list[Choice]
    patches: list[PatchChoice]
    contradicted: list[ContradictionView]
    builds: list[Build]
    cells: list[CellView]


class EvidenceFolders(Model):
    """Where the files named in `file` and `lock` are."""

    repository: str
    published: str
    """Beside this file."""


class Matrix(Model):
    """Everything the site shows."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: str
    data_date: dt.datetime | None
    """Start of the newest run; no page holds any other date."""
    runs: int
    evidence: EvidenceFolders
    verdicts: list[Word]
    statuses: list[Word]
    reasons: list[Reason]
    components: list[ComponentView]
    probes: list[ProbeView]
    machines: list[MachineView]
    stacks: list[StackView]
    patches: list[PatchView] = Field(default_factory=list)
    bases: list[Base] = Field(default_factory=list)
    """Revisions that patches were put onto in memory, oldest first."""
    changes: list[Change] = Field(default_factory=list)
    """What changed in support, newest first."""
    coverage: Coverage | None = None
    claims: list[ClaimView] = Field(default_factory=list)
    """Statements of upstreams, contradicted ones first."""
    failures: list[Failure] = Field(default_factory=list)
    """For each probe and reason: the smallest condition over versions that the evidence allows."""
    comparisons: list[ComparisonView] = Field(default_factory=list)
    """Pairs of stacks that differ in one thing."""
    reports: list[Reported] = Field(default_factory=list)
    citation: str = ""
    """One line for whoever uses the data."""
    as_of: dt.date | None = None
    """Where only evidence up to a day was taken: that day."""


#: From so many on, starting processes is the smaller part of writing them.
MANY_STACKS: Final = 200


def to_text(matrix: Matrix) -> str:
    """The published file."""
    stacks = matrix.stacks
    if len(stacks) < MANY_STACKS:
        return json_text(matrix)

    def written(number: int) -> str:
        # A new line is never within a string, so that is all there is to writing it further in.
        return json_text(stacks[number]).strip().replace("\n", "\n  ")

    # Nearly all of it is stacks: each processor writes a share of them.
    inner = ",\n  ".join(in_processes(written, range(len(stacks))))
    rest = json_text(matrix.model_copy(update={"stacks": []}))
    head, tail = rest.split('\n "stacks": []', 1)
    return f'{head}\n "stacks": [\n  {inner}\n ]{tail}'


def json_text(model: Model) -> str:
    """A published form as it stands in its file."""
    return _dump(model.model_dump(mode="json", by_alias=True))


def from_text(text: str) -> Matrix:
    """The published file, read back: pages see what a reader of the file sees, and no more."""
    return Matrix.model_validate_json(text)


def schema_text(model: type[Model]) -> str:
    """The JSON Schema of a published form."""
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    return _dump({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def _dump(data: dict[str, Any]) -> str:
    return indented(data) + "\n"
