"""The command line behind the nox sessions."""

from __future__ import annotations

import datetime as dt
import shutil
import signal
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from matrix.building.machine import default_name, find_gpu, find_gpus
from matrix.commands.campaigns import campaigns
from matrix.commands.choice_options import choice_options
from matrix.commands.cluster_options import cluster_options, only_with_slurm, task_arguments
from matrix.commands.data import ask, lint
from matrix.commands.patches import patches
from matrix.components import load_components
from matrix.errors import DataError, MatrixError, Unavailable
from matrix.probe_specs import gates_of, load_probe_specs
from matrix.rooms import Rooms
from matrix.running.exclusive import campaign_of
from matrix.settings import Settings, load_settings, override, source_pairs
from matrix.visible import visible, visible_lines

if TYPE_CHECKING:
    from matrix.keeping.store import Store
    from matrix.planning.plan import Plan

ROOT = Path(__file__).resolve().parents[2]


class _Group(click.Group):
    """Turns our errors into one clear message and an exit status, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MatrixError as error:
            click.echo(f"error: {visible_lines(str(error))}", err=True)
            ctx.exit(error.exit_status)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=ROOT,
    help="Project folder; this checkout by default.",
)
@click.pass_context
def cli(ctx: click.Context, root: Path) -> None:
    """Which combinations of upstream versions work, with evidence."""
    if shutil.which("git") is None:
        raise DataError("git is not on the PATH. Install it: sources are fetched with it.")
    ctx.obj = Rooms(root.resolve())


def machine_options(command: Callable[..., None]) -> Callable[..., None]:
    """What every command that runs probes takes: how this machine provides things."""
    for option in reversed(
        [
            click.option("--python", help="Python of tested environments: a version or path."),
            click.option(
                "--wheelhouse",
                type=click.Path(path_type=Path),
                help="Folder of wheels to use; nothing is asked of any package index.",
            ),
            click.option(
                "--source",
                "sources",
                multiple=True,
                metavar="COMPONENT=PATH",
                help="Local mirror, or another address, of a git component; repeatable.",
            ),
            click.option("--machine", help="This machine's name in evidence."),
            click.option(
                "--patch",
                "patches",
                multiple=True,
                help="Candidate (id or number) or patch file, put onto its component; repeatable.",
            ),
        ]
    ):
        command = option(command)
    return command


def report_options(command: Callable[..., None]) -> Callable[..., None]:
    """Who is told of a campaign besides the person at the terminal."""
    for option in (
        click.option(
            "--junit",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Write a JUnit XML report when the campaign ends or is stopped.",
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Write one JSON object a line for programs; the rest goes to standard error.",
        ),
    ):
        command = option(command)
    return command


@cli.command()
@click.option("--campaign", default="default", show_default=True, help="Which campaign to run.")
@click.option("--plan", "plan_only", is_flag=True, help="Show what would run, and run nothing.")
@click.option("--stack", "stacks", multiple=True, help="Only this stack (name or id); repeatable.")
@click.option("--probe", "only", multiple=True, help="Only this probe; repeatable.")
@click.option("--again", is_flag=True, help="Run cells once more that are done already.")
@machine_options
@click.option("--setting", help="Parameter setting of the probes: quick or thorough.")
@click.option("--width", type=click.IntRange(min=1), help="How many probes run side by side.")
@click.option("--sanitize", help="Run probes under this tool of compute-sanitizer: memcheck.")
@report_options
@cluster_options
@choice_options
@click.pass_obj
def run(
    rooms: Rooms,
    /,
    *,
    campaign: str,
    plan_only: bool,
    stacks: tuple[str, ...],
    only: tuple[str, ...],
    again: bool,
    python: str | None,
    wheelhouse: Path | None,
    sources: tuple[str, ...],
    machine: str | None,
    patches: tuple[str, ...],
    setting: str | None,
    width: int | None,
    sanitize: str | None,
    as_json: bool,
    junit: Path | None,
    budget: str | None,
    shard: str | None,
    list_jobs: bool,
    executor: str,
    **cluster: Any,
) -> None:
    """Run a campaign: what is done already is not done again."""
    from matrix.building.here import Here
    from matrix.building.pip_settings import ask_ahead
    from matrix.commands.choice_options import sharded, within_budget
    from matrix.commands.clusters import run_on_cluster
    from matrix.judging.verdicts import judge
    from matrix.keeping.ledger import Ledger
    from matrix.keeping.store import Store
    from matrix.planning.budget import parse_budget
    from matrix.planning.campaigns import load_campaign
    from matrix.planning.choosing import choose
    from matrix.planning.plan import Choices, check_choices, make_plan
    from matrix.planning.sharding import job_matrix, job_text, only_stacks
    from matrix.reporting.reports import Reports
    from matrix.reporting.terminal import console, show_pace, show_plan, show_table
    from matrix.running.engine import Engine
    from matrix.running.sanitizer import find_sanitizer
    from patches.candidates import load_candidates

    if executor != "slurm" and (asked := only_with_slurm(click.get_current_context())):
        raise click.UsageError(f"{', '.join(asked)}: only with --executor slurm.")
    if list_jobs and executor == "slurm":
        raise click.UsageError("--list-jobs: jobs of a CI service, so without --executor slurm.")
    gpus = find_gpus()
    gpu = gpus[0] if gpus else None
    if gpu is None and not list_jobs:
        ask_ahead()
    components = load_components(rooms)
    probes = load_probe_specs(rooms)
    loaded = load_campaign(rooms, campaign, components, probes)
    settings = _settings(rooms, machine, python, wheelhouse, sources)
    store = Store(rooms)
    evidence = Ledger(rooms, gates_of(probes))
    whole = loaded
    chosen = sharded(choose(rooms, whole, components, probes, evidence), shard)
    loaded = chosen.campaign
    choices = Choices(stacks, only, again or chosen.again, setting, sanitize, patches)
    seconds = parse_budget(budget) if budget else None
    if list_jobs:
        check_choices(loaded, probes, choices)
        # Where packages and sources are, and what the machine is called, is for each runner to say.
        but = ("campaign", "stacks", "wheelhouse", "sources", "machine")
        options = task_arguments(click.get_current_context(), *but)
        some = only_stacks(loaded, stacks)
        part = shard is not None or len(some.stacks) < len(loaded.stacks)
        click.echo(job_text(job_matrix(some, options, part=part)))
        return
    plan = make_plan(
        campaign=loaded,
        here=Here(
            rooms=rooms,
            components=components,
            settings=settings,
            gpu=gpu,
            gpus=gpus,
            python=loaded.python,
        ),
        probes=probes,
        machine=settings.machine or default_name(gpu),
        evidence=evidence,
        choices=choices,
    )
    plan, bought = within_budget(
        plan,
        budget,
        chosen=chosen,
        evidence=evidence,
        probes=probes,
        candidates=load_candidates(rooms.candidates),
    )
    sanitizer = find_sanitizer(sanitize) if sanitize else None
    screen = console(errors=as_json)
    for line in (*chosen.lines, *bought):
        screen.print(visible(line), highlight=False, markup=False)
    show_plan(screen, plan, components)
    reports = Reports(screen, plan, evidence, as_json=as_json, junit=junit)
    if plan_only:
        reports.only_plan()
        return
    _stop_on_signals()
    _keep_patches(store, plan)
    result = None
    unfinished: list[str]
    if executor == "slurm":
        revisions = [f"{spec.id} {spec.revision}" for spec in probes.values()]
        files = [rooms.campaigns / f"{campaign}.toml", rooms.catalogue / "components.toml"]
        left = run_on_cluster(
            context=click.get_current_context(),
            rooms=rooms,
            settings=settings.slurm,
            options=cluster,
            identity=[*revisions, *(file.read_text(encoding="utf-8") for file in files)],
            plan=plan,
            reports=reports,
            screen=screen,
        )
        if left is None:
            return
        unfinished = left
    else:
        with campaign_of(rooms) as own_name, reports as progress:
            engine = Engine(
                plan=plan,
                rooms=rooms,
                components=components,
                probes=probes,
                store=store,
                progress=progress,
                sanitizer=sanitizer,
                campaign=own_name,
                width=width,
                # What was bought was bought on estimates; the clock has the last word.
                seconds=seconds,
            )
            try:
                result = engine.run()
                unfinished = result.unfinished
                reports.ended(unfinished)
            except KeyboardInterrupt:
                raise MatrixError(
                    "stopped. Every run that had ended is kept; the same command goes on from "
                    "there."
                ) from None
    records = [record for _, record in store.records()]
    names = {stack.id: stack.name for stack in plan.stacks()}
    requested = {stack.id: stack.requested for stack in plan.stacks()}
    for record in records:
        requested.setdefault(record.stack.id, record.stack.requested)
        ids = [patch.id for patch in record.stack.patches]
        called = loaded.name_of(record.stack.requested, ids)
        if called is not None:
            names.setdefault(record.stack.id, called)
    verdicts = judge(records, probes, planned=[stack.id for stack in plan.stacks()])
    screen.print()
    show_table(
        screen,
        names=names,
        requested=requested,
        verdicts=[verdict for verdict in verdicts if verdict.stack in names],
        components=components,
        probes=probes,
        plan=plan,
    )
    others = len(verdicts) - sum(verdict.stack in names for verdict in verdicts)
    if others:
        screen.print(f"{others} stacks of other campaigns have evidence too; the site shows all.")
    if result is not None:
        show_pace(screen, result)
    if chosen.campaign.strategy == "bisect":
        evidence = Ledger(rooms, gates_of(probes))
        for line in choose(rooms, whole, components, probes, evidence).lines:
            screen.print(visible(line), highlight=False, markup=False)
    if unfinished:
        raise MatrixError(
            "not everything that was begun could be finished:\n"
            + "\n".join(f"  {line}" for line in dict.fromkeys(unfinished))
        )


@cli.command()
@click.argument("evidence", type=click.Path(path_type=Path))
@machine_options
@click.pass_obj
def probe(
    rooms: Rooms,
    *,
    evidence: Path,
    python: str | None,
    wheelhouse: Path | None,
    sources: tuple[str, ...],
    machine: str | None,
    patches: tuple[str, ...],
) -> None:
    """Repeat the run of one evidence file exactly, and say what came out otherwise."""
    from matrix.building.here import Here
    from matrix.keeping.store import Store
    from matrix.planning.replay import differences, plan_replay
    from matrix.reporting.reporter import Reporter
    from matrix.reporting.terminal import console, show_differences
    from matrix.running.engine import Engine
    from matrix.running.sanitizer import find_sanitizer

    store = Store(rooms)
    record = store.read(evidence)
    components = load_components(rooms)
    probes = load_probe_specs(rooms)
    settings = _settings(rooms, machine, python, wheelhouse, sources)
    gpu = find_gpu()
    minor = ".".join(record.machine.python.split(".")[:2])
    plan = plan_replay(
        record,
        evidence,
        store.lock(record),
        here=Here(rooms=rooms, components=components, settings=settings, gpu=gpu, python=minor),
        components=components,
        probes=probes,
        machine=settings.machine or default_name(gpu),
        patches=patches,
    )
    tool = record.probe.parameters.get("sanitize")
    screen = console()
    _stop_on_signals()
    _keep_patches(store, plan)
    with campaign_of(rooms) as name, Reporter(screen, 1) as reporter:
        result = Engine(
            plan=plan,
            rooms=rooms,
            components=components,
            probes=probes,
            store=store,
            progress=reporter,
            campaign=name,
            sanitizer=find_sanitizer(str(tool)) if tool else None,
        ).run()
    if result.last is None:
        raise MatrixError("\n".join(result.unfinished) or "nothing was run")
    show_differences(screen, differences(record, result.last))


@cli.command()
@click.option("--campaign", default="default", show_default=True, help="Whose stacks.")
@click.option("--python", required=True, help="Python of the other machine, such as 3.12.")
@click.option(
    "--platform", required=True, help="Its platform as uv names it, such as x86_64-manylinux_2_28."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("wheelhouse"),
    show_default=True,
    help="Where the wheels go.",
)
@click.pass_obj
def wheelhouse(rooms: Rooms, campaign: str, python: str, platform: str, folder: Path) -> None:
    """Fill a folder of wheels for a machine that reaches no package index."""
    from matrix.building.wheelhouse import fill
    from matrix.keeping.ledger import Ledger
    from matrix.planning.campaigns import load_campaign
    from matrix.planning.choosing import choose

    components = load_components(rooms)
    probes = load_probe_specs(rooms)
    fill(
        rooms=rooms,
        campaign=choose(
            rooms,
            load_campaign(rooms, campaign, components, probes),
            components,
            probes,
            Ledger(rooms, gates_of(probes)),
        ).campaign,
        components=components,
        host_requirements=host_requirements(rooms),
        folder=folder.resolve(),
        python=python,
        platform=platform,
        say=click.echo,
    )


@cli.command()
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    metavar="FOLDER...",
    type=click.Path(path_type=Path, exists=True),
)
@click.pass_obj
def merge(rooms: Rooms, sources: tuple[Path, ...]) -> None:
    """Add the evidence of other machines: project folders, evidence folders, or .tar/.tgz."""
    from matrix.keeping.merging import merge as merge_evidence

    merged = merge_evidence(rooms, sources)
    for line in merged.lines():
        click.echo(line)
    if merged.problems:
        raise DataError("\n".join(merged.problems))


@cli.command()
@click.option(
    "--as-of",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Ignore evidence that started after this day (UTC).",
)
@click.pass_obj
def render(rooms: Rooms, as_of: dt.datetime | None) -> None:
    """Write the site's pages and JSON from catalogue and evidence."""
    from matrix.site import render as render_site

    written = render_site(rooms, as_of.date() if as_of is not None else None)
    click.echo(f"{len(written)} files written below {rooms.shown(rooms.docs)}.")


@cli.command("cpu-torch")
@click.pass_obj
def cpu_torch(rooms: Rooms) -> None:
    """Install a CPU build of torch beside this command, where one is on offer.

    The probes' references are tested with it. Without it those tests are skipped, and say so.
    """
    from matrix.building.interpreters import ask
    from matrix.building.torch_choice import choose_torch
    from matrix.building.uv import run_uv
    from matrix.components import SYSTEM

    interpreter = ask(sys.executable)
    if interpreter is None or interpreter.torch is not None:
        return
    try:
        choice = choose_torch(
            torch=SYSTEM,
            cudnn=SYSTEM,
            component=load_components(rooms)["torch"],
            interpreter=interpreter,
            has_gpu=False,
            wheelhouse=None,
            rooms=rooms,
        )
    except Unavailable as error:
        click.echo(f"Tests that need torch will be skipped: {error}")
        return
    answer = run_uv(
        "pip", "install", "--python", sys.executable, *choice.requirements,
        *choice.packages.arguments(),
    )  # fmt: skip
    if not answer.ok:
        raise MatrixError(f"torch could not be installed: {answer.errors}")


cli.add_command(campaigns)
cli.add_command(ask)
cli.add_command(lint)
cli.add_command(patches)


def main() -> None:
    """Entry point."""
    cli(prog_name="python -m matrix")


def host_requirements(rooms: Rooms) -> list[str]:
    """What sessions need on an offline machine, nox and uv included, from pyproject.toml."""
    path = rooms.root / "pyproject.toml"
    with path.open("rb") as file:
        groups = tomllib.load(file)["dependency-groups"]
    wanted = [line for name in ("host", "slurm", "docs", "bench") for line in groups[name]]
    return ["nox[uv]>=2025.11.12", *wanted]


def _settings(
    rooms: Rooms,
    machine: str | None,
    python: str | None,
    wheelhouse: Path | None,
    sources: tuple[str, ...],
) -> Settings:
    return override(
        load_settings(rooms),
        machine=machine,
        python=python,
        wheelhouse=wheelhouse.resolve() if wheelhouse else None,
        sources=source_pairs(sources),
    )


def _keep_patches(store: Store, plan: Plan) -> None:
    """Keep patch files beside the evidence of the stacks that are about to run with them."""
    for stack in plan.stacks():
        setup = plan.setups[stack.id]
        if setup is None or all(cell.state != "run" for cell in plan.of(stack)):
            continue
        for pin in setup.pins:
            if pin.text is not None:
                store.add_patch(plan.machine, stack.id, pin.head, pin.text)


def _stop_on_signals() -> None:
    """A polite kill ends like Ctrl-C: the running probe's process group dies with us."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        # Who kills politely often does so twice; the second would only disturb the tidying up.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
