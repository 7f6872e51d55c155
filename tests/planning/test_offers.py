"""What cells are worth and cost, from evidence in short."""

from __future__ import annotations

import datetime as dt

import pytest

from matrix.keeping.ledger import Entry
from matrix.planning.budget import Spending
from matrix.planning.campaign_forms import Campaign, StackEntry
from matrix.planning.offers import (
    BUILD_S,
    CANDIDATE,
    DISPUTED,
    FIRST,
    OLDER,
    REUSE_S,
    STALE,
    Prices,
    budgeted,
    known_cells,
    side_by_side,
    worth,
)
from matrix.planning.plan import Cell, Plan, State
from matrix.stacks import Stack
from patches.candidates import Candidate
from tests.evidence_in_short import entry, spec

NOW = dt.datetime(2026, 11, 30, tzinfo=dt.UTC)
RECENT, OLD = "20261129T100000Z-00000000", "20260101T100000Z-00000000"
SPECS = {
    "gate": spec("gate", group="gate", time_limit_s=10),
    "slow": spec("slow", time_limit_s=600),
    "quick": spec("quick", time_limit_s=100),
    "extra": spec("extra").model_copy(update={"required": False}),
}
PATCHED = Stack({"torch": "1", "megatron-core": "a" * 40}, patches=(("mcore-7", "7" * 40),))
PLAIN = Stack({"torch": "2", "megatron-core": "a" * 40})
CANDIDATES = {
    "mcore-7": Candidate.model_validate(
        {
            "id": "mcore-7",
            "component": "megatron-core",
            "title": "t",
            "reason": "r",
            "path": "x.patch",
            "seen": "2026-01-01",
            "state": "local",
            "claims": "c",
            "probes": ["slow"],
        }
    )
}


def plan_of(*cells: tuple[Stack, str, State]) -> Plan:
    return Plan(
        campaign=Campaign(
            name="c", reason="r", probes=[], stacks=[StackEntry(name="s", reason="r")]
        ),
        machine="h200-a",
        gpu=None,
        gpus=(),
        cells=tuple(Cell(stack, SPECS[probe], state) for stack, probe, state in cells),
        setups={},
        sources={},
        newest={},
        places={},
        setting="quick",
    )


def buy(plan: Plan, budget_s: float, entries: list[Entry]) -> tuple[Plan, Spending]:
    return budgeted(
        plan, budget_s=budget_s, entries=entries, specs=SPECS, candidates=CANDIDATES, now=NOW
    )


@pytest.mark.parametrize(
    ("stack", "probe", "runs", "expected"),
    [
        (PLAIN, "slow", [], FIRST),
        (PLAIN, "extra", [], FIRST / 2),
        (PATCHED, "slow", [], FIRST + 2 * CANDIDATE),
        (PATCHED, "quick", [], FIRST + CANDIDATE),
        (PLAIN, "slow", [("pass", RECENT, None), ("fail", RECENT, None)], DISPUTED),
        (PLAIN, "slow", [("pass", RECENT, None), ("pass", RECENT, None)], 0),
        (PLAIN, "slow", [("pass", OLD, None)], STALE),
        (PLAIN, "slow", [("pass", RECENT, "f" * 16)], OLDER),
        # An earlier probe's failure does not dispute what the probe says now.
        (PLAIN, "slow", [("fail", OLD, "f" * 16), ("pass", RECENT, None)], 0),
        (PLAIN, "slow", [("miss", RECENT, None)], FIRST),
    ],
)
def test_what_a_result_would_decide(
    stack: Stack, probe: str, runs: list[tuple[str, str, str | None]], expected: float
) -> None:
    entries = [
        entry(stack.id, probe, status, run=run, revision=revision or "0" * 16)
        for status, run, revision in runs
    ]

    found = worth(Cell(stack, SPECS[probe], "run"), known_cells(entries, SPECS), CANDIDATES, NOW)

    assert found == expected


def test_time_is_taken_from_the_same_cell_then_from_the_probe_then_from_its_limit() -> None:
    entries = [
        entry("s", "quick", "pass", seconds=10, machine="h200-b"),
        entry("t", "quick", "pass", seconds=30, machine="h200-a"),
        entry("u", "quick", "pass", seconds=500, machine="cpu-a"),
        entry("s", "slow", "pass", seconds=60, machine="cpu-a"),
        entry("s", "quick", "miss", seconds=0, machine="h200-a"),
    ]
    prices = Prices(entries, "h200-a", SPECS)

    assert prices.seconds("s", "quick") == 10
    assert prices.seconds("u", "quick") == 20, "the median of like machines"
    assert prices.seconds("s", "slow") == 60, "nobody else has measured it"
    # Probes took a fifth (20 of 100) and a tenth (60 of 600) of their limits.
    assert prices.seconds("s", "gate") == pytest.approx(0.15 * 10)
    assert (prices.build_s("t"), prices.build_s("u")) == (REUSE_S, BUILD_S)
    assert Prices([], "h200-a", SPECS).seconds("s", "quick") == 25


def test_runs_beside_each_other_cost_less() -> None:
    def at(second: int, seconds: float) -> Entry:
        run = f"20261101T0000{second:02}Z-00000000"
        return entry("s", "quick", "pass", run=run, seconds=seconds)

    assert side_by_side([]) == 1
    assert side_by_side([at(0, 10), at(20, 10)]) == 1
    assert side_by_side([at(0, 10), at(0, 10), at(40, 10), at(40, 10)]) == 2
    assert side_by_side([at(0, 10), at(5, 10)]) == pytest.approx(20 / 15)
    entries = [at(0, 10)._replace(machine="h200-a"), at(0, 10)._replace(machine="h200-a")]
    assert Prices(entries, "h200-a", SPECS).seconds("s", "quick") == 5


def test_who_needs_the_gpu_alone_costs_as_much_as_its_kind_did() -> None:
    specs = SPECS | {"alone": spec("alone").model_copy(update={"alone": True})}
    beside = [entry("s", "quick", "pass", seconds=10, machine="h200-a") for _ in range(8)]
    turns = [
        entry("s", "alone", "pass", seconds=30, machine="h200-a", run=f"20261101T00{at}Z-00000000")
        for at in ("0100", "0120", "0140")
    ]

    prices = Prices([*beside, *turns], "h200-a", specs)

    # Two at a time run for 30 seconds, 20 seconds apart: 90 seconds of work in 70.
    assert prices.seconds("s", "alone") == pytest.approx(70 / 3)
    assert prices.seconds("s", "quick") == pytest.approx(10 / 8)


def test_a_plan_within_a_budget() -> None:
    plan = plan_of(
        (PLAIN, "gate", "run"),
        (PLAIN, "slow", "run"),
        (PLAIN, "extra", "not here"),
        (PATCHED, "gate", "run"),
        (PATCHED, "slow", "run"),
        (PATCHED, "quick", "done"),
    )
    entries = [
        entry("other", probe, "pass", seconds=s, machine="h200-b")
        for probe, s in {"gate": 5, "slow": 50, "quick": 5}.items()
    ]

    found, spending = buy(plan, 100, entries)

    # The candidate decides more; there is no time for the other stack after it.
    assert [(c.stack.id, c.probe.id) for c in found.cells if c.state == "run"] == [
        (PATCHED.id, "gate"),
        (PATCHED.id, "slow"),
    ]
    assert spending.seconds == 95
    assert spending.left_out == ((PLAIN.id, "gate"), (PLAIN.id, "slow"))
    assert next(cell.stack.id for cell in found.cells) == PATCHED.id
    assert [(c.probe.id, c.state) for c in found.of(PLAIN)] == [("extra", "not here")]
    everything, _ = buy(plan, 10_000, entries)
    assert len(everything.cells) == len(plan.cells)


def test_a_disputed_cell_is_run_again_behind_its_gate() -> None:
    plan = plan_of((PLAIN, "gate", "done"), (PLAIN, "slow", "done"), (PLAIN, "quick", "done"))
    entries = [
        entry(PLAIN.id, "slow", "pass", run=RECENT, seconds=10, machine="h200-a"),
        entry(PLAIN.id, "slow", "fail", run=RECENT, seconds=10, machine="h200-b"),
        entry(PLAIN.id, "quick", "pass", run=RECENT, seconds=10, machine="h200-a"),
        entry(PLAIN.id, "gate", "pass", run=RECENT, seconds=10, machine="h200-a"),
    ]

    found, spending = buy(plan, 1000, entries)

    assert spending.cells == ((PLAIN.id, "gate"), (PLAIN.id, "slow"))
    assert [cell.state for cell in found.cells] == ["run", "run", "done"]
    assert found.cells[1].why == "once more"
