"""Small plans and records, for those who are told of a campaign."""

from __future__ import annotations

from typing import Any

from matrix.building.machine import Gpu
from matrix.keeping.records import ProbeFacts, Record
from matrix.planning.campaigns import Campaign, StackEntry
from matrix.planning.plan import Cell, Plan
from matrix.probe_specs import ProbeSpec
from matrix.stacks import Stack
from tests.keeping.test_store import make_record

REVISION = "0" * 16


def spec(name: str) -> ProbeSpec:
    return ProbeSpec(
        id=name, question="?", method="", needs=[], required=True, group="functional",
        time_limit_s=9, parameters={"quick": {}}, revision=REVISION,
    )  # fmt: skip


def cell(name: str, state: Any = "run", **more: Any) -> Cell:
    return Cell(Stack({}, name="good"), spec(name), state, **more)


def record_of(name: str, status: Any = "pass", reason: str | None = None, **more: Any) -> Record:
    probe = ProbeFacts(id=name, revision=REVISION, parameters={})
    return make_record(probe=probe, status=status, reason=reason, **more)


def plan_of(*cells: Cell, gpu: Gpu | None = None, **more: Any) -> Plan:
    entry = StackEntry(name="good", reason="tests")
    campaign = Campaign(name="default", reason="tests", probes=[], stack=[entry])
    return Plan(
        campaign=campaign, machine="tiny", gpu=gpu, gpus=(), cells=cells, setups={}, sources={},
        newest=more.pop("newest", {}), places={}, setting="quick", **more,
    )  # fmt: skip
