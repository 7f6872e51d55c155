"""Commands about campaigns that run nothing."""

from __future__ import annotations

import click

from matrix.errors import DataError
from matrix.rooms import Rooms
from matrix.visible import visible


@click.group()
def campaigns() -> None:
    """Look at campaigns; nothing is run."""


@campaigns.command("lint")
@click.argument("names", nargs=-1)
@click.pass_obj
def lint_campaigns(rooms: Rooms, names: tuple[str, ...]) -> None:
    """Check campaigns, and say what their rules remove and what can never be tested."""
    from matrix.components import load_components
    from matrix.planning.campaign_lint import lint
    from matrix.planning.campaigns import load_campaign
    from matrix.probe_specs import load_probe_specs
    from patches.candidates import load_candidates

    components = load_components(rooms)
    specs = load_probe_specs(rooms)
    candidates = load_candidates(rooms.candidates)
    wrong = []
    for name in names or sorted(path.stem for path in rooms.campaigns.glob("*.toml")):
        try:
            campaign = load_campaign(rooms, name, components, specs)
        except DataError as error:
            # Every file is looked at before the command ends.
            wrong.append(str(error))
            continue
        for line in lint(campaign, components, candidates).lines():
            click.echo(visible(line))
    if wrong:
        raise DataError("\n".join(wrong))
