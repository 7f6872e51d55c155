"""Evidence of other machines, brought into this project: checked as a whole, then added whole."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from matrix.errors import DataError, MatrixError
from matrix.keeping.carried import Refused, copy_evidence
from matrix.keeping.records import Record
from matrix.keeping.store import Store, write_whole
from matrix.rooms import Rooms, check_no_links
from matrix.visible import visible
from patches.candidates import patch_name

#: Problems named of one source; one that is not evidence at all has thousands.
_NAMED = 20

_PATCH_FILE = "sha256:"
_PREFIX = "merging-"
_LOCK = "lock"
#: A folder younger than this may not be locked yet, in seconds.
_YOUNG_S = 60.0


@dataclass
class Merged:
    """What came of merging."""

    added: Counter[str] = field(default_factory=Counter)
    """Records by machine."""
    there: Counter[str] = field(default_factory=Counter)
    """Records by machine that were there already, byte for byte."""
    problems: list[str] = field(default_factory=list)
    """One line each. Nothing was taken of a source that has one."""

    def lines(self) -> list[str]:
        """What to tell: one line for each machine."""
        machines = sorted({*self.added, *self.there})
        return [
            f"{machine}: {self.added[machine]} records added, "
            f"{self.there[machine]} were there already"
            for machine in machines
        ]


@dataclass
class _Source:
    """One source, copied into a folder of this project's cache."""

    shown: str
    rooms: Rooms
    files: dict[Path, Path] = field(default_factory=dict)
    """What to add: place in the evidence folder -> the copy. Locks and patches come first."""
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.problems.append(f"{self.shown}: {visible(text)}")


def merge(rooms: Rooms, sources: Sequence[Path]) -> Merged:
    """Add the evidence of other machines to this project's.

    Every source is copied and checked before anything is written, and is added as a whole or not at
    all. The order of sources makes no difference: a file that two of them hold with different
    content is refused from both. Merging again adds nothing.

    Args:
        rooms: this project.
        sources: project folders, evidence folders, or .tar or .tgz of them.

    Raises:
        MatrixError: something could not be written. What was added of that source is taken back.
    """
    check_no_links(rooms, rooms.evidence)
    merged = Merged()
    with _scratch(rooms) as folder:
        read = [_read(source, Rooms(folder / str(number))) for number, source in enumerate(sources)]
        for source in read:
            _compare(source, rooms)
        _compare_with_each_other(read)
        for source in read:
            if not source.problems:
                _add(source, rooms, merged)
    for source in read:
        merged.problems += source.problems[:_NAMED]
        if len(source.problems) > _NAMED:
            merged.problems.append(f"{source.shown}: and {len(source.problems) - _NAMED} more.")
    return merged


@contextmanager
def _scratch(rooms: Rooms) -> Iterator[Path]:
    """A folder for copies, locked while this merge lives. What killed ones left is swept first."""
    try:
        rooms.cache.mkdir(parents=True, exist_ok=True)
        for left in sorted(rooms.cache.glob(f"{_PREFIX}*")):
            _sweep(left)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=rooms.cache))
        lock = FileLock(folder / _LOCK)
        lock.acquire()
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.cache)} can't be written: {error.strerror}. Make room or mend the "
            "folder, then merge again."
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _sweep(left: Path) -> None:
    # Another merge may sweep it too, or may be about to lock what it has just made.
    with suppress(OSError, Timeout):
        if time.time() - left.stat().st_mtime > _YOUNG_S:
            with FileLock(left / _LOCK).acquire(timeout=0):
                shutil.rmtree(left, ignore_errors=True)


def _read(path: Path, rooms: Rooms) -> _Source:
    """Copy a source and check all that it holds as the store does."""
    source = _Source(visible(str(path)), rooms)
    try:
        copy_evidence(path, rooms.evidence)
    except Refused as error:
        source.problem(str(error))
        return source
    store = Store(rooms)
    beside: dict[Path, Path] = {}
    records: dict[Path, Path] = {}
    for file in sorted(rooms.evidence.glob("*/*/*.json")):
        try:
            record = store.read_at(file)
            for name in _beside(record, store, file.parent):
                beside[name.relative_to(rooms.evidence)] = name
        except DataError as error:
            source.problem(_without_advice(str(error)))
        else:
            records[file.relative_to(rooms.evidence)] = file
    # A record is never there without what it names, not even for a moment.
    source.files = {**beside, **records}
    return source


def _beside(record: Record, store: Store, folder: Path) -> Iterator[Path]:
    """The files that a record names, each checked by its hash."""
    lock = store.lock(record)
    if lock is not None:
        yield lock
    for patch in record.stack.patches:
        if not patch.head.startswith(_PATCH_FILE):
            continue
        path = folder / patch_name(patch.head)
        if not path.is_file():
            raise DataError(f"run {record.run.id} names {path.name}, which is not there.")
        if hashlib.sha256(path.read_bytes()).hexdigest() != patch.head.removeprefix(_PATCH_FILE):
            raise DataError(f"{path.name} is not the patch of run {record.run.id}.")
        yield path


def _without_advice(text: str) -> str:
    """An error of the store on one line; what it advises is for this project's own files."""
    for advice in (" Bring it back", " Bring the file back", " Move it out", " Evidence is never"):
        text = text.partition(advice)[0]
    return text.replace("\n", " ")


def _compare(source: _Source, rooms: Rooms) -> None:
    """Refuse what is here under the same name with another content."""
    for place, copy in source.files.items():
        target = rooms.evidence / place
        try:
            check_no_links(rooms, target)
        except DataError as error:
            source.problem(str(error))
            continue
        if target.exists() and not _same(target, copy.read_bytes()):
            source.problem(
                f"{place.as_posix()} is here with another content. Evidence is never replaced: "
                "find out which of the two was changed."
            )


def _same(target: Path, content: bytes) -> bool:
    try:
        return target.read_bytes() == content
    except OSError:  # a folder, say
        return False


def _compare_with_each_other(sources: Sequence[_Source]) -> None:
    holders: dict[Path, list[tuple[_Source, Path]]] = {}
    for source in sources:
        for place, copy in source.files.items():
            holders.setdefault(place, []).append((source, copy))
    for place, found in holders.items():
        if len({copy.read_bytes() for _, copy in found} if len(found) > 1 else {b""}) > 1:
            names = ", ".join(source.shown for source, _ in found)
            for source, _ in found:
                source.problem(f"{place.as_posix()} has different contents in {names}.")


def _add(source: _Source, rooms: Rooms, merged: Merged) -> None:
    added: Counter[str] = Counter()
    there: Counter[str] = Counter()
    with _taken_back() as written:
        for place, copy in source.files.items():
            target = rooms.evidence / place
            content = copy.read_bytes()
            count = added
            try:
                write_whole(target, content)
                written.append(target)
            except FileExistsError:
                if not _same(target, content):
                    raise MatrixError(
                        f"{rooms.shown(target)} was written by somebody else in this moment, with "
                        "another content. Nothing of this source was added."
                    ) from None
                count = there
            if place.suffix == ".json":
                count[place.parts[0]] += 1
    merged.added += added
    merged.there += there


@contextmanager
def _taken_back() -> Iterator[list[Path]]:
    """What was written, removed again when not all could be."""
    written: list[Path] = []
    try:
        yield written
    except BaseException:
        for path in reversed(written):
            path.unlink(missing_ok=True)
        raise
