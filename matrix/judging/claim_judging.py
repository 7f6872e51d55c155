"""What the evidence says of a claim on each stack. Pure.

Evidence confirms or contradicts; where there is none, or it speaks of something else, a claim is
untested. A failure that was seen weighs more than passes beside it, as everywhere here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from matrix.components import NONE, Component
from matrix.judging.cells import count_of
from matrix.judging.claims import (
    ANY,
    Claim,
    Expectation,
    LockExpectation,
    MeasureExpectation,
    RunExpectation,
    When,
)
from matrix.judging.findings import StackFindings
from matrix.keeping.records import Number, Part, Record
from matrix.models import Model

Outcome = Literal["confirmed", "contradicted", "untested", "not applicable"]
Overall = Literal["confirmed", "contradicted", "disputed", "untested", "not applicable"]

OUTCOME_MEANING: dict[Overall, str] = {
    "confirmed": "runs show what the claim says",
    "contradicted": "runs show otherwise",
    "disputed": "confirmed on some stacks and contradicted on others",
    "untested": "the claim speaks of this stack, and no run tells",
    "not applicable": "the claim does not speak of this stack",
}

#: What one run says of one expectation: it shows it, denies it, lacks what may come at times, or
#: says nothing.
_Says = Literal["shows", "denies", "lacks", "nothing"]


class ClaimOnStack(Model):
    """What is known of one claim on one stack."""

    claim: str
    stack: str
    outcome: Outcome
    reason: str
    """One line."""
    runs_for: list[str]
    """Ids of the runs that show it, newest first."""
    runs_against: list[str]
    """Ids of the runs that deny it."""
    older_probe: bool
    """Whether a probe behind it has changed since: its answer of today may be another."""


class ClaimVerdict(Model):
    """One claim over all stacks."""

    claim: str
    outcome: Overall
    summary: str
    """One line."""
    counts: dict[Outcome, int]
    """How many stacks there are of each outcome."""
    stacks: list[ClaimOnStack]
    """In the order of the stacks' ids."""


def judge_claims(
    claims: Iterable[Claim],
    findings: Mapping[str, StackFindings],
    components: Mapping[str, Component],
) -> list[ClaimVerdict]:
    """Every claim, put to every stack."""
    return [_over_stacks(claim, findings, components) for claim in claims]


def _over_stacks(
    claim: Claim, findings: Mapping[str, StackFindings], components: Mapping[str, Component]
) -> ClaimVerdict:
    judged = [judge_claim(claim, stack, components) for stack in findings.values()]
    counts = Counter(found.outcome for found in judged)
    overall: Overall = "not applicable"
    if counts["confirmed"] and counts["contradicted"]:
        overall = "disputed"
    elif counts["contradicted"]:
        overall = "contradicted"
    elif counts["confirmed"]:
        overall = "confirmed"
    elif counts["untested"]:
        overall = "untested"
    listed = ", ".join(
        f"{outcome} on {counts[outcome]}"
        for outcome in ("confirmed", "contradicted", "untested", "not applicable")
        if counts[outcome]
    )
    return ClaimVerdict(
        claim=claim.id,
        outcome=overall,
        summary=f"{listed} of {count_of(len(judged), 'stack')}" if judged else "no stack is known",
        counts=dict(counts),
        stacks=judged,
    )


def judge_claim(
    claim: Claim, stack: StackFindings, components: Mapping[str, Component]
) -> ClaimOnStack:
    """One claim on one stack."""
    asked = [e.probe for e in claim.expect if not isinstance(e, LockExpectation)]
    older = any(stack.cells[probe].probe_changed for probe in asked if probe in stack.cells)

    def found(
        outcome: Outcome,
        reason: str,
        runs_for: Sequence[str] = (),
        runs_against: Sequence[str] = (),
    ) -> ClaimOnStack:
        return ClaimOnStack(
            claim=claim.id,
            stack=stack.id,
            outcome=outcome,
            reason=reason,
            runs_for=sorted(set(runs_for), reverse=True),
            runs_against=sorted(set(runs_against), reverse=True),
            older_probe=older and bool(runs_for or runs_against),
        )

    other = _speaks_of_another(claim.when, stack, components)
    if other is not None:
        return found("not applicable", other)
    if not claim.expect:
        return found("untested", "no probe can tell")
    looks = [_Look(expectation, claim.when, stack) for expectation in claim.expect]
    shown = [run for look in looks for run in look.shows]
    denied = [run for look in looks for run in look.denies]
    reason = "; ".join(dict.fromkeys(look.words for look in looks))
    if any(look.outcome == "contradicted" for look in looks):
        return found("contradicted", reason, shown, denied)
    if any(look.outcome == "confirmed" for look in looks):
        return found("confirmed", reason, shown, denied)
    return found("untested", reason)


def _speaks_of_another(
    when: When, stack: StackFindings, components: Mapping[str, Component]
) -> str | None:
    """Why a claim does not speak of a stack, or None when it does."""
    for name, wanted in when.versions.items():
        have = stack.requested.get(name)
        if not _version_fits(have, wanted):
            return f"{name} {wanted} is meant; this stack has {have or NONE}"
    for name, revisions in when.revisions.items():
        if stack.requested.get(name) not in revisions:
            return f"other revisions of {name} are meant"
    for name, published in when.published.items():
        have = stack.requested.get(name)
        date = next(
            (v.date for v in components[name].versions if v.version == have and v.date), None
        )
        if date is None:
            return f"when {name} {have or NONE} was published is unknown"
        if (published.since and date < published.since) or (
            published.until and date > published.until
        ):
            return f"{name} {have} was published on {date}, outside the dates that are meant"
    applied = {patch for patch, _ in stack.patches}
    for patch in when.with_patches:
        if patch not in applied:
            return f"{patch} is not applied"
    for patch in when.without_patches:
        if patch in applied:
            return f"{patch} is applied"
    return None


def _version_fits(have: str | None, wanted: str) -> bool:
    if wanted == NONE:
        return have is None
    if have is None:
        return False
    if wanted == ANY:
        return True
    try:
        return SpecifierSet(wanted).contains(Version(have), prereleases=True)
    except InvalidVersion:
        return False


def _meant(when: When, record: Record) -> bool:
    """Whether a claim speaks of this run, as far as its machine and its lock go."""
    machine, lock = record.machine, record.stack.resolved
    if not all(_version_fits(lock.get(name), wanted) for name, wanted in when.locked.items()):
        return False
    if when.sm and machine.sm not in when.sm:
        return False
    if when.python is not None and not _version_fits(machine.python, when.python):
        return False
    return when.torch_cuda is None or _version_fits(machine.torch_cuda, when.torch_cuda)


class _Look:
    """One expectation, looked for in the runs of one stack."""

    def __init__(self, expectation: Expectation, when: When, stack: StackFindings) -> None:
        self.shows: list[str] = []
        self.denies: list[str] = []
        lacking = 0
        if isinstance(expectation, LockExpectation):
            what = f"the lock has {expectation.package}"
            runs = [r for r in stack.records.values() if r.status == "pass" and r.stack.lock]
        else:
            parts = f" ({expectation.part})" if expectation.part else ""
            what = f"{expectation.probe}{parts}: {_expected(expectation)}"
            runs = stack.telling(expectation.probe)
        meant = [run for run in runs if _meant(when, run)]
        for run in meant:
            match _says(expectation, run):
                case "shows":
                    self.shows.append(run.run.id)
                case "denies":
                    self.denies.append(run.run.id)
                case "lacks":
                    lacking += 1
                case "nothing":
                    pass
        self.outcome = self._outcome(expectation)
        self.words = self._words(what, len(meant), lacking)

    def _outcome(self, expectation: Expectation) -> Outcome:
        # Of a failure one sight is enough, of a pass one failure is too much.
        failure = isinstance(expectation, RunExpectation) and expectation.status == "fail"
        if failure and self.shows:
            return "confirmed"
        if self.denies:
            return "contradicted"
        return "confirmed" if self.shows else "untested"

    def _words(self, what: str, meant: int, lacking: int) -> str:
        if self.shows or self.denies:
            shown, of = len(self.shows), len(self.shows) + len(self.denies) + lacking
            return f"{what}, in {shown} of {count_of(of, 'run')}"
        if lacking:
            return f"{what}, not seen in {count_of(lacking, 'run')}, which excludes nothing"
        if meant:
            return f"{what}: {count_of(meant, 'run')} ended otherwise and can't tell"
        return f"{what}: no run tells"


def _expected(expectation: RunExpectation | MeasureExpectation) -> str:
    if isinstance(expectation, RunExpectation):
        reasons = " or ".join(expectation.reasons)
        if expectation.status == "pass":
            return f"no {reasons}" if reasons else "pass"
        return f"{expectation.status} {reasons}".strip()
    if expectation.at_least is not None:
        return f"{expectation.measure} >= {expectation.at_least:g}"
    if expectation.at_most is not None:
        return f"{expectation.measure} <= {expectation.at_most:g}"
    return f"{expectation.measure} = {expectation.equals}"


def _says(expectation: Expectation, record: Record) -> _Says:
    if isinstance(expectation, LockExpectation):
        have = record.stack.resolved.get(expectation.package)
        return "shows" if _version_fits(have, expectation.versions) else "denies"
    asked: Sequence[Record | Part] = [record]
    if expectation.part is not None:
        asked = [part for part in record.parts if fnmatchcase(part.name, expectation.part)]
    if isinstance(expectation, RunExpectation):
        said = [_status_says(expectation, one) for one in asked]
    else:
        values = [one.measure.get(expectation.measure) for one in asked]
        said = [_measure_says(expectation, value) for value in values if value is not None]
    # Of many parts one that fails as foretold is enough; that all pass needs all.
    first: Sequence[_Says] = ("shows", "denies", "lacks")
    if not (isinstance(expectation, RunExpectation) and expectation.status == "fail"):
        first = ("denies", "shows")
    return next((says for says in first if says in said), "nothing")


def _status_says(expectation: RunExpectation, one: Record | Part) -> _Says:
    fits = not expectation.reasons or any(
        fnmatchcase(one.reason or "", reason) for reason in expectation.reasons
    )
    match expectation.status:
        case "pass" if one.status == "fail":
            return "denies" if fits else "nothing"
        case "fail" | "skip" if one.status == expectation.status:
            return "shows" if fits else "nothing"
        case "pass" if one.status == "pass":
            return "shows"
        case "skip" if one.status == "pass":
            return "denies"
        case "fail" if one.status == "pass":
            return "denies" if expectation.each_time else "lacks"
        case _:
            return "nothing"


def _measure_says(expectation: MeasureExpectation, value: Number) -> _Says:
    if expectation.equals is not None:
        return "shows" if value == expectation.equals else "denies"
    if isinstance(value, bool | str) or value is None:
        return "nothing"
    if expectation.at_least is not None:
        return "shows" if value >= expectation.at_least else "denies"
    assert expectation.at_most is not None  # noqa: S101 - the model allows exactly one bound
    return "shows" if value <= expectation.at_most else "denies"
