"""Which cells to run within a budget: those that decide most for what they cost. Pure.

Nothing here reads a file, a clock or the catalogue. `offers.py` turns a plan and its evidence into
offers; whoever carries the plan out runs `Spending.cells` in order.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matrix.errors import DataError
from matrix.planning.coverage import Pair

#: (stack id, probe id)
CellId = tuple[str, str]


@dataclass(frozen=True)
class Offer:
    """One cell that could run: what its answer would decide, and what it costs."""

    stack: str
    """Id of the stack."""
    probe: str
    seconds: float
    """Expected time of the run, without the environment; above 0."""
    pairs: frozenset[Pair] = frozenset()
    """Pairs of versions that a result would show together under this probe."""
    worth: float = 0.0
    """What else a result would decide, in pairs: one pair never seen together is worth 1."""
    gate: bool = False
    """Comes before every other cell of its stack, and decides nothing by itself."""

    @property
    def cell(self) -> CellId:
        return self.stack, self.probe


@dataclass(frozen=True)
class Spending:
    """What a budget buys."""

    cells: tuple[CellId, ...] = ()
    """In order of choice. A gate stands before the other cells of its stack."""
    left_out: tuple[CellId, ...] = ()
    """Offered, and not bought; in the order in which they were offered."""
    seconds: float = 0.0
    """Expected time of the cells bought, environments included."""
    pairs_before: int = 0
    """Allowed pairs that some probe has seen already."""
    pairs_after: int = 0
    """The same when every cell bought gives a result."""
    pairs_allowed: int = 0
    """Pairs that the campaign's rules allow."""
    stacks: tuple[str, ...] = ()
    """Stacks of the cells bought, in order of their first cell."""


_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds of a budget such as `90s`, `25m`, `2h` or `1h30m`.

    Raises:
        DataError: it is no such time, or no time at all.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0 < seconds < 10**9:
        raise DataError(f"--budget {text}: not a time. Write 90s, 25m, 2h or 1h30m.")
    return seconds


def spend(
    offers: Sequence[Offer],
    *,
    budget_s: float,
    build_s: Mapping[str, float],
    seen: Mapping[str, frozenset[Pair]] | None = None,
    allowed: frozenset[Pair] = frozenset(),
) -> Spending:
    """Buy cells by what they decide for each second, until nothing more fits.

    The time of building a stack's environment, and of its gate, is charged to the first cell bought
    of the stack. A pair counts for each probe once: a second stack that shows the same pair to the
    same probe decides nothing new by it. What does not fit is passed over for something smaller.
    Cells that decide nothing are bought last, as long as they fit.

    Args:
        offers: the cells that could run; of two equally good ones the earlier is bought.
        budget_s: what may be spent, in seconds.
        build_s: seconds until a stack's environment is ready, by stack id; 0 where it is missing.
        seen: pairs that evidence has shown together, by probe.
        allowed: the pairs that the campaign's rules allow, for the report; others are not counted.

    Raises:
        ValueError: a cell is offered twice, a time is no time, or a stack has two gates.
    """
    _check(offers, budget_s, build_s)
    purse = _Purse(offers, budget_s, build_s, seen or {})
    purse.spend()
    bought = set(purse.bought)
    before = frozenset().union(*(seen or {}).values()) & allowed
    by_cell = {offer.cell: offer for offer in offers}
    shown = frozenset().union(
        before, *(by_cell[cell].pairs for cell in purse.bought if not by_cell[cell].gate)
    )
    return Spending(
        cells=tuple(purse.bought),
        left_out=tuple(offer.cell for offer in offers if offer.cell not in bought),
        seconds=purse.spent,
        pairs_before=len(before),
        pairs_after=len(shown & allowed),
        pairs_allowed=len(allowed),
        stacks=tuple(dict.fromkeys(stack for stack, _ in purse.bought)),
    )


class _Purse:
    """The state of one purchase.

    A lazy greedy search: what a cell decides only falls as others are bought, so an entry at the
    top of the heap that is worth what it says is the best. Its price falls once, when its stack
    is opened; then the stack's cells are put in again.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        budget_s: float,
        build_s: Mapping[str, float],
        seen: Mapping[str, frozenset[Pair]],
    ) -> None:
        self.bought: list[CellId] = []
        self.spent = 0.0
        self._budget = budget_s
        self._build = build_s
        self._seen = {probe: set(pairs) for probe, pairs in seen.items()}
        self._gates = {offer.stack: offer for offer in offers if offer.gate}
        self._places = {offer.cell: place for place, offer in enumerate(offers)}
        self._of: dict[str, list[Offer]] = {}
        for offer in offers:
            self._of.setdefault(offer.stack, []).append(offer)
        # A gate alone is bought only where nothing else of its stack is on offer.
        self._wanted = [
            offer
            for offer in offers
            if not offer.gate or all(other.gate for other in self._of[offer.stack])
        ]
        self._open: set[str] = set()

    def spend(self) -> None:
        heap: list[tuple[float, int, float, Offer]] = []
        for offer in self._wanted:
            heapq.heappush(heap, self._entry(offer))
        done: set[CellId] = set()
        while heap:
            ratio, place, price, offer = heapq.heappop(heap)
            if offer.cell in done:
                continue
            now = self._entry(offer)
            if now[:3] != (ratio, place, price):
                # Somebody else has shown its pairs, or paid for its environment.
                heapq.heappush(heap, now)
                continue
            if self.spent + price > self._budget:
                # Its price falls only with the opening of its stack, which puts it in again.
                continue
            opened = offer.stack not in self._open
            self._buy(offer, price)
            done.add(offer.cell)
            if opened:
                for other in self._of[offer.stack]:
                    if other.cell not in done and not other.gate:
                        heapq.heappush(heap, self._entry(other))

    def _price(self, offer: Offer) -> float:
        if offer.stack in self._open:
            return offer.seconds
        gate = self._gates.get(offer.stack)
        first = gate.seconds if gate is not None and gate is not offer else 0.0
        return self._build.get(offer.stack, 0.0) + first + offer.seconds

    def _entry(self, offer: Offer) -> tuple[float, int, float, Offer]:
        seen = self._seen.get(offer.probe)
        new = 0 if offer.gate else len(offer.pairs - seen if seen else offer.pairs)
        price = self._price(offer)
        return -(new + offer.worth) / price, self._places[offer.cell], price, offer

    def _buy(self, offer: Offer, price: float) -> None:
        gate = self._gates.get(offer.stack)
        if offer.stack not in self._open and gate is not None and gate is not offer:
            self.bought.append(gate.cell)
        self._open.add(offer.stack)
        self.bought.append(offer.cell)
        self.spent += price
        if not offer.gate:
            self._seen.setdefault(offer.probe, set()).update(offer.pairs)


def _check(offers: Iterable[Offer], budget_s: float, build_s: Mapping[str, float]) -> None:
    cells: set[CellId] = set()
    gates: set[str] = set()
    if budget_s < 0 or any(not 0 <= seconds < float("inf") for seconds in build_s.values()):
        raise ValueError("a budget and the time of a build are 0 or more seconds")
    for offer in offers:
        if offer.cell in cells:
            raise ValueError(f"{offer.probe} of stack {offer.stack} is offered twice")
        if not 0 < offer.seconds < float("inf") or not 0 <= offer.worth < float("inf"):
            raise ValueError(f"{offer.probe} of stack {offer.stack}: no time, or no worth")
        if offer.gate and offer.stack in gates:
            raise ValueError(f"stack {offer.stack} has two gates")
        cells.add(offer.cell)
        gates |= {offer.stack} if offer.gate else set()
