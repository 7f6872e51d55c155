"""Forms of what is derived from stacks for the pages about one thing: a version, a patch, a day.

Part of the published data, as `published.py` is.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import HttpUrl

from matrix.judging.claim_judging import Overall
from matrix.judging.verdicts import CellStatus, Verdict
from matrix.models import Model
from patches.life import Life


class Break(Model):
    """A probe that fails in stacks which have something in common."""

    probe: str
    required: bool
    failing: list[str]
    """Stacks in which it fails, all of the time or some of it."""
    passing: list[str]
    """Stacks in which every counted run passed."""
    reasons: list[str]


class VersionView(Model):
    """A version of a component, and what is known of it."""

    version: str
    short: str
    link: HttpUrl | None = None
    date: dt.date | None = None
    """When it was released or committed, where somebody wrote that down."""
    reason: str | None = None
    """Why the catalogue names it; None where it does not."""
    source: HttpUrl | None = None
    """Where the reason was read."""
    stacks: list[str]
    """Stacks that have it."""
    breaks: list[Break]


class Dot(Model):
    """A stack's answer to one probe."""

    stack: str
    title: str
    status: CellStatus
    reason: str | None
    failed: int
    counted: int


class DotColumn(Model):
    """The answers of every stack with one version."""

    version: str
    short: str
    dots: list[Dot]


class DotStrip(Model):
    """A probe's answers, over the versions of one component, oldest first."""

    component: str
    columns: list[DotColumn]
    turns: str | None = None
    """The first version from which on every stack passes, where every stack before it fails, and
    chance does not explain it."""


class ProbeChangeView(Model):
    """What one difference between two stacks does to a probe."""

    probe: str
    change: str
    """fixed, broken, changed reason, flaky, or the same with other measures."""
    why: str | None
    before: CellStatus
    before_words: str
    after: CellStatus
    after_words: str
    one_machine: bool
    """Whether no machine but one ran both sides."""
    measures: list[str]
    """Measures that differ by more than the noise."""


class ComparisonView(Model):
    """Two stacks that differ in exactly one component or one patch."""

    kind: Literal["component", "patch"]
    what: str
    """The component, or the patch."""
    before: str
    """Stack: the older version, or without the patch."""
    after: str
    before_version: str
    after_version: str
    counts: dict[str, int]
    """How many probes there are of each kind of change; `unknown` where one side did not run."""
    changes: list[ProbeChangeView]
    """Only probes that answer otherwise, or measure otherwise."""


class PatchView(Model):
    """A candidate change."""

    id: str
    short: str
    title: str
    reason: str | None
    claims: str | None
    state: str
    component: str | None
    target: str | None
    head: str
    seen: dt.date | None
    """When these facts were read."""
    notes: list[str]
    links: list[HttpUrl]
    probes: list[str]
    """Probes whose answer it may change."""
    call_sites: list[str]
    listed: bool
    """Whether it is a candidate of the project; else only evidence knows it."""
    stacks: list[str]
    """Stacks with it that ran."""
    life: Life | None = None
    """What became of it on each of `bases`, where somebody looked."""


class Cause(Model):
    """A cell that changed."""

    probe: str
    before: CellStatus
    after: CellStatus
    reason: str | None


class Change(Model):
    """What the evidence of one day changed for one stack."""

    day: dt.date
    stack: str
    title: str
    before: Verdict | None
    """None for the first evidence of a stack."""
    after: Verdict
    summary: str
    causes: list[Cause]


class PairTally(Model):
    """Two components, and how many pairs of their versions ran together."""

    one: str
    other: str
    seen: int
    possible: int


class Pair(Model):
    """Two versions that never ran together."""

    one: str
    one_version: str
    other: str
    other_version: str


class Proposal(Model):
    """A stack that would show many pairs at once."""

    components: dict[str, str]
    pairs: int
    """Pairs that it would show for the first time, after the proposals before it."""
    nearest: str
    """The tested stack that differs least from it."""
    differs: list[str]
    """The components in which it does."""


class Coverage(Model):
    """Pairs of versions, seen and unseen."""

    seen: int
    possible: int
    tallies: list[PairTally]
    missing: list[Pair]
    proposals: list[Proposal]


class Symptom(Model):
    """An error of a report, and what the evidence has of it."""

    reason: str
    where: str
    runs: int
    """Counted runs of the probes that ask for it, on the report's stack."""
    seen_here: list[str]
    """Probes that failed with this reason on the report's stack."""
    seen_elsewhere: list[str]
    """Other stacks in which a probe did."""
    upper: float | None = None
    """Highest rate per run that these runs allow at 95 % confidence, where none showed it."""


class Mended(Model):
    """A probe that fails on the report's stack, and where it passes."""

    probe: str
    required: bool
    reason: str | None
    failed: int
    counted: int
    since: dict[str, str]
    """Component -> first version from which on every stack passes, every one before failing."""
    nearest: str | None
    """The stack that passes and differs least; None too where all passes may be chance."""
    differs: list[str]
    passed: int
    """How often it passed there."""


class Reported(Model):
    """The questions of a report, answered from the evidence of its stack."""

    id: str
    title: str
    link: HttpUrl
    stack: str
    verdict: Verdict
    differs: dict[str, list[str]]
    """Component -> version of the report and tested version, where they are not the same."""
    symptoms: list[Symptom]
    fails: list[Mended]
    better: str | None
    """The stack with a better verdict that differs least; of several the one with more runs."""
    better_differs: list[str]
    candidates: list[str]
    """Patches that the report asks about."""
    record: list[str]
    """What a record of this project holds that the report could not tell."""


class ClaimAnswer(Model):
    """A claim on one stack of which it speaks."""

    stack: str
    outcome: str
    """confirmed, contradicted or untested."""
    reason: str
    runs_for: list[str]
    runs_against: list[str]


class ClaimView(Model):
    """A dated statement of an upstream, and what the evidence says of it."""

    id: str
    statement: str
    """In our words."""
    contradiction: str
    """What would contradict it."""
    level: str
    """hard: fails; risk: may strike; warn: against a published requirement; info: worth knowing."""
    basis: str
    """Where it was read: thread, repository, package, or our inference."""
    date: dt.date
    links: list[HttpUrl]
    components: list[str]
    patches: list[str]
    probes: list[str]
    outcome: Overall
    meaning: str
    summary: str
    stacks: list[ClaimAnswer]
