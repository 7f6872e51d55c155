from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from matrix.errors import DataError, MatrixError
from matrix.records import Machine, ProbeFacts, Record, Run, StackFacts
from matrix.rooms import Rooms
from matrix.store import Store, write_whole


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
        "stack": StackFacts(id="0" * 12, requested={}, resolved={}, loaded={}),
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
        ({"parts": [{"name": "x", "status": "fail"}]}, "a part that did not pass"),
        ({"control": [{"name": "x", "failed": False}]}, "a control that was not caught"),
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
