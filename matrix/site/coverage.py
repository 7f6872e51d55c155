"""Coverage debt: versions that never ran together, and the stacks that would show most of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final

from matrix.components import SYSTEM
from matrix.site.by_version import version_of
from matrix.site.derived import Coverage, Pair, PairTally, Proposal
from matrix.site.published import StackView
from matrix.site.table import version_order

#: A page of proposals is no plan; a campaign with a budget makes one.
PROPOSALS: Final = 3

_Side = tuple[str, str]
_Pair = tuple[_Side, _Side]


def coverage_of(components: Sequence[str], stacks: Sequence[StackView]) -> Coverage:
    """Pairs of versions over the stacks; one counts as seen when a stack with runs has both.

    Where the versions of a pair exclude each other, nobody can ever see it: what evidence says of
    that is taken, and nothing else is guessed.
    """
    axes = {
        name: sorted({version_of(stack, name) for stack in stacks} - {SYSTEM}, key=version_order)
        for name in components
    }
    axes = {name: versions for name, versions in axes.items() if len(versions) > 1}
    ran = [{name: version_of(stack, name) for name in axes} for stack in stacks if stack.runs]
    seen = {pair for stack in ran for pair in _pairs(stack)}
    tallies, missing = [], []
    for one, other in combinations(axes, 2):
        possible = [((one, a), (other, b)) for a in axes[one] for b in axes[other]]
        tallies.append(
            PairTally(
                one=one,
                other=other,
                seen=sum(pair in seen for pair in possible),
                possible=len(possible),
            )
        )
        missing += [pair for pair in possible if pair not in seen]
    return Coverage(
        seen=sum(tally.seen for tally in tallies),
        possible=sum(tally.possible for tally in tallies),
        tallies=tallies,
        missing=[
            Pair(one=a[0], one_version=a[1], other=b[0], other_version=b[1]) for a, b in missing
        ],
        proposals=_proposals(axes, missing, [s for s in stacks if s.runs]),
    )


def _pairs(stack: Mapping[str, str]) -> Iterable[_Pair]:
    return combinations(stack.items(), 2)


def _proposals(
    axes: Mapping[str, Sequence[str]], missing: Sequence[_Pair], ran: Sequence[StackView]
) -> list[Proposal]:
    """Greedy: each takes the most of what is left, and of equals the one nearest to what ran."""
    left = set(missing)
    found: list[Proposal] = []
    have = [(stack, {name: version_of(stack, name) for name in axes}) for stack in ran]
    while left and ran and len(found) < PROPOSALS:
        best: tuple[int, int, tuple[str, ...]] | None = None
        for pair in sorted(left):
            chosen = _extended(axes, left, pair)
            gain = sum(p in left for p in _pairs(chosen))
            _, differs = _nearest(chosen, have)
            rank = (-gain, len(differs), tuple(chosen.values()))
            best = min(best, rank) if best else rank
        if best is None:  # pragma: no cover - `left` is not empty
            break
        chosen = dict(zip(axes, best[2], strict=True))
        nearest, differs = _nearest(chosen, have)
        shared = {
            choice.component: choice.version
            for choice in nearest.components
            if choice.component not in axes
        }
        found.append(
            Proposal(
                components={**shared, **chosen},
                pairs=-best[0],
                nearest=nearest.id,
                differs=differs,
            )
        )
        left -= set(_pairs(chosen))
    return found


def _extended(axes: Mapping[str, Sequence[str]], left: set[_Pair], pair: _Pair) -> dict[str, str]:
    """A whole stack around a pair: for each other component the version with most unseen pairs."""
    chosen = dict(pair)
    for name, versions in axes.items():
        if name in chosen:
            continue

        def gain(version: str, name: str = name) -> int:
            both = ((name, version), *chosen.items())
            order = list(axes)
            return sum(
                tuple(sorted((both[0], side), key=lambda s: order.index(s[0]))) in left
                for side in both[1:]
            )

        chosen[name] = max(versions, key=lambda version: (gain(version), version_order(version)))
    return {name: chosen[name] for name in axes}


def _nearest(
    chosen: Mapping[str, str], have: Sequence[tuple[StackView, Mapping[str, str]]]
) -> tuple[StackView, list[str]]:
    """The stack that differs least, and where it does; `have` are stacks with their versions."""

    def differs(versions: Mapping[str, str]) -> list[str]:
        return [name for name, version in chosen.items() if versions[name] != version]

    def rank(one: tuple[StackView, Mapping[str, str]]) -> tuple[int, int, str]:
        return len(differs(one[1])), len(one[0].patches), one[0].id

    nearest, versions = min(have, key=rank)
    return nearest, differs(versions)
