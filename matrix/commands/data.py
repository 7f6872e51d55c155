"""Commands about data: nothing is built, run or written."""

from __future__ import annotations

import datetime as dt
from typing import TextIO

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


@click.command()
@click.argument("given", nargs=-1, metavar="[NAME=VERSION]...")
@click.option(
    "--freeze",
    type=click.File(encoding="utf-8"),
    help="A list of packages, as `pip freeze` prints it; - for standard input.",
)
@click.option("--patch", "patches", multiple=True, help="Candidate (id or number); repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_obj
def ask(
    rooms: Rooms,
    *,
    given: tuple[str, ...],
    freeze: TextIO | None,
    patches: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what the evidence knows of a combination: `fe=1.26.0 dsl=4.5.2`."""
    from matrix.components import load_components
    from matrix.judging.answers import Known, answer
    from matrix.judging.claims import load_claims
    from matrix.judging.explanations import explain_failures
    from matrix.judging.findings import find
    from matrix.judging.questions import given_versions
    from matrix.judging.verdicts import judge
    from matrix.keeping.store import Store
    from matrix.probe_specs import load_probe_specs
    from matrix.visible import visible
    from patches.candidates import Patching

    components, specs = load_components(rooms), load_probe_specs(rooms)
    listed = given_versions(freeze.read().splitlines() if freeze else (), components, strict=False)
    asked = {**listed, **given_versions(given, components)}
    if not asked and not patches:
        raise DataError("Name at least one component: fe=1.26.0, or --freeze FILE.")
    git = [name for name, part in components.items() if part.kind == "git"]
    wanted = [pin.id for pin in Patching(rooms.candidates, git).chosen(patches)]
    records = [record for _, record in Store(rooms).records()]
    findings = find(records, specs)
    known = Known(
        findings=findings,
        verdicts={verdict.stack: verdict for verdict in judge(records, specs)},
        failures=explain_failures(findings, specs, components),
        claims=load_claims(rooms, components, specs).claims,
        components=components,
        today=dt.datetime.now(dt.UTC).date(),
    )
    found = answer(asked, wanted, known)
    if as_json:
        click.echo(found.model_dump_json(indent=1))
        return
    for line in found.lines():
        click.echo(visible(line))
