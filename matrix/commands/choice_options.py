"""Options that choose among a campaign's cells, and what they say."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace

import click

from matrix.keeping.ledger import Ledger
from matrix.planning.budget import Spending, parse_budget
from matrix.planning.choosing import Chosen
from matrix.planning.offers import budgeted
from matrix.planning.plan import Plan
from matrix.planning.sharding import in_shard, parse_shard
from matrix.probe_specs import ProbeSpec
from matrix.reporting.pace import shown_seconds
from patches.candidates import Candidate

#: Of what a budget leaves out, so many stacks are named.
_NAMED = 6


def choice_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which of a campaign's cells run here."""
    for option in (
        click.option(
            "--list-jobs",
            is_flag=True,
            help="Print jobs that together run the campaign, as JSON for a CI service.",
        ),
        click.option("--shard", metavar="N/M", help="Only this part of the stacks, such as 3/16."),
        click.option(
            "--budget", metavar="TIME", help="Only what decides most in this time: 90s, 25m, 2h."
        ),
    ):
        command = option(command)
    return command


def sharded(chosen: Chosen, shard: str | None) -> Chosen:
    """The stacks of one part.

    Raises:
        DataError: it is no part.
    """
    if shard is None:
        return chosen
    whole = len(chosen.campaign.stacks)
    campaign = in_shard(chosen.campaign, parse_shard(shard))
    line = f"Part {shard}: {len(campaign.stacks)} of {whole} stacks."
    return replace(chosen, campaign=campaign, lines=(*chosen.lines, line))


def within_budget(
    plan: Plan,
    budget: str | None,
    *,
    chosen: Chosen,
    evidence: Ledger,
    probes: Mapping[str, ProbeSpec],
    candidates: Mapping[str, Candidate],
) -> tuple[Plan, list[str]]:
    """The plan that a budget leaves, and what a person should know of it.

    Raises:
        DataError: the budget is no time.
    """
    if budget is None:
        return plan, []
    less, spending = budgeted(
        plan,
        budget_s=parse_budget(budget),
        entries=evidence.entries,
        specs=probes,
        candidates=candidates,
        now=dt.datetime.now(dt.UTC),
        layout=chosen.layout,
        seen=chosen.seen,
    )
    return less, told(budget, spending, {stack.id: stack.name for stack in plan.stacks()})


def told(budget: str, spending: Spending, names: Mapping[str, str]) -> list[str]:
    """What a budget buys and leaves out, in lines for people."""
    lines = [
        f"Budget {budget}: {_count(len(spending.cells), 'cell')} of "
        f"{_count(len(spending.stacks), 'stack')}, about {shown_seconds(spending.seconds)}."
    ]
    if spending.left_out:
        left = list(dict.fromkeys(names.get(stack, stack) for stack, _ in spending.left_out))
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        lines.append(
            f"Left out: {_count(len(spending.left_out), 'cell')} of "
            f"{', '.join(left[:_NAMED])}{more}."
        )
    if spending.pairs_allowed:
        lines.append(
            f"Pairs of versions seen together: {spending.pairs_before} of "
            f"{spending.pairs_allowed} now, {spending.pairs_after} when all of this has answered."
        )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
