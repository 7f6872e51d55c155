"""What the evidence says in short: one line for each record, remembered between commands.

Planning asks of every record only which cell it belongs to and how it ended. Reading and checking
a hundred thousand files for that takes minutes, so what a record said is remembered in the cache,
beside the identity of its file. A file that changed in any way is read and checked again; the
memory itself can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from matrix.collecting import uncollected
from matrix.keeping.overwritten import Run, in_unsettled, unsettled
from matrix.keeping.records import Record
from matrix.keeping.store import Store, evidence_files
from matrix.models import Model
from matrix.rooms import Rooms

_FILE = "ledger.sqlite"
#: Changes with what an entry holds: an older memory is thrown away.
FORM = 2


class RecordedStack(Model):
    """What a stack of the evidence consists of."""

    requested: dict[str, str]
    patches: list[tuple[str, str]]
    """(candidate, head), in order of application."""


class Entry(NamedTuple):
    """One record in short. A plain tuple: there are as many as records, at each start."""

    path: str
    """Relative to the evidence folder."""
    machine: str
    stack: str
    probe: str
    revision: str
    setting: str
    sanitize: str
    status: str
    reason: str | None
    detail: str | None
    run: str
    seconds: float
    lacked: tuple[str, ...]
    """`miss` reasons of the components that the machine could not provide."""
    unsettled: str = ""
    """Of a gate whose environment was left to chance: which wheels' files stood."""

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What makes two runs repeats of each other; see `matrix.planning.plan.Key`."""
        return (self.stack, self.probe, self.revision, self.setting, self.sanitize)


class Ledger:
    """All evidence of a project in short.

    Args:
        rooms: of the project.
        gates: probes that say what was installed.

    Raises:
        DataError: a record is cut, foreign, misplaced or does not validate.
        MatrixError: the cache can't be written.
    """

    def __init__(self, rooms: Rooms, gates: Collection[str]) -> None:
        self._rooms = rooms
        self._gates = gates
        self.entries: list[Entry] = []
        self.by_chance: list[Entry] = []
        """Those that tell nothing, since their environments were left to chance."""
        self.stacks: dict[str, RecordedStack] = {}
        self._refresh()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def _refresh(self) -> None:
        found = _files(self._rooms)
        try:
            self._recall(found, _Memory(self._rooms))
        except sqlite3.DatabaseError:
            # Damaged inside, or a full disk: without it, everything is read.
            self._recall(found, _Memory(None))
            with contextlib.suppress(OSError):
                (self._rooms.cache / _FILE).unlink(missing_ok=True)

    def _recall(self, found: dict[str, str], memory: _Memory) -> None:
        try:
            known = memory.identities()
            gone = [path for path, identity in known.items() if found.get(path) != identity]
            fresh = [path for path, identity in found.items() if known.get(path) != identity]
            if gone or fresh:
                store = Store(self._rooms)
                read = [_in_short(store.read_placed(path), path) for path in fresh]
                memory.update(gone, [(entry, found[entry.path], stack) for entry, stack in read])
            self.entries, self.by_chance = self._parted(memory.entries())
            self.stacks = memory.stacks()
        finally:
            memory.close()

    def _parted(self, entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
        places = {(entry.machine, entry.stack) for entry in entries if entry.unsettled}
        if not places:
            return entries, []
        chance = in_unsettled(
            Run(entry.machine, entry.stack, entry.run, entry.probe in self._gates, entry.unsettled)
            for entry in entries
            if (entry.machine, entry.stack) in places
        )
        return (
            [entry for entry in entries if entry.run not in chance],
            [entry for entry in entries if entry.run in chance],
        )


def entry_of(record: Record, path: str) -> Entry:
    """A record in short; `path` is its file's, relative to the evidence folder."""
    asked = record.probe.parameters
    return Entry(
        path=path,
        machine=record.machine.name,
        stack=record.stack.id,
        probe=record.probe.id,
        revision=record.probe.revision,
        setting=str(asked.get("setting", "quick")),
        sanitize=str(asked.get("sanitize", "")),
        status=record.status,
        reason=record.reason,
        detail=record.detail,
        run=record.run.id,
        seconds=record.run.seconds,
        lacked=tuple(record.stack.absent.values()),
        unsettled=unsettled(record),
    )


def _in_short(record: Record, path: str) -> tuple[Entry, RecordedStack]:
    return entry_of(record, path), RecordedStack(
        requested=record.stack.requested,
        patches=[(patch.id, patch.head) for patch in record.stack.patches],
    )


def _files(rooms: Rooms) -> dict[str, str]:
    """Every evidence file and what identifies its content without reading it."""
    return {
        place: f"{facts.st_ino}.{facts.st_size}.{facts.st_mtime_ns}.{facts.st_ctime_ns}"
        for place, facts in evidence_files(rooms)
    }


_CREATE = """
CREATE TABLE IF NOT EXISTS entry (
  identity TEXT, path TEXT PRIMARY KEY, machine TEXT, stack TEXT, probe TEXT, revision TEXT,
  setting TEXT, sanitize TEXT, status TEXT, reason TEXT, detail TEXT, run TEXT, seconds REAL,
  lacked TEXT, unsettled TEXT
)
"""
_INSERT = "INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = """
SELECT path, machine, stack, probe, revision, setting, sanitize, status, reason, detail, run,
  seconds, lacked, unsettled FROM entry ORDER BY path
"""


class _Memory:
    """The remembered entries: a small database in the cache, or in memory where that can't be."""

    def __init__(self, rooms: Rooms | None) -> None:
        self._database = (
            _prepared(sqlite3.connect(":memory:"))
            if rooms is None
            else self._open(rooms.cache / _FILE)
        )

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _prepared(sqlite3.connect(path, timeout=30))
        except (OSError, sqlite3.DatabaseError):
            # Half a file of a killed process, another form, or a cache that can't be written: it
            # can all be made again.
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError, sqlite3.DatabaseError):
                return _prepared(sqlite3.connect(path, timeout=30))
            return _prepared(sqlite3.connect(":memory:"))

    def identities(self) -> dict[str, str]:
        return dict(self._database.execute("SELECT path, identity FROM entry"))

    def update(self, gone: list[str], fresh: list[tuple[Entry, str, RecordedStack]]) -> None:
        with self._database:
            self._database.executemany("DELETE FROM entry WHERE path = ?", ((p,) for p in gone))
            self._database.executemany(
                _INSERT, ((identity, *_row(entry)) for entry, identity, _ in fresh)
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO stack VALUES (?, ?)",
                ((entry.stack, stack.model_dump_json()) for entry, _, stack in fresh),
            )

    def entries(self) -> list[Entry]:
        with uncollected():
            return [
                Entry._make((*most, () if lacked == "[]" else tuple(json.loads(lacked)), told))
                for *most, lacked, told in self._database.execute(_SELECT)
            ]

    def stacks(self) -> dict[str, RecordedStack]:
        rows = self._database.execute(
            "SELECT id, facts FROM stack WHERE id IN (SELECT DISTINCT stack FROM entry)"
        )
        return {id_: RecordedStack.model_validate_json(facts) for id_, facts in rows}

    def close(self) -> None:
        self._database.close()


def _row(entry: Entry) -> tuple[object, ...]:
    *most, lacked, unsettled = entry
    return (*most, json.dumps(lacked), unsettled)


def _prepared(database: sqlite3.Connection) -> sqlite3.Connection:
    (form,) = database.execute("PRAGMA user_version").fetchone()
    if form not in (0, FORM):
        database.close()
        raise sqlite3.DatabaseError("another form")
    with database:
        database.execute(_CREATE)
        database.execute("CREATE INDEX IF NOT EXISTS by_stack ON entry (stack)")
        database.execute("CREATE TABLE IF NOT EXISTS stack (id TEXT PRIMARY KEY, facts TEXT)")
        database.execute(f"PRAGMA user_version = {FORM}")
    return database
