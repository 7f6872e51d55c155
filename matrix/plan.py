"""What a campaign would do here: which cells run, which are done, which can't run and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from matrix.campaigns import Campaign, StackEntry
from matrix.components import Component
from matrix.errors import DataError, Unavailable
from matrix.interpreters import Interpreter, find_interpreter
from matrix.machine import Gpu
from matrix.probe_specs import ProbeSpec
from matrix.records import Record
from matrix.rooms import Rooms
from matrix.settings import Settings
from matrix.stacks import Stack
from matrix.torch_choice import TorchChoice, choose_torch
from matrix.uv import Packages
from patches.sources import Source

State = Literal["run", "done", "not here"]

#: Statuses that another run of the same probe on the same stack and machine would only repeat.
CONCLUSIVE = frozenset({"pass", "fail", "error", "skip"})


@dataclass(frozen=True)
class Cell:
    """A stack and a probe on this machine."""

    stack: Stack
    probe: ProbeSpec
    state: State
    why: str = ""
    reason: str | None = None
    """For a cell that can't run here: the `miss` reason."""


@dataclass(frozen=True)
class Setup:
    """How a stack's environment is made here; None where it can't be made at all."""

    interpreter: Interpreter
    torch: TorchChoice


@dataclass(frozen=True)
class Plan:
    """Every cell of a campaign, in order, with what is needed to run it."""

    campaign: Campaign
    machine: str
    gpu: Gpu | None
    cells: tuple[Cell, ...]
    setups: dict[str, Setup | None]
    """By stack id."""
    sources: dict[str, Source]
    newest: dict[tuple[str, str, str], Record]
    """This machine's newest record of each (stack id, probe, probe revision)."""
    places: dict[str, str]
    """Paths of this machine that no record may show, and what stands for each."""

    def stacks(self) -> list[Stack]:
        """The campaign's stacks as they are on this machine, in order."""
        return list({cell.stack.id: cell.stack for cell in self.cells}.values())

    def of(self, stack: Stack) -> list[Cell]:
        """A stack's cells."""
        return [cell for cell in self.cells if cell.stack.id == stack.id]


def make_plan(
    *,
    rooms: Rooms,
    campaign: Campaign,
    components: dict[str, Component],
    probes: dict[str, ProbeSpec],
    settings: Settings,
    machine: str,
    gpu: Gpu | None,
    records: list[Record],
    stacks: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    again: bool = False,
) -> Plan:
    """Plan a campaign on this machine; nothing is built and nothing is fetched.

    Args:
        stacks: names or ids of stacks to keep; all when empty.
        only: ids of probes to keep; all when empty. A gate is always kept.
        again: run cells that are done already once more.

    Raises:
        DataError: a name is unknown, or the Python at a given path does not run.
    """
    sources = {
        name: Source(name, settings.sources.get(name, component.remote or ""), rooms.sources)
        for name, component in components.items()
        if component.kind == "git"
    }
    _check_known(campaign, components, settings, only)
    chosen: list[tuple[Stack, Setup | None]] = []
    reachable: dict[str, bool] = {}
    interpreter: Interpreter | Unavailable
    try:
        interpreter = find_interpreter(settings.python or campaign.python)
    except Unavailable as error:
        interpreter = error
    for entry in campaign.stacks:
        stack, setup = _on_this_machine(
            rooms=rooms,
            campaign=campaign,
            entry=entry,
            components=components,
            settings=settings,
            interpreter=interpreter,
            gpu=gpu,
            sources=sources,
            reachable=reachable,
        )
        if not stacks or entry.name in stacks or stack.id in stacks:
            chosen.append((stack, setup))
    if not chosen:
        names = ", ".join(entry.name for entry in campaign.stacks)
        raise DataError(f"No stack of campaign {campaign.name!r} is called that. Stacks: {names}.")
    twice = {stack.id for stack, _ in chosen}
    if len(twice) < len(chosen):
        raise DataError(f"Campaign {campaign.name!r} lists the same stack under two names.")
    done = _newest(records, machine)
    wanted = [
        spec
        for spec in probes.values()
        if spec.id in campaign.probes and (not only or spec.id in only or spec.group == "gate")
    ]
    cells = tuple(
        _cell(stack, setup, spec, gpu, done, again=again)
        for stack, setup in chosen
        for spec in wanted
    )
    return Plan(
        campaign=campaign,
        machine=machine,
        gpu=gpu,
        cells=cells,
        setups={stack.id: setup for stack, setup in chosen},
        sources=sources,
        newest=done,
        places=_places(rooms, settings, interpreter),
    )


def _places(
    rooms: Rooms, settings: Settings, interpreter: Interpreter | Unavailable
) -> dict[str, str]:
    places = {
        str(rooms.cache): "<cache>",
        str(rooms.root): "<project>",
        str(Path.home()): "~",
    }
    if settings.wheelhouse is not None:
        places[str(settings.wheelhouse)] = "<wheelhouse>"
    if isinstance(interpreter, Interpreter):
        places[interpreter.executable] = "<python>"
    for name, place in settings.sources.items():
        if "://" not in place:
            places[place] = f"<mirror of {name}>"
    # The longest first: a cache may lie inside the project, and that inside the home folder.
    return dict(sorted(places.items(), key=lambda item: -len(item[0])))


def _check_known(
    campaign: Campaign,
    components: dict[str, Component],
    settings: Settings,
    only: tuple[str, ...],
) -> None:
    for name in settings.sources:
        if name not in components or components[name].kind != "git":
            known = ", ".join(name for name, part in components.items() if part.kind == "git")
            raise DataError(f"--source {name}: not a git component. Git components: {known}.")
    for probe in only:
        if probe not in campaign.probes:
            raise DataError(
                f"--probe {probe}: not in campaign {campaign.name!r}. "
                f"Its probes: {', '.join(campaign.probes)}."
            )


def _on_this_machine(
    *,
    rooms: Rooms,
    campaign: Campaign,
    entry: StackEntry,
    components: dict[str, Component],
    settings: Settings,
    interpreter: Interpreter | Unavailable,
    gpu: Gpu | None,
    sources: dict[str, Source],
    reachable: dict[str, bool],
) -> tuple[Stack, Setup | None]:
    """A campaign's stack with `system` replaced, and what this machine lacks for it."""
    requested = campaign.requested(entry)
    absent: list[tuple[str, str, str]] = []
    setup: Setup | None = None
    torch = next(part for part in components.values() if part.kind == "torch")
    cudnn = next(part for part in components.values() if part.kind == "cudnn")
    provided: frozenset[str] = frozenset()
    if isinstance(interpreter, Unavailable):
        absent.append((torch.name, interpreter.reason, str(interpreter)))
    else:
        try:
            choice = choose_torch(
                torch=requested[torch.name],
                cudnn=requested[cudnn.name],
                component=torch,
                interpreter=interpreter,
                has_gpu=gpu is not None,
                wheelhouse=settings.wheelhouse,
                rooms=rooms,
            )
        except Unavailable as error:
            absent.append((torch.name, error.reason, str(error)))
            # The rest of the stack can still be resolved and loaded, and that is an answer too.
            choice = TorchChoice(
                requested[torch.name], requested[cudnn.name], Packages(settings.wheelhouse)
            )
        setup = Setup(interpreter, choice)
        provided = choice.provided
        requested = {**requested, torch.name: choice.torch, cudnn.name: choice.cudnn}
    for name, source in sources.items():
        version = requested[name]
        if not components[name].is_revision(version) or source.has(version):
            continue
        if name not in reachable:
            reachable[name] = source.reachable()
        if not reachable[name]:
            absent.append(
                (
                    name,
                    "source:unreachable",
                    f"{source.address} can't be reached from here and {version[:12]} is not in the "
                    f"cache; name a local mirror with --source {name}=PATH",
                )
            )
    stack = Stack(requested, name=entry.name, provided=provided, absent=tuple(absent))
    return stack, setup


def _newest(records: list[Record], machine: str) -> dict[tuple[str, str, str], Record]:
    """The newest record of each (stack, probe, probe revision) that this machine made."""
    newest: dict[tuple[str, str, str], Record] = {}
    for record in records:
        if record.machine.name != machine:
            continue
        key = (record.stack.id, record.probe.id, record.probe.revision)
        if key not in newest or newest[key].run.id < record.run.id:
            newest[key] = record
    return newest


def _cell(
    stack: Stack,
    setup: Setup | None,
    spec: ProbeSpec,
    gpu: Gpu | None,
    done: dict[tuple[str, str, str], Record],
    *,
    again: bool,
) -> Cell:
    lacking = {name: (reason, why) for name, reason, why in stack.absent}
    cell = Cell(stack, spec, "run", why=f"without {', '.join(lacking)}" if lacking else "")
    blocked = _blocked(spec, setup, gpu, lacking)
    if blocked is not None:
        return replace(cell, state="not here", reason=blocked[0], why=blocked[1])
    record = done.get((stack.id, spec.id, spec.revision))
    if again or record is None:
        return cell
    if record.status in CONCLUSIVE:
        return replace(cell, state="done", why=f"{record.status}, run {record.run.id}")
    # What was missing then and is missing now would be missing again.
    if record.status == "miss" and record.reason in {reason for reason, _ in lacking.values()}:
        return replace(cell, state="done", why=f"{record.reason}, run {record.run.id}")
    return cell


def _blocked(
    spec: ProbeSpec,
    setup: Setup | None,
    gpu: Gpu | None,
    lacking: dict[str, tuple[str, str]],
) -> tuple[str, str] | None:
    if setup is None:
        return next(iter(lacking.values()))
    if spec.gpu is not None and (gpu is None or gpu.sm != spec.gpu):
        have = f"this machine has {gpu.name} ({gpu.sm})" if gpu else "this machine has no GPU"
        return "machine:no-gpu", f"needs an {spec.gpu} GPU; {have}"
    for need in spec.needs:
        if need in lacking:
            return lacking[need]
    return None
