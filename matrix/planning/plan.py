"""What a campaign would do here: which cells run, which are done, which can't run and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from matrix.building.here import Here, Setup
from matrix.building.machine import Gpu, alike
from matrix.components import NONE
from matrix.errors import DataError
from matrix.keeping.ledger import Entry, Ledger
from matrix.keeping.records import Number
from matrix.planning.campaigns import Campaign
from matrix.probe_specs import ProbeSpec, gates_of
from matrix.stacks import Stack, patched_name
from patches.sources import Source

State = Literal["run", "done", "not here"]

Parameters = dict[str, Number | list[Number]]
#: (stack id, probe, probe revision, setting, sanitizer tool): what makes two runs repeats.
Key = tuple[str, str, str, str, str]

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
    parameters: Parameters | None = None
    """Inputs to repeat exactly; None draws a fresh seed for the campaign's setting."""


@dataclass(frozen=True)
class Choices:
    """What a command line asks of a campaign."""

    stacks: tuple[str, ...] = ()
    """Names or ids of stacks to keep; all when empty."""
    probes: tuple[str, ...] = ()
    """Ids of probes to keep; all when empty. A gate is always kept."""
    again: bool = False
    """Run cells that are done already once more."""
    setting: str | None = None
    """Parameter setting; None is the campaign's."""
    sanitize: str | None = None
    """compute-sanitizer's tool to run probes under."""
    patches: tuple[str, ...] = ()
    """Candidates or patch files to put onto every stack that has their component."""


@dataclass(frozen=True)
class Plan:
    """Every cell of a campaign, in order, with what is needed to run it."""

    campaign: Campaign
    machine: str
    gpu: Gpu | None
    """The first of `gpus`."""
    gpus: tuple[Gpu, ...]
    """The GPUs of one kind that probes may use."""
    cells: tuple[Cell, ...]
    setups: dict[str, Setup | None]
    """By stack id."""
    sources: dict[str, Source]
    newest: dict[Key, Entry]
    """This machine's newest record of each cell of these stacks, in short."""
    places: dict[str, str]
    """Paths of this machine that no record may show, and what stands for each."""
    setting: str
    sanitize: str | None = None
    known: frozenset[str] | None = None
    """The evidence files of these stacks that the plan was made from; None where others do not
    matter."""

    @cached_property
    def _by_stack(self) -> dict[str, list[Cell]]:
        found: dict[str, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(cell.stack.id, []).append(cell)
        return found

    def stacks(self) -> list[Stack]:
        """The campaign's stacks as they are on this machine, in order."""
        return [cells[0].stack for cells in self._by_stack.values()]

    def of(self, stack: Stack) -> list[Cell]:
        """A stack's cells."""
        return self._by_stack.get(stack.id, [])


def make_plan(
    *,
    campaign: Campaign,
    here: Here,
    probes: dict[str, ProbeSpec],
    machine: str,
    evidence: Ledger,
    choices: Choices,
) -> Plan:
    """Plan a campaign on this machine; nothing is built and nothing is fetched.

    Raises:
        DataError: a name is unknown, or a setting that no probe has.
    """
    setting = check_choices(campaign, probes, choices)
    chosen = _chosen_stacks(campaign, here, evidence, choices)
    ids = {stack.id for stack, _ in chosen}
    own = [e for e in evidence if e.machine == machine and e.stack in ids]
    newest = _newest(own)
    gates = _newest_gates(own, probes)
    wanted = [
        spec
        for spec in probes.values()
        # Nothing counts before it is proven what was loaded, so a gate is part of every campaign.
        if spec.group == "gate"
        or (spec.id in campaign.probes and (not choices.probes or spec.id in choices.probes))
    ]
    cells: list[Cell] = []
    for stack, setup in chosen:
        asked = [
            _cell(stack, setup, spec, here.gpus, newest, setting=setting, choices=choices)
            for spec in wanted
        ]
        cells += _behind_the_gate(asked, gates.get(stack.id))
    return Plan(
        campaign=campaign,
        machine=machine,
        gpu=here.gpu,
        gpus=alike(here.gpus),
        cells=tuple(cells),
        setups={stack.id: setup for stack, setup in chosen},
        sources=here.sources,
        newest=newest,
        places=here.places(),
        setting=setting,
        sanitize=choices.sanitize,
        known=frozenset(e.path for e in (*own, *evidence.by_chance) if e.stack in ids),
    )


def check_choices(campaign: Campaign, probes: dict[str, ProbeSpec], choices: Choices) -> str:
    """The parameter setting that is chosen, if all choices name what there is.

    Raises:
        DataError: a probe is not in the campaign, or no probe has the setting.
    """
    for probe in choices.probes:
        if probe not in campaign.probes:
            raise DataError(
                f"--probe {probe}: not in campaign {campaign.name!r}. "
                f"Its probes: {', '.join(campaign.probes)}."
            )
    setting = choices.setting or campaign.setting
    known = {name for spec in probes.values() for name in spec.parameters}
    if setting not in known:
        raise DataError(
            f"No probe has a setting {setting!r}. Settings: {', '.join(sorted(known))}."
        )
    return setting


def _chosen_stacks(
    campaign: Campaign, here: Here, evidence: Ledger, choices: Choices
) -> list[tuple[Stack, Setup | None]]:
    """The campaign's stacks, or the wanted ones, by name or by id; each stack once.

    An id may also be that of a stack that only evidence knows: so a page's row can be repeated.
    """
    found: dict[str, tuple[Stack, Setup | None]] = {}
    wanted = choices.stacks
    unknown = set(wanted)
    added = here.patching.chosen(choices.patches)
    for entry in campaign.stacks:
        own = here.patching.chosen(entry.patches)
        pins = (*own, *(pin for pin in added if pin not in own))
        stack, setup = here.stack(campaign.requested(entry), entry.name, pins)
        stack = replace(
            stack, name=patched_name(entry.name, [i for i, _ in stack.patches[len(own) :]])
        )
        if not wanted or entry.name in wanted or stack.id in wanted:
            # Two entries can come to the same stack on one machine: `system` and a version.
            found.setdefault(stack.id, (stack, setup))
            unknown -= {entry.name, stack.id}
    if added and not any(
        pin in setup.pins for _, setup in found.values() if setup for pin in added
    ):
        parts = ", ".join(dict.fromkeys(pin.component for pin in added))
        raise DataError(f"--patch: no chosen stack has a git revision of {parts} to put it onto.")
    recorded = {id_: stack.requested for id_, stack in evidence.stacks.items()}
    for id_ in sorted(unknown & set(recorded)):
        heads = evidence.stacks[id_].patches
        name = campaign.name_of(recorded[id_], [patch for patch, _ in heads]) or id_
        pins = here.patching.recorded(heads, choices.patches)
        stack, setup = here.stack(recorded[id_], name, pins)
        if stack.id != id_:
            differing = ", ".join(
                f"{name} {stack.requested.get(name)} instead of {version}"
                for name, version in recorded[id_].items()
                if stack.requested.get(name) != version
            )
            raise DataError(f"--stack {id_}: this machine has {differing}.")
        found.setdefault(stack.id, (stack, setup))
        unknown.discard(id_)
    if unknown:
        names = ", ".join(entry.name for entry in campaign.stacks)
        raise DataError(
            f"--stack {', '.join(sorted(unknown))}: campaign {campaign.name!r} has no such stack, "
            f"and no evidence has that id. Stacks: {names}."
        )
    return list(found.values())


def _newest(evidence: Iterable[Entry]) -> dict[Key, Entry]:
    """The newest record of each cell."""
    newest: dict[Key, Entry] = {}
    for entry in evidence:
        key = entry.key
        if key not in newest or _rank(newest[key]) < _rank(entry):
            newest[key] = entry
    return newest


def _newest_gates(evidence: Iterable[Entry], probes: dict[str, ProbeSpec]) -> dict[str, Entry]:
    """By stack: the newest record of its gate, whatever the gate's revision was."""
    gates = gates_of(probes)
    newest: dict[str, Entry] = {}
    for entry in evidence:
        if entry.probe in gates:
            before = newest.get(entry.stack)
            if before is None or before.run < entry.run:
                newest[entry.stack] = entry
    return newest


def _rank(entry: Entry) -> tuple[bool, str]:
    """A clock that was wrong once must not bury what was found out since."""
    return entry.status in CONCLUSIVE, entry.run


def _cell(
    stack: Stack,
    setup: Setup | None,
    spec: ProbeSpec,
    gpus: Sequence[Gpu],
    newest: dict[Key, Entry],
    *,
    setting: str,
    choices: Choices,
) -> Cell:
    lacking = {name: (reason, why) for name, reason, why in stack.absent}
    cell = Cell(stack, spec, "run", why=f"without {', '.join(lacking)}" if lacking else "")
    problem = blocked(stack, spec, setup, gpus, lacking)
    if problem is not None:
        return replace(cell, state="not here", reason=problem[0], why=problem[1])
    record = newest.get(cell_key(cell, setting, choices.sanitize))
    if choices.again or record is None:
        return cell
    if record.status in CONCLUSIVE:
        reason = f" {record.reason}" if record.reason else ""
        return replace(cell, state="done", why=f"{record.status}{reason}, run {record.run}")
    # What was missing then and is missing now would be missing again.
    if record.status == "miss" and record.reason in {reason for reason, _ in lacking.values()}:
        return replace(cell, state="done", why=f"{record.reason}, run {record.run}")
    return cell


def cell_key(cell: Cell, setting: str, sanitize: str | None) -> Key:
    """The key that records of a cell have when it is asked in a given way."""
    spec = cell.probe
    chosen = setting if setting in spec.parameters else "quick"
    tool = sanitize if sanitize and spec.group != "gate" else ""
    return (cell.stack.id, spec.id, spec.revision, chosen, tool)


def _behind_the_gate(cells: list[Cell], record: Entry | None) -> list[Cell]:
    """Nothing runs behind a gate that is known to be shut, nor without asking it first."""
    gate = next((cell for cell in cells if cell.probe.group == "gate"), None)
    if gate is None or gate.state != "done" or all(cell.state != "run" for cell in cells):
        return cells
    if record is None or opens(record.status, record.reason, record.lacked):
        # What was proven once may have been changed since, so it is proven again before anything
        # else runs on it.
        why = "before the others"
        return [replace(cell, state="run", why=why) if cell is gate else cell for cell in cells]
    why = f"{gate.probe.id}: {record.reason}"
    return [
        replace(cell, state="not here", why=why, reason=record.reason)
        if cell.state == "run"
        else cell
        for cell in cells
    ]


def opens(status: str, reason: str | None, lacked: Collection[str]) -> bool:
    """Whether a gate's run lets other probes run on the stack.

    A component that this machine can't provide closes nothing: what is there was proven, and each
    probe says for itself what it could not do.
    """
    return status == "pass" or (status == "miss" and reason in lacked)


def blocked(
    stack: Stack,
    spec: ProbeSpec,
    setup: Setup | None,
    gpus: Sequence[Gpu],
    lacking: dict[str, tuple[str, str]],
) -> tuple[str, str] | None:
    """Why a probe can't be put to a stack on this machine, as (reason, explanation), or None."""
    if setup is None:
        return next(iter(lacking.values()))
    same = alike(gpus)
    if spec.gpu is not None and (not same or same[0].sm != spec.gpu):
        have = (
            f"this machine has {same[0].name} ({same[0].sm})" if same else "this machine has no GPU"
        )
        return "machine:no-gpu", f"needs an {spec.gpu} GPU; {have}"
    if spec.gpu is not None and len(same) < spec.gpus:
        return "machine:too-few-gpus", f"needs {spec.gpus} GPUs; this machine has {len(same)} alike"
    for need in spec.needs:
        if need in lacking:
            return lacking[need]
        if not need.startswith("gpu:") and stack.requested.get(need, NONE) == NONE:
            return "upstream:absent", f"the stack has no {need}"
    return None
