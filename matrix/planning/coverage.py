"""Pairs of versions: which have been seen together, and which never can be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matrix.planning.layout import Layout
    from matrix.planning.space import Row
    from matrix.probe_specs import ProbeSpec

#: (component, version); an optional patch counts as a component that is `with` or `without`.
Choice = tuple[str, str]
#: Two choices of different components, in the campaign's order of axes.
Pair = tuple[Choice, Choice]

#: Reasons of a stack that can't be put together: asked, and yet nothing was seen together.
CONFLICTS = frozenset({"resolve:conflict", "patch:conflict", "patch:unsafe"})


class Entry(Protocol):
    """What is asked of a record; `matrix.keeping.ledger` has them in short."""

    @property
    def stack(self) -> str: ...
    @property
    def probe(self) -> str: ...
    @property
    def sanitize(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str | None: ...
    @property
    def lacked(self) -> tuple[str, ...]: ...


class Recorded(Protocol):
    """What a stack of the evidence consists of."""

    @property
    def requested(self) -> Mapping[str, str]: ...
    @property
    def patches(self) -> Sequence[tuple[str, str]]: ...


class Evidence(Protocol):
    """All evidence in short."""

    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def stacks(self) -> Mapping[str, Recorded]: ...


@dataclass(frozen=True)
class Seen:
    """What the evidence says of a campaign's space."""

    rows: Mapping[str, Row]
    """The row of each stack of the space that has evidence, by stack id, sorted."""
    answered: Mapping[str, frozenset[str]]
    """By probe, gates aside: ids of the stacks that gave it an answer."""
    refused: frozenset[str] = frozenset()
    """Ids of stacks that could not be put together, and gave no answer."""

    @property
    def asked(self) -> list[Row]:
        """Rows that need no planning: they gave an answer, or can't be put together."""
        told = self.refused.union(*self.answered.values())
        return list(dict.fromkeys(row for id_, row in self.rows.items() if id_ in told))

    def told(self) -> frozenset[str]:
        """Ids of stacks that gave some probe an answer."""
        return frozenset().union(*self.answered.values())


@dataclass(frozen=True)
class PairCoverage:
    """All pairs of a campaign's versions, each in one of the first two sets."""

    allowed: frozenset[Pair]
    never: frozenset[Pair]
    """The rules let no stack have both."""
    seen: frozenset[Pair]
    """Allowed, and in a stack that gave some probe an answer."""
    refused: frozenset[Pair]
    """Allowed, and met only in stacks that could not be put together."""
    planned: frozenset[Pair]
    """Allowed, and in a stack of the plan."""

    @property
    def unplanned(self) -> frozenset[Pair]:
        """Allowed, and in no stack of the plan or the evidence."""
        return self.allowed - self.seen - self.planned


def look(
    layout: Layout,
    evidence: Evidence,
    specs: Mapping[str, ProbeSpec],
    heads: Mapping[str, str],
) -> Seen:
    """Which stacks of a campaign's space have evidence.

    A run counts that passed or failed with nothing lacking. A stack with another head of a
    candidate than the one its file names now is another stack.

    Args:
        layout: the campaign's axes.
        evidence: all that there is.
        specs: the probes that exist; health probes are put to machines, and tell nothing here.
        heads: the head of each candidate that has been seen, by id.
    """
    rows: dict[str, Row] = {}
    for id_, stack in sorted(evidence.stacks.items()):
        if any(head != heads.get(patch) for patch, head in stack.patches):
            continue
        row = layout.row_of(stack.requested, [patch for patch, _ in stack.patches])
        if row is not None:
            rows[id_] = row
    answered: dict[str, set[str]] = {}
    refused: set[str] = set()
    for entry in evidence.entries:
        spec = specs.get(entry.probe)
        if entry.stack not in rows or spec is None or spec.group == "health":
            continue
        if spec.group == "gate":
            if entry.status == "fail" and entry.reason in CONFLICTS:
                refused.add(entry.stack)
        elif entry.status in ("pass", "fail") and not entry.lacked and not entry.sanitize:
            answered.setdefault(entry.probe, set()).add(entry.stack)
    told = set().union(*answered.values())
    return Seen(
        rows=rows,
        answered={probe: frozenset(stacks) for probe, stacks in sorted(answered.items())},
        refused=frozenset(refused - told),
    )


def pair_coverage(layout: Layout, seen: Seen, planned: Iterable[Row]) -> PairCoverage:
    """Where each pair of a campaign's versions stands."""
    allowed = frozenset(map(layout.pair, layout.space.tuples(2)))
    shown = _pairs(layout, (seen.rows[id_] for id_ in seen.told())) & allowed
    return PairCoverage(
        allowed=allowed,
        never=frozenset(map(layout.pair, layout.space.all_tuples(2))) - allowed,
        seen=shown,
        refused=(_pairs(layout, (seen.rows[id_] for id_ in seen.refused)) & allowed) - shown,
        planned=_pairs(layout, planned) & allowed,
    )


def seen_by_probe(layout: Layout, seen: Seen) -> dict[str, frozenset[Pair]]:
    """The pairs that each probe has seen together."""
    return {
        probe: _pairs(layout, (seen.rows[id_] for id_ in stacks))
        for probe, stacks in seen.answered.items()
    }


def _pairs(layout: Layout, rows: Iterable[Row]) -> frozenset[Pair]:
    return frozenset().union(*map(layout.pairs, rows))
