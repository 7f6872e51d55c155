"""A campaign with the stacks that its strategy chooses in view of the evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matrix.components import Component
from matrix.keeping.ledger import Ledger
from matrix.keeping.store import Store
from matrix.planning.bisect_runs import progress
from matrix.planning.campaign_forms import Campaign
from matrix.planning.coverage import Seen, look
from matrix.planning.layout import Layout
from matrix.planning.strategies import STRENGTH, covering_stacks
from matrix.probe_specs import ProbeSpec
from matrix.rooms import Rooms
from patches.candidates import UNKNOWN, Candidate, load_candidates


@dataclass(frozen=True)
class Chosen:
    """A campaign with every stack that it runs now."""

    campaign: Campaign
    layout: Layout | None = None
    """Its axes, where it has a reference."""
    seen: Seen | None = None
    """What evidence says of them."""
    again: bool = False
    """Whether stacks are to be run once more that have been run: a flaky probe is bisected."""
    lines: tuple[str, ...] = ()
    """What a person should know of the choice."""


def choose(
    rooms: Rooms,
    campaign: Campaign,
    components: Mapping[str, Component],
    specs: Mapping[str, ProbeSpec],
    evidence: Ledger,
) -> Chosen:
    """Choose a campaign's stacks.

    Stacks that have evidence already, under whatever name and on whatever machine, are part of a
    covering campaign: what they show is not planned a second time. A bisection has the stacks that
    come next, and none once it has its answer.

    Args:
        rooms: where candidates and records are.
        campaign: as `load_campaign` gives it.
        components: the catalogue.
        specs: the probes that exist.
        evidence: all that there is.

    Raises:
        DataError: a candidate's file, or a record that a bisection needs, is wrong.
    """
    if campaign.reference is None:
        return Chosen(campaign)
    candidates = load_candidates(rooms.candidates)
    layout = Layout(campaign, components, candidates)
    seen = look(layout, evidence, specs, heads_of(candidates))
    if campaign.strategy in STRENGTH:
        stacks = covering_stacks(layout, STRENGTH[campaign.strategy], seen.asked)
        return Chosen(campaign.model_copy(update={"stacks": stacks}), layout, seen)
    if campaign.strategy == "bisect":
        store = Store(rooms)
        found = progress(
            layout,
            components=components,
            specs=specs,
            seen=seen,
            entries=evidence.entries,
            read=lambda path: store.read_at(rooms.evidence / path),
        )
        return Chosen(found.campaign, layout, seen, found.again, found.lines)
    return Chosen(campaign, layout, seen)


def heads_of(candidates: Mapping[str, Candidate]) -> dict[str, str]:
    """The head of each candidate that has been seen.

    A patch file has none before it is read; stacks with one are planned each time anew.
    """
    return {id_: c.head for id_, c in candidates.items() if c.head != UNKNOWN}
