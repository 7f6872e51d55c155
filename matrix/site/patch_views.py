"""What is known of each patch: its data, its life, and the stacks that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matrix.site.derived import PatchView
from matrix.site.published import StackView
from matrix.site.table import patch_short
from patches.candidates import Candidate
from patches.life import Lives


def patch_views(
    candidates: Mapping[str, Candidate], stacks: Sequence[StackView], lives: Lives | None
) -> list[PatchView]:
    """Every candidate, and every patch that only evidence knows."""
    life = {one.id: one for one in lives.candidates} if lives else {}
    heads = {patch.id: patch.head for stack in stacks for patch in stack.patches}
    views = []
    for id_ in [*candidates, *sorted(set(heads) - set(candidates))]:
        candidate = candidates.get(id_)
        views.append(
            PatchView(
                id=id_,
                short=candidate.shown if candidate else patch_short(id_),
                title=candidate.title if candidate else "A patch that is no candidate here",
                reason=candidate.reason if candidate else None,
                claims=candidate.claims if candidate else None,
                state=candidate.state if candidate else "unknown",
                component=candidate.component if candidate else None,
                target=candidate.target if candidate else None,
                head=candidate.head if candidate else heads[id_],
                seen=candidate.seen if candidate else None,
                notes=list(candidate.notes) if candidate else [],
                links=list(candidate.links) if candidate else [],
                probes=list(candidate.probes) if candidate else [],
                call_sites=list(candidate.call_sites) if candidate else [],
                listed=candidate is not None,
                stacks=[
                    stack.id
                    for stack in stacks
                    if stack.runs and any(patch.id == id_ for patch in stack.patches)
                ],
                # What was found for another head says nothing of this one.
                life=life[id_]
                if id_ in life and candidate and _same_head(life, candidate)
                else None,
            )
        )
    return views


def _same_head(life: Mapping[str, object], candidate: Candidate) -> bool:
    return bool(getattr(life[candidate.id], "head", None) == candidate.head)
