from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from matrix.errors import DataError, MatrixError
from matrix.keeping.records import (
    Control,
    Loaded,
    Machine,
    Part,
    ProbeFacts,
    Record,
    Run,
    StackFacts,
)
from matrix.keeping.store import Store, write_whole
from matrix.rooms import Rooms
from matrix.stacks import stack_id


def make_record(**changes: Any) -> Record:
    facts: dict[str, Any] = {
        "run": Run(
            id="20260101T000000Z-00000001",
            started=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            seconds=1.5,
        ),
        "machine": Machine(
            name="tiny", gpu=None, sm=None, driver=None, cuda=None, torch_cuda=None,
            python="3.11.7", cpu="x", kernel="6",
        ),
        "stack": StackFacts(
            id=stack_id({}), requested={}, resolved={}, loaded={}, lock="ab" * 32
        ),
        "parts": [Part(name="all", status="pass")],
        "control": [Control(name="wrong", failed=True)],
        "probe": ProbeFacts(id="sum", revision="0" * 16, parameters={}),
        "status": "pass",
    }  # fmt: skip
    return Record(**{**facts, **changes})


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))
    record = make_record(measure={"error_relative": 0.25, "compiles_count": 3})

    path = store.add(record)

    assert path.name == "sum--20260101T000000Z-00000001.json"
    assert list(store.records()) == [(path, record)]
    assert json.loads(path.read_text())["schema"] == 1


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))
    path = store.add(make_record())
    before = path.read_bytes()

    with pytest.raises(FileExistsError):
        store.add(make_record(measure={"x": 1}))

    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no rubbish is left"


def test_a_full_disk_is_said_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(MatrixError, match="No space left on device"):
        write_whole(tmp_path / "x.json", "{}")

    assert list(tmp_path.iterdir()) == []


def test_the_same_lock_is_kept_once(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))

    store.add_lock("tiny", "0" * 12, "ab" * 32, "x==1\n")
    store.add_lock("tiny", "0" * 12, "ab" * 32, "x==1\n")

    (path,) = Rooms(tmp_path).evidence.rglob("lock--*.txt")
    assert path.read_text() == "x==1\n"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"status": "fail"}, "needs a reason"),
        ({"status": "fail", "reason": "source:unreachable"}, "does not belong to status"),
        ({"status": "fail", "reason": "bad luck"}, "does not belong to status"),
        ({"reason": "numerics"}, "a passing run has no reason"),
        (
            {"parts": [{"name": "x", "status": "fail", "reason": "numerics"}]},
            "a part that did not pass",
        ),
        ({"parts": [{"name": "x", "status": "fail"}]}, "a part with status fail needs a reason"),
        ({"parts": []}, "no part that passed"),
        ({"control": [{"name": "x", "failed": False}]}, "all of them caught"),
        ({"control": []}, "needs controls"),
        ({"measure": {"x": float("inf")}}, "finite"),
        (
            {
                "run": {
                    "id": "20260101T000001Z-00000001",
                    "started": "2026-01-01T00:00:00Z",
                    "seconds": 1,
                }
            },
            "the id and the start of a run differ",
        ),
        (
            {
                "run": {
                    "id": "20260101T000000Z-00000001",
                    "started": "2026-01-01T01:00:00+01:00",
                    "seconds": 1,
                }
            },
            "a time in UTC",
        ),
        (
            {
                "stack": {
                    "id": "0" * 12,
                    "requested": {"torch": "2.11.0"},
                    "resolved": {},
                    "loaded": {},
                }
            },
            "not that of the requested versions",
        ),
        (
            {
                "stack": StackFacts(
                    id=stack_id({"torch": "2.11.0"}),
                    requested={"torch": "2.11.0"},
                    resolved={},
                    loaded={"torch": Loaded(version="2.13.0")},
                    lock="ab" * 32,
                )
            },
            "other software: torch 2.11.0 requested, 2.13.0 loaded",
        ),
        (
            {"stack": StackFacts(id=stack_id({}), requested={}, resolved={}, loaded={})},
            "on packages from a lock",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        make_record(**changes)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 2}', "\x00\x01"])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    path = Rooms(tmp_path).evidence / "m" / "s" / "p--x.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)

    with pytest.raises(DataError, match=r"matrix/evidence/m/s/p--x\.json"):
        list(Store(Rooms(tmp_path)).records())


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.json: there is no such file"):
        Store(Rooms(tmp_path)).read(tmp_path / "nowhere.json")


def test_a_link_is_no_evidence(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path / "project")
    store = Store(rooms)
    path = store.add(make_record())
    secret = tmp_path / "secret.json"
    path.rename(secret)
    path.symlink_to(secret)

    with pytest.raises(DataError, match="is a symbolic link"):
        list(store.records())


def test_evidence_is_not_written_through_a_link(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path / "project")
    outside = tmp_path / "outside"
    outside.mkdir()
    rooms.evidence.mkdir(parents=True)
    (rooms.evidence / "tiny").symlink_to(outside)

    with pytest.raises(DataError, match="is a symbolic link"):
        Store(rooms).add(make_record())

    assert list(outside.iterdir()) == []


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))
    path = store.add(make_record())
    text = path.read_text()
    path.write_text(
        text.replace(' "status": "pass"\n}', ' "status": "fail",\n "status": "pass"\n}')
    )
    assert path.read_text() != text

    with pytest.raises(DataError, match="as a run writes it"):
        list(store.records())


@pytest.mark.parametrize(
    ("was", "now"),
    [
        # In a part that the store knows from the record before.
        ('  "cpu": "x",', '  "cpu": "y",\n  "cpu": "x",'),
        ('  "cpu": "x",', '  "cpu":  "x",'),
        ('\n "machine": {', '\n "machine": null,\n "machine": {'),
        (' "machine": {\n', ' "machine": {\n\n'),
        ('  "network": null,', '  "network": "nonsense",'),
        ('   "name": "wrong"\n  }\n ],', '   "name": "wrong"\n  }\n ],\n "control": [],'),
        ('\n "stack": {', '\n "stack": {},\n "stack": {'),
        # Beside it.
        ('\n "measure": {},', '\n "measure": {},\n "machine": null,'),
        ('\n "measure": {},', '\n "measure": { },'),
        ('\n "detail": null,', '\n  "detail": null,'),
        ('\n "parts": [', '\n "parts": [\n "machine": {\n },'),
    ],
)
def test_a_record_like_one_before_it_is_looked_at_as_closely(
    tmp_path: Path, was: str, now: str
) -> None:
    store = Store(Rooms(tmp_path))
    store.add(make_record())
    later = Run(
        id="20260101T000001Z-00000001",
        started=dt.datetime(2026, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        seconds=1.5,
    )
    path = store.add(make_record(run=later))
    text = path.read_text()
    assert len(list(store.records())) == 2
    path.write_text(text.replace(was, now, 1))
    assert path.read_text() != text

    with pytest.raises(DataError, match="--20260101T000001Z"):
        list(store.records())
    with pytest.raises(DataError, match="--20260101T000001Z"):
        list(Store(Rooms(tmp_path)).records())


def test_what_stands_alike_in_two_records_is_made_once(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))
    for second in range(3):
        started = dt.datetime(2026, 1, 1, 0, 0, second, tzinfo=dt.UTC)
        run = Run(id=f"{started:%Y%m%dT%H%M%SZ}-00000001", started=started, seconds=1)
        store.add(make_record(run=run, measure={"second_count": second}))

    _, (_, one), (_, other) = store.records()

    assert one.stack is other.stack
    assert one.machine is other.machine
    assert (one.run, one.measure) != (other.run, other.measure)


def test_a_lock_that_is_not_the_named_one_is_refused(tmp_path: Path) -> None:
    store = Store(Rooms(tmp_path))
    record = make_record()
    store.add(record)
    with pytest.raises(DataError, match="is not there"):
        store.lock(record)

    store.add_lock("tiny", record.stack.id, "ab" * 32, "other\n")

    with pytest.raises(DataError, match="its hash differs"):
        store.lock(record)
