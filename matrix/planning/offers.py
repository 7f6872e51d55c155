"""What the cells of a plan would decide, and what they cost: offers for a budget."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from matrix.judging.verdicts import is_required
from matrix.keeping.ledger import Entry
from matrix.planning.budget import CellId, Offer, Spending, spend
from matrix.planning.coverage import Pair, Seen, pair_coverage, seen_by_probe

if TYPE_CHECKING:
    from matrix.planning.layout import Layout
    from matrix.planning.plan import Cell, Plan
    from matrix.probe_specs import ProbeSpec
    from patches.candidates import Candidate

#: What a result decides besides pairs, in pairs that were never seen together.
FIRST, CANDIDATE, DISPUTED, OLDER, STALE = 5.0, 6.0, 8.0, 4.0, 2.0
#: Evidence older than this is worth a look again.
STALE_AFTER = dt.timedelta(days=90)
#: Seconds until an environment is ready that this machine never built, and one that it did. The
#: first is what was measured on an H200 with 16 cores: 1 min 56 s less 1 min 17 s of probes.
BUILD_S, REUSE_S = 40.0, 5.0
#: Of a time limit, where no probe was ever measured.
USUAL_SHARE = 0.25


@dataclass(frozen=True)
class Known:
    """The runs of one cell that passed or failed, whatever the machine."""

    current: Sequence[Entry] = ()
    """Of the probe as it is now."""
    older: int = 0
    """How many there are of earlier revisions."""


@dataclass
class Prices:
    """How long things take on one machine.

    A machine is like another whose name is the same up to the last dash: names begin with the GPU.
    What no like machine measured is taken from any.
    """

    entries: Iterable[Entry]
    machine: str
    specs: Mapping[str, ProbeSpec]
    _by_probe: dict[str, list[tuple[bool, Entry]]] = field(init=False)
    _own: dict[CellId, float] = field(init=False)
    _share: float = field(init=False)

    def __post_init__(self) -> None:
        kind = self.machine.rpartition("-")[0]
        self._by_probe, self._own = {}, {}
        self._mine = {entry.stack for entry in self.entries if entry.machine == self.machine}
        for entry in sorted(self.entries, key=lambda entry: entry.run):
            if entry.seconds > 0 and not entry.sanitize and entry.probe in self.specs:
                like = bool(kind) and entry.machine.rpartition("-")[0] == kind
                like = like or entry.machine == self.machine
                self._by_probe.setdefault(entry.probe, []).append((like, entry))
                if like:
                    self._own[entry.stack, entry.probe] = entry.seconds
        self._medians = {probe: _median(found) for probe, found in self._by_probe.items()}
        shares = [s / self.specs[probe].time_limit_s for probe, s in self._medians.items()]
        self._share = min(1.0, statistics.median(shares)) if shares else USUAL_SHARE
        mine = [e for e in self.entries if e.machine == self.machine and e.probe in self.specs]
        self.side_by_side = {
            alone: side_by_side(e for e in mine if bool(self.specs[e.probe].alone) == alone)
            for alone in (False, True)
        }
        """How many probes this machine ran at once, on average; 1 where it never ran any. Those
        that need the GPU for themselves wait for each other, so they are counted on their own."""

    def seconds(self, stack: str, probe: str) -> float:
        """Seconds that a run takes of the campaign, beside others as they ran so far."""
        taken = self._own.get((stack, probe)) or self._medians.get(probe)
        if taken is None:
            taken = self._share * self.specs[probe].time_limit_s
        return max(taken / self.side_by_side[bool(self.specs[probe].alone)], 0.01)

    def build_s(self, stack: str) -> float:
        """Seconds until a stack's environment is ready."""
        return REUSE_S if stack in self._mine else BUILD_S


def side_by_side(entries: Iterable[Entry]) -> float:
    """How many runs went on at once, on average, while any did; 1 without runs."""
    spans = sorted((_start(entry), entry.seconds) for entry in entries if entry.seconds > 0)
    total = sum(seconds for _, seconds in spans)
    covered, end = 0.0, float("-inf")
    for start, seconds in spans:
        covered += max(0.0, start + seconds - max(start, end))
        end = max(end, start + seconds)
    return max(1.0, total / covered) if covered else 1.0


def budgeted(
    plan: Plan,
    *,
    budget_s: float,
    entries: Sequence[Entry],
    specs: Mapping[str, ProbeSpec],
    candidates: Mapping[str, Candidate],
    now: dt.datetime,
    layout: Layout | None = None,
    seen: Seen | None = None,
) -> tuple[Plan, Spending]:
    """The plan with the cells that a budget buys, and what it buys.

    Stacks stand in the order in which the budget chose them, each with all of its chosen cells;
    what is left out is out of the plan. A cell that is done and disputed is run again. Cells that
    can't run here, and stacks of which nothing is bought, stay as they are, behind the others.

    Args:
        plan: everything that could run here.
        budget_s: what may be spent, in seconds.
        entries: all evidence in short.
        specs: the probes that exist.
        candidates: what there is to put onto a stack.
        now: for the age of evidence; UTC.
        layout: the campaign's axes; without them no pairs are counted.
        seen: what evidence says of them.
    """
    prices = Prices(entries, plan.machine, specs)
    known = known_cells(entries, specs)
    rows = {}
    if layout is not None:
        for stack in plan.stacks():
            row = layout.row_of(stack.requested, [id_ for id_, _ in stack.patches])
            if row is not None:
                rows[stack.id] = layout.pairs(row)
    nothing: frozenset[Pair] = frozenset()
    offers = []
    for stack in plan.stacks():
        cells = plan.of(stack)
        wanted = [cell for cell in cells if _may_run(cell, known, now)]
        for cell in cells:
            gate = cell.probe.group == "gate"
            if cell in wanted or (gate and wanted and cell.state != "not here"):
                offers.append(
                    Offer(
                        stack=stack.id,
                        probe=cell.probe.id,
                        seconds=prices.seconds(stack.id, cell.probe.id),
                        pairs=nothing if gate else rows.get(stack.id, nothing),
                        worth=0.0 if gate else worth(cell, known, candidates, now),
                        gate=gate,
                    )
                )
    covered = None
    if layout is not None and seen is not None:
        covered = pair_coverage(layout, seen, ())
    spending = spend(
        offers,
        budget_s=budget_s,
        build_s={stack.id: prices.build_s(stack.id) for stack in plan.stacks()},
        seen=seen_by_probe(layout, seen) if layout is not None and seen is not None else None,
        allowed=covered.allowed if covered is not None else nothing,
    )
    return replace(plan, cells=_ordered(plan, spending)), spending


def known_cells(entries: Iterable[Entry], specs: Mapping[str, ProbeSpec]) -> dict[CellId, Known]:
    """The runs that say something of the software, by cell."""
    current: dict[CellId, list[Entry]] = {}
    older: dict[CellId, int] = {}
    for entry in entries:
        spec = specs.get(entry.probe)
        if spec is None or entry.status not in ("pass", "fail") or entry.sanitize or entry.lacked:
            continue
        cell = entry.stack, entry.probe
        if entry.revision == spec.revision:
            current.setdefault(cell, []).append(entry)
        else:
            older[cell] = older.get(cell, 0) + 1
    return {
        cell: Known(tuple(current.get(cell, ())), older.get(cell, 0))
        for cell in sorted({*current, *older})
    }


def is_disputed(known: Known) -> bool:
    """Whether runs of the cell disagree."""
    return len({entry.status for entry in known.current}) > 1


def worth(
    cell: Cell,
    known: Mapping[CellId, Known],
    candidates: Mapping[str, Candidate],
    now: dt.datetime,
) -> float:
    """What a result of a cell decides besides pairs of versions, in pairs.

    A probe that is not required decides half as much: no stack is broken by it.
    """
    facts = known.get((cell.stack.id, cell.probe.id), Known())
    found = 0.0
    if not facts.current and not facts.older:
        found += FIRST
        patches = [candidates[id_] for id_, _ in cell.stack.patches if id_ in candidates]
        if cell.stack.patches:
            meant = any(cell.probe.id in patch.probes for patch in patches)
            found += CANDIDATE * (2 if meant else 1)
    elif is_disputed(facts):
        found += DISPUTED
    elif not facts.current:
        found += OLDER
    elif _is_stale(facts, now):
        found += STALE
    return found if is_required(cell.probe) else found / 2


def _may_run(cell: Cell, known: Mapping[CellId, Known], now: dt.datetime) -> bool:
    """Whether a cell may be bought for its own sake."""
    if cell.probe.group == "gate":
        return cell.state == "run"
    if cell.state == "done":
        facts = known.get((cell.stack.id, cell.probe.id), Known())
        return bool(facts.current) and (is_disputed(facts) or _is_stale(facts, now))
    return cell.state == "run"


def _is_stale(facts: Known, now: dt.datetime) -> bool:
    newest = max(_start(entry) for entry in facts.current)
    return now.timestamp() - newest > STALE_AFTER.total_seconds()


def _ordered(plan: Plan, spending: Spending) -> tuple[Cell, ...]:
    bought = set(spending.cells)
    offered = bought | set(spending.left_out)
    places = {stack: place for place, stack in enumerate(spending.stacks)}
    stacks = sorted(plan.stacks(), key=lambda stack: places.get(stack.id, len(places)))
    cells: list[Cell] = []
    for stack in stacks:
        for cell in plan.of(stack):
            id_ = (stack.id, cell.probe.id)
            if id_ in bought:
                again = "once more" if cell.state == "done" else cell.why
                cells.append(replace(cell, state="run", why=again))
            elif cell.state != "run" or id_ not in offered:
                cells.append(cell)
    return tuple(cells)


def _median(found: Sequence[tuple[bool, Entry]]) -> float:
    like = [entry.seconds for is_like, entry in found if is_like]
    return statistics.median(like or [entry.seconds for _, entry in found])


def _start(entry: Entry) -> float:
    """When a run began, from its id."""
    moment = dt.datetime.strptime(entry.run[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC)
    return moment.timestamp()
