"""What is remembered of the evidence is what the evidence says, whatever happens to the memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from matrix.errors import DataError
from matrix.keeping.ledger import Ledger, entry_of
from matrix.keeping.store import Store
from matrix.rooms import Rooms
from tests.keeping.test_store import make_record

GATES = frozenset({"fingerprint"})


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    rooms = Rooms(tmp_path)
    rooms.evidence.mkdir(parents=True)
    return rooms


def add(rooms: Rooms, number: int) -> Path:
    run = f"20260101T000000Z-0000000{number}"
    record = make_record()
    return Store(rooms).add(
        record.model_copy(update={"run": record.run.model_copy(update={"id": run})})
    )


def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a record was read again")

    monkeypatch.setattr(Store, "read_at", refuse)


def test_it_holds_what_each_record_says(rooms: Rooms) -> None:
    paths = [add(rooms, number) for number in range(3)]

    ledger = Ledger(rooms, GATES)

    store = Store(rooms)
    assert list(ledger) == [
        entry_of(store.read(path), path.relative_to(rooms.evidence).as_posix()) for path in paths
    ]
    record = store.read(paths[0])
    assert ledger.stacks[record.stack.id].requested == record.stack.requested


def test_nothing_is_read_twice(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    add(rooms, 0)
    first = Ledger(rooms, GATES)
    unread(monkeypatch)

    second = Ledger(rooms, GATES)

    assert (second.entries, second.stacks) == (first.entries, first.stacks)


def test_new_and_removed_records_are_seen(rooms: Rooms) -> None:
    first = add(rooms, 0)
    Ledger(rooms, GATES)
    add(rooms, 1)
    first.unlink()

    assert [entry.run[-1] for entry in Ledger(rooms, GATES)] == ["1"]


def test_a_changed_record_is_checked_again(rooms: Rooms) -> None:
    path = add(rooms, 0)
    Ledger(rooms, GATES)
    facts = path.stat()
    text = path.read_text()
    path.write_text(text.replace('"pass"', '"fail"', 1))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    with pytest.raises(DataError):
        Ledger(rooms, GATES)


def test_a_linked_record_is_refused(rooms: Rooms, tmp_path: Path) -> None:
    path = add(rooms, 0)
    elsewhere = path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(elsewhere)

    with pytest.raises(DataError, match="symbolic link"):
        Ledger(rooms, GATES)


@pytest.mark.parametrize("content", [b"", b"half a file", b"SQLite format 3\0" + b"\xff" * 500])
def test_a_broken_memory_is_made_again(rooms: Rooms, content: bytes) -> None:
    add(rooms, 0)
    before = Ledger(rooms, GATES).entries
    (rooms.cache / "ledger.sqlite").write_bytes(content)

    assert Ledger(rooms, GATES).entries == before


def test_a_memory_damaged_inside_is_made_again(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        add(rooms, number)
    before = Ledger(rooms, GATES).entries
    path = rooms.cache / "ledger.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))

    assert Ledger(rooms, GATES).entries == before
    assert Ledger(rooms, GATES).entries == before
    unread(monkeypatch)
    assert Ledger(rooms, GATES).entries == before, "it is whole again"


def test_a_memory_of_another_form_is_made_again(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(rooms, 0)
    before = Ledger(rooms, GATES).entries
    monkeypatch.setattr("matrix.keeping.ledger.FORM", 99)

    assert Ledger(rooms, GATES).entries == before


def test_without_a_cache_everything_is_read(rooms: Rooms) -> None:
    add(rooms, 0)
    rooms.cache.write_text("no folder")

    assert len(Ledger(rooms, GATES).entries) == 1
