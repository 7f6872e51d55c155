"""A campaign's command line, carried out on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from matrix.commands.cluster_options import task_arguments
from matrix.errors import MatrixError
from matrix.planning.plan import Plan
from matrix.reporting.reports import Reports
from matrix.rooms import Rooms
from matrix.running.slurm import SlurmCampaign, carry_out
from matrix.running.slurm_jobs import SlurmSettings, with_options
from matrix.visible import visible


def run_on_cluster(
    *,
    context: click.Context,
    rooms: Rooms,
    settings: SlurmSettings,
    options: Mapping[str, Any],
    identity: list[str],
    plan: Plan,
    reports: Reports,
    screen: Console,
) -> list[str] | None:
    """Carry out a campaign on a cluster.

    Args:
        context: the command line.
        rooms: the project folder.
        settings: the settings file's table.
        options: what `cluster_options` gave.
        identity: files and revisions: with others of them it is another campaign.
        plan: what this machine would do.
        reports: who is told.
        screen: where sentences for people go.

    Returns:
        What could not be finished; None when nobody waits for the end.

    Raises:
        DataError: this is no place to submit from, or a value has the wrong form.
        MatrixError: Slurm refuses or does not answer, or somebody stopped waiting.
    """

    def say(text: str) -> None:
        screen.print(Text(visible(text)), soft_wrap=True)

    if plan.gpu is not None and all(cell.state == "done" for cell in plan.cells):
        say("Every cell is done; nothing is submitted.")
        return []
    campaign = SlurmCampaign(
        rooms, with_options(settings, options), task_arguments(context), identity
    )
    wait = not options["no_wait"]
    with reports.cluster() as followers:
        try:
            unfinished = carry_out(campaign, followers, say, wait=wait)
        except KeyboardInterrupt:
            raise MatrixError("stopped. What was submitted goes on.") from None
        followers.ended(unfinished)
    return unfinished if wait else None
