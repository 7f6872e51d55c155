"""What is known of each patch: its data, its life, and stacks with it beside stacks without it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matrix.site.by_version import cell_of, version_of
from matrix.site.derived import Compared, PatchView, WithPatch
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
                    _with(id_, stack, stacks)
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


def _with(patch: str, stack: StackView, stacks: Sequence[StackView]) -> WithPatch:
    others = [(p.id, p.head) for p in stack.patches if p.id != patch]
    without = next(
        (
            other
            for other in stacks
            if other.runs
            and [(p.id, p.head) for p in other.patches] == others
            and all(
                version_of(other, choice.component) == choice.version
                for choice in (*stack.components,)
            )
            and all(
                version_of(stack, choice.component) == choice.version for choice in other.components
            )
        ),
        None,
    )
    if without is None:
        return WithPatch(stack=stack.id, without=None, same=0, differs=[])
    compared = [
        (before, after)
        for after in stack.cells
        if (before := cell_of(without, after.probe)) and before.counted and after.counted
    ]
    differs = [
        Compared(
            probe=after.probe,
            before=before.status,
            before_reason=before.reason,
            after=after.status,
            after_reason=after.reason,
        )
        for before, after in compared
        if (before.status, before.reason) != (after.status, after.reason)
    ]
    return WithPatch(
        stack=stack.id, without=without.id, same=len(compared) - len(differs), differs=differs
    )
