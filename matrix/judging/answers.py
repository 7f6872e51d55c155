"""An answer to "is this combination known to work?": from the evidence alone, and pure.

A combination may leave components open. Every stack that fits is shown; where none does the answer
is unknown, and the nearest stacks are named with what differs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matrix.components import NONE, Component
from matrix.judging.cells import CellVerdict, count_of
from matrix.judging.chance import may_be_chance
from matrix.judging.claim_judging import ClaimOnStack, judge_claim
from matrix.judging.claims import Claim
from matrix.judging.explanations import PATCH, Failure
from matrix.judging.findings import StackFindings
from matrix.judging.neighbours import RANK, Neighbour, changed, nearest_of
from matrix.judging.questions import fits
from matrix.judging.staleness import Mark, stale
from matrix.judging.verdicts import StackVerdict, Verdict
from matrix.models import Model
from matrix.versions import short_version

#: How many stacks are named where none fits, or where a failure does not show.
NEAREST = 3


class Trouble(Model):
    """One failing probe of a stack."""

    probe: str
    reason: str
    words: str
    required: bool
    explanation: str | None
    """When it fails, over all stacks."""
    constraints: list[str]
    """Lines of a constraints file that keep clear of it."""
    changes: list[str]
    """The fewest changes after which the probe was seen to pass; none where its passes may be
    chance, since it passes here at times too."""
    changed_stack: str | None
    """The stack with those changes."""
    changed_runs: int = 0
    """How often it passed there."""


class ClaimLine(Model):
    """A claim that evidence has decided on a stack."""

    claim: str
    statement: str
    level: str
    outcome: str
    reason: str


class Match(Model):
    """A stack that fits the question."""

    stack: str
    versions: dict[str, str]
    patches: list[str]
    verdict: Verdict
    summary: str
    troubles: list[Trouble]
    """Required probes first."""
    marks: list[Mark]
    """Why its evidence may be stale."""
    claims: list[ClaimLine]
    """Those that are confirmed or contradicted on it."""


class Near(Model):
    """A stack that does not fit, and why."""

    stack: str
    verdict: Verdict
    differs: list[str]


class Answer(Model):
    """What the evidence says of a combination."""

    asked: dict[str, str]
    patches: list[str]
    matches: list[Match]
    nearest: list[Near]
    """Where nothing fits."""

    def lines(self) -> Iterator[str]:
        """The same for people."""
        asked = [f"{name} {version}" for name, version in self.asked.items()]
        asked += [f"with {patch}" for patch in self.patches]
        yield f"Asked: {', '.join(asked) or 'anything'}."
        if not self.matches:
            yield "Unknown: no run of such a stack."
            for near in self.nearest:
                yield f"  nearest: {near.stack}, {near.verdict}; it has {', '.join(near.differs)}"
        for match in self.matches:
            yield ""
            yield from _match_lines(match, self.asked)


def _match_lines(match: Match, asked: Mapping[str, str]) -> Iterator[str]:
    others = [_said(name, value) for name, value in match.versions.items() if name not in asked]
    others += [f"with {patch}" for patch in match.patches]
    yield f"{match.verdict.upper()}: stack {match.stack} ({', '.join(others) or 'nothing else'})"
    yield f"  {match.summary}"
    for trouble in match.troubles:
        need = "required" if trouble.required else "not required"
        yield f"  {trouble.probe} ({need}): {trouble.words}, {trouble.reason}"
        if trouble.explanation:
            yield f"    {trouble.explanation}"
        if trouble.changes:
            runs = count_of(trouble.changed_runs, "run")
            where = f"stack {trouble.changed_stack}, in {runs}"
            yield f"    passes after: {', '.join(trouble.changes)} ({where})"
        for line in trouble.constraints:
            if not line.startswith("#"):
                yield f"    constraint: {line}"
    for mark in match.marks:
        yield f"  {mark.kind}: {mark.text}"
    for claim in match.claims:
        yield f"  claim {claim.outcome}: {claim.statement} [{claim.claim}; {claim.reason}]"


@dataclass(frozen=True)
class Known:
    """All that an answer is made from."""

    findings: Mapping[str, StackFindings]
    verdicts: Mapping[str, StackVerdict]
    """By stack."""
    failures: Sequence[Failure]
    claims: Sequence[Claim]
    components: Mapping[str, Component]
    today: dt.date


def answer(asked: Mapping[str, str], patches: Sequence[str], known: Known) -> Answer:
    """What the evidence says of a combination.

    Args:
        asked: component -> version; others may be anything.
        patches: candidates that the stack must have, and no others.
        known: evidence, and what was derived from it.
    """
    tested = [stack for stack in known.findings.values() if stack.records]
    fitting = [stack for stack in tested if not _differs(stack, asked, patches)]
    matches = sorted(
        (_match(stack, known) for stack in fitting),
        key=lambda match: (RANK[match.verdict], match.stack),
    )

    def distance(stack: StackFindings) -> tuple[int, int, str]:
        verdict = known.verdicts[stack.id].verdict
        return len(_differs(stack, asked, patches)), RANK[verdict], stack.id

    nearest = [
        Near(
            stack=stack.id,
            verdict=known.verdicts[stack.id].verdict,
            differs=_differs(stack, asked, patches),
        )
        for stack in sorted(tested, key=distance)[:NEAREST]
    ]
    return Answer(
        asked=dict(asked),
        patches=list(patches),
        matches=matches,
        nearest=[] if matches else nearest,
    )


def _differs(stack: StackFindings, asked: Mapping[str, str], patches: Sequence[str]) -> list[str]:
    """What a stack has otherwise than asked."""
    other = [
        _said(name, stack.requested.get(name))
        for name, version in asked.items()
        if not fits(version, stack.requested.get(name, NONE))
    ]
    have = [id_ for id_, _ in stack.patches]
    if have != list(patches):
        other.append(f"patches {', '.join(have) or NONE}")
    return other


def _match(stack: StackFindings, known: Known) -> Match:
    verdict = known.verdicts[stack.id]
    failing = [cell for cell in verdict.cells if cell.failed and cell.probe in stack.cells]
    troubles = []
    for cell in sorted(failing, key=lambda cell: not cell.required):
        why = next(
            (f for f in known.failures if (f.probe, f.reason) == (cell.probe, cell.reason)), None
        )
        mended = _where_mended(stack, cell, known)
        new = mended.point if mended is not None else {}
        troubles.append(
            Trouble(
                probe=cell.probe,
                reason=cell.reason or "no reason",
                words=cell.words,
                required=cell.required,
                explanation=why.text if why is not None else None,
                constraints=why.constraints if why is not None else [],
                changes=[_said(n, new.get(n)) for n in changed(_choices(stack), new) if mended],
                changed_stack=mended.stack if mended is not None else None,
                changed_runs=mended.runs if mended is not None else 0,
            )
        )
    return Match(
        stack=stack.id,
        versions=dict(stack.requested),
        patches=[id_ for id_, _ in stack.patches],
        verdict=verdict.verdict,
        summary=verdict.summary,
        troubles=troubles,
        marks=stale(stack.requested, verdict.newest, known.components, known.today),
        claims=[
            _claim_line(claim, found)
            for claim in known.claims
            for found in [judge_claim(claim, stack, known.components)]
            if found.outcome in ("confirmed", "contradicted")
        ],
    )


def _claim_line(claim: Claim, found: ClaimOnStack) -> ClaimLine:
    return ClaimLine(
        claim=claim.id,
        statement=claim.statement,
        level=claim.level,
        outcome=found.outcome,
        reason=found.reason,
    )


def _where_mended(stack: StackFindings, cell: CellVerdict, known: Known) -> Neighbour | None:
    """The nearest stack that passes a probe, and not by chance alone."""
    passing = (
        Neighbour(other.id, _choices(other), known.verdicts[other.id].verdict, there.counted)
        for other in known.findings.values()
        if (there := other.cells.get(cell.probe)) is not None
        and there.status == "pass"
        and there.revision == cell.revision
        and not may_be_chance(cell.failed, cell.counted, there.counted)
    )
    return nearest_of(_choices(stack), passing, known.components)


def _choices(stack: StackFindings) -> dict[str, str]:
    return {**stack.requested, **{f"{PATCH}{id_}": head for id_, head in stack.patches}}


def _said(name: str, value: str | None) -> str:
    if name.startswith(PATCH):
        return f"{'without' if value is None else 'with'} {name}"
    return f"{name} {short_version(value) if value else NONE}"
