"""How much rendering does: counted, so that no clock is needed to see it grow."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import matrix.judging.findings
import matrix.judging.verdicts
import matrix.site.publish
from matrix.keeping.store import Store
from matrix.site import render
from tests.site.world import OTHER_GPU, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path)
    found.campaign(reported="4.5.2", newest="4.8.1")
    found.passes(times=2)
    found.run("layout-indices", "fail", "numerics", machine=OTHER_GPU)
    return found


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Counter[str]:
    """How often something is called, by its last argument that is a text."""
    real = getattr(owner, name)
    calls: Counter[str] = Counter()

    def call(*given: Any, **named: Any) -> Any:
        calls[next((str(one) for one in reversed(given) if isinstance(one, str)), "")] += 1
        return real(*given, **named)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_each_record_is_read_once_and_each_lock_is_hashed_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = counted(monkeypatch, Store, "_read")
    locks = counted(monkeypatch, Store, "lock")
    records = list(world.rooms.evidence.glob("*/*/*.json"))

    render(world.rooms)

    assert reads == Counter(str(path) for path in records)
    assert 0 < locks.total() <= len({path.parent for path in records})


def test_each_cell_is_judged_once_where_all_runs_are_of_one_day(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = counted(monkeypatch, matrix.judging.verdicts, "judge_cell")
    again = counted(monkeypatch, matrix.judging.findings, "judge_cell")

    render(world.rooms)

    assert max(judged.values()) <= 2, "one for each of the two stacks of the campaign"
    assert again.total() == 0


def test_only_what_is_new_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    render(world.rooms)
    writes: list[str] = []
    write = matrix.site.publish._write

    def noted(path: str, content: bytes) -> None:
        writes.append(path.rpartition("/")[2])
        write(path, content)

    monkeypatch.setattr(matrix.site.publish, "_write", noted)
    render(world.rooms)
    assert writes == []

    record = world.run("speed")
    writes.clear()
    render(world.rooms)
    assert f"speed--{record.run.id}.json" in writes
    assert [name for name in writes if "--" in name and "lock" not in name] == [
        f"speed--{record.run.id}.json"
    ]
