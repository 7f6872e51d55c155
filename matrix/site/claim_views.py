"""Claims of upstreams for readers: each with what the evidence says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matrix.components import Component
from matrix.judging.claim_judging import OUTCOME_MEANING, Overall, judge_claims
from matrix.judging.claims import Claim
from matrix.judging.findings import StackFindings
from matrix.site.derived import ClaimAnswer, ClaimView

#: What readers should see first.
_ORDER: Final[tuple[Overall, ...]] = (
    "contradicted",
    "disputed",
    "confirmed",
    "untested",
    "not applicable",
)


def claim_views(
    claims: Sequence[Claim],
    findings: Mapping[str, StackFindings],
    components: Mapping[str, Component],
) -> list[ClaimView]:
    """Every claim, contradicted ones first, then in the catalogue's order."""
    by_id = {claim.id: claim for claim in claims}
    views = []
    for verdict in judge_claims(claims, findings, components):
        claim = by_id[verdict.claim]
        views.append(
            ClaimView(
                id=claim.id,
                statement=claim.statement,
                contradiction=claim.contradiction,
                level=claim.level,
                basis=claim.basis,
                date=claim.date,
                links=list(claim.links),
                components=sorted(
                    {*claim.when.versions, *claim.when.revisions, *claim.when.published}
                ),
                patches=sorted({*claim.when.with_patches, *claim.when.without_patches}),
                probes=sorted({e.probe for e in claim.expect if hasattr(e, "probe")}),
                outcome=verdict.outcome,
                meaning=OUTCOME_MEANING[verdict.outcome],
                summary=verdict.summary,
                stacks=[
                    ClaimAnswer(
                        stack=one.stack,
                        outcome=one.outcome,
                        reason=one.reason,
                        runs_for=one.runs_for,
                        runs_against=one.runs_against,
                    )
                    for one in verdict.stacks
                    if one.outcome != "not applicable"
                ],
            )
        )
    return sorted(views, key=lambda view: _ORDER.index(view.outcome))
