"""Commands about data: nothing is built, run or written."""

from __future__ import annotations

import datetime as dt

import click

from matrix.errors import DataError
from matrix.rooms import Rooms


@click.command()
@click.pass_obj
def lint(rooms: Rooms) -> None:
    """Check every file that holds data, by its form and against the others."""
    from matrix.data_lint import lint_data

    problems = lint_data(rooms, dt.datetime.now(dt.UTC))
    for problem in problems:
        click.echo(str(problem))
    if problems:
        number = len(problems)
        raise DataError(f"{number} problem{'' if number == 1 else 's'} in the data.")
    click.echo(
        "Catalogue, campaigns, claims, candidates and evidence fit their forms and each other."
    )
