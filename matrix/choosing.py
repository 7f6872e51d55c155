"""A campaign with the stacks that its strategy chooses in view of the evidence."""

from __future__ import annotations

from collections.abc import Mapping

from matrix.campaign_forms import Campaign
from matrix.components import Component
from matrix.coverage import Evidence, Seen, look
from matrix.layout import Layout
from matrix.probe_specs import ProbeSpec
from matrix.strategies import STRENGTH, covering_stacks
from patches.candidates import UNKNOWN, Candidate


def with_chosen_stacks(
    campaign: Campaign,
    components: Mapping[str, Component],
    candidates: Mapping[str, Candidate],
    evidence: Evidence,
    specs: Mapping[str, ProbeSpec],
) -> Campaign:
    """The campaign with every stack that it runs now.

    Stacks that have evidence already, under whatever name and on whatever machine, are part of a
    covering campaign: what they show is not planned a second time.

    Args:
        campaign: as `load_campaign` gives it.
        components: the catalogue.
        candidates: what there is to put onto a stack.
        evidence: all that there is.
        specs: the probes that exist.
    """
    if campaign.strategy not in STRENGTH:
        return campaign
    layout = Layout(campaign, components, candidates)
    seen = seen_of(layout, evidence, specs, candidates)
    stacks = covering_stacks(layout, STRENGTH[campaign.strategy], seen.asked)
    return campaign.model_copy(update={"stacks": stacks})


def seen_of(
    layout: Layout,
    evidence: Evidence,
    specs: Mapping[str, ProbeSpec],
    candidates: Mapping[str, Candidate],
) -> Seen:
    """Which stacks of a campaign's space have evidence.

    A patch file has no head before it is read; stacks with one are planned each time anew.
    """
    heads = {id_: c.head for id_, c in candidates.items() if c.head != UNKNOWN}
    return look(layout, evidence, specs, heads)
