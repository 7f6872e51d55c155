"""What a person sees in a terminal before and after a campaign: the plan and the table."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from matrix.components import Component
from matrix.judging.legend import CELL_SIGNS, VERDICT_SIGNS
from matrix.judging.verdicts import CellVerdict, StackVerdict
from matrix.planning.plan import Cell, Plan
from matrix.planning.replay import Difference
from matrix.probe_specs import ProbeSpec
from matrix.running.cell_runs import Result
from matrix.versions import short_version
from matrix.visible import visible

_STYLE = {
    "pass": "green",
    "supported": "bold green",
    "caveat": "bold yellow",
    "flaky": "yellow",
    "fail": "red",
    "broken": "bold red",
    "cannot install": "bold red",
    "error": "magenta",
    "void": "magenta",
    "unknown": "bold",
}
#: A sign and a word beside every colour. Terminals need no hint to draw a sign plainly.
_SIGN: dict[str, str] = {
    **{verdict: sign.rstrip("\ufe0e") for verdict, sign in VERDICT_SIGNS.items()},
    **{status: sign.rstrip("\ufe0e") for status, (_, sign) in CELL_SIGNS.items()},
}


_FIRST_COLUMN = 22
_COLUMN = 28


def look(word: str) -> tuple[str, str]:
    """The sign and the style of a status or a verdict."""
    return _SIGN[word], _STYLE.get(word, "dim")


def console(*, errors: bool = False) -> Console:
    """Rich on a terminal, plain text of a fixed width elsewhere.

    Args:
        errors: write to standard error, because standard output is for programs.
    """
    stream = sys.stderr if errors else sys.stdout
    # A terminal or a file that can't show a sign gets a question mark; the campaign goes on.
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    if stream.isatty():
        return Console(stderr=errors)
    return Console(stderr=errors, width=120, color_system=None, force_terminal=False)


def show_pace(screen: Console, result: Result) -> None:
    """How fast a campaign went, and what its time did not suffice for."""
    if result.runs and result.seconds:
        an_hour = 3600 * result.runs / result.seconds
        busy = 100 * result.busy_s / result.seconds
        screen.print(
            Text(
                f"\n{result.runs} runs in {result.seconds:.0f} s, {an_hour:.0f} an hour; "
                f"a probe was running {busy:.0f} % of the time."
            ),
            highlight=False,
        )
    if result.left_out:
        names = ", ".join(f"{cell.stack.name}/{cell.probe.id}" for cell in result.left_out)
        screen.print(Text(visible(f"Not begun, as the time was over: {names}"), style="yellow"))


def show_plan(screen: Console, plan: Plan, components: dict[str, Component]) -> None:
    """What would run, what is done, and what can't run here and why."""
    gpu = plan.gpu
    where = f"{gpu.name}, {gpu.sm}, driver {gpu.driver}" if gpu else "no GPU"
    screen.print(
        Text(f"Campaign {plan.campaign.name} on machine {plan.machine} ({where})"), highlight=False
    )
    for stack in plan.stacks():
        versions = ", ".join(
            f"{components[name].short} {short_version(version)}"
            for name, version in stack.requested.items()
        )
        setup = plan.setups[stack.id]
        python = f", Python {setup.interpreter.version}" if setup else ""
        screen.print(Text(f"\n{stack.name}  {stack.id}", style="bold"), highlight=False)
        screen.print(Text(f"  {versions}{python}"), highlight=False)
        if stack.patches:
            heads = ", ".join(f"{patch} at {head[:19]}" for patch, head in stack.patches)
            screen.print(Text(visible(f"  patches: {heads}")), highlight=False)
        for name, reason, why in stack.absent:
            screen.print(Text(visible(f"  not here: {name} ({reason}): {why}"), style="yellow"))
        cells = plan.of(stack)
        for cell in cells:
            if cell.state != "not here":
                why = f"  ({cell.why})" if cell.why else ""
                screen.print(Text(f"  {cell.state:9} {cell.probe.id}{why}"), highlight=False)
        # Many probes can't run for one and the same reason; it is said once.
        for why in dict.fromkeys(cell.why for cell in cells if cell.state == "not here"):
            which = ", ".join(c.probe.id for c in cells if c.state == "not here" and c.why == why)
            screen.print(Text(visible(f"  {'not here':9} {which}  ({why})")), highlight=False)
    counts = {
        state: sum(cell.state == state for cell in plan.cells)
        for state in ("run", "done", "not here")
    }
    screen.print(
        Text(
            f"\n{counts['run']} to run, {counts['done']} done, "
            f"{counts['not here']} can't run on this machine."
        ),
        highlight=False,
    )


def show_table(
    screen: Console,
    *,
    names: dict[str, str],
    requested: dict[str, dict[str, str]],
    verdicts: Sequence[StackVerdict],
    components: dict[str, Component],
    probes: dict[str, ProbeSpec],
    plan: Plan,
) -> None:
    """The table of everything known: all committed evidence, of every machine.

    A stack is a column, so that many probes fit a narrow terminal; columns that don't fit side by
    side go into another table below.
    """
    # The campaign's order; what it does not name comes last.
    order = {entry.name: place for place, entry in enumerate(plan.campaign.stacks)}
    ordered = sorted(
        verdicts, key=lambda v: (order.get(names.get(v.stack, ""), len(order)), v.stack)
    )
    here = {(cell.stack.id, cell.probe.id): cell for cell in plan.cells}
    side_by_side = max(1, (screen.width - _FIRST_COLUMN) // _COLUMN)
    for first in range(0, len(ordered), side_by_side):
        group = ordered[first : first + side_by_side]
        table = Table(
            title="Combinations",
            title_justify="left",
            box=box.ROUNDED if screen.is_terminal else box.ASCII,
        )
        table.add_column("")
        for verdict in group:
            heading = f"{names.get(verdict.stack, '')}\n{verdict.stack}".strip()
            table.add_column(Text(heading), overflow="fold")
        table.add_row("verdict", *[_styled(v.verdict, v.verdict) for v in group])
        for name, component in components.items():
            versions = [requested.get(v.stack, {}).get(name, "") for v in group]
            table.add_row(
                Text(component.short), *[Text(short_version(version)) for version in versions]
            )
        table.add_section()
        for spec in probes.values():
            if spec.group != "health":
                cells = [_cell(v.cell(spec.id), here.get((v.stack, spec.id))) for v in group]
                table.add_row(Text(spec.id), *cells)
        screen.print(table)
    for verdict in ordered:
        name = names.get(verdict.stack) or "stack"
        screen.print(Text(visible(f"{name} ({verdict.stack}): {verdict.summary}")), highlight=False)
    blocked = [cell for cell in plan.cells if cell.state == "not here"]
    if blocked:
        screen.print("\nNot done on this machine:", highlight=False)
        for why in dict.fromkeys(cell.why for cell in blocked):
            which = ", ".join(
                f"{cell.stack.name}/{cell.probe.id}" for cell in blocked if cell.why == why
            )
            screen.print(Text(f"  {which}: {why}"), highlight=False)
    lacking = {(name, why): None for stack in plan.stacks() for name, _, why in stack.absent}
    for name, why in lacking:
        screen.print(Text(f"  {name}: {why}"), highlight=False)


def show_differences(screen: Console, found: Sequence[Difference]) -> None:
    """What came out otherwise than recorded."""
    if not found:
        screen.print("Everything came out as recorded.", highlight=False)
        return
    table = Table(box=box.ROUNDED if screen.is_terminal else box.ASCII)
    for heading in ("differs", "recorded", "now"):
        table.add_column(heading, overflow="fold")
    for difference in found:
        table.add_row(
            Text(difference.what), Text(str(difference.before)), Text(str(difference.after))
        )
    screen.print(table)


def _styled(word: str, text: str) -> Text:
    sign, style = look(word)
    return Text(f"{sign} {visible(text)}", style=style)


def _cell(verdict: CellVerdict | None, planned: Cell | None) -> Text:
    if verdict is None:
        return Text("not run", style="dim")
    words = verdict.words
    if verdict.strength is not None and verdict.strength.weak:
        words += ", weak"
    if verdict.probe_changed and verdict.counted:
        words += ", older probe"
    if verdict.status in ("fail", "flaky", "error", "void", "miss") and verdict.reason:
        words += f" {verdict.reason}"
    if verdict.status == "not run" and planned is not None and planned.state == "not here":
        words += f" {planned.reason}"
    return _styled(verdict.status, words)
