"""The evidence store: one JSON file per run, append-only, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from matrix.errors import DataError, MatrixError
from matrix.keeping.records import Record
from matrix.keeping.written import KnownParts, as_written, serialise
from matrix.models import explain
from matrix.rooms import Rooms, check_no_links
from patches.candidates import patch_name

#: Far more than any run writes; reading more than this is not worth the memory.
LIMIT_BYTES = 4 * 2**20


def write_whole(path: Path, text: str | bytes) -> None:
    """Create `path` with `text`, durably; it is either complete or not there.

    Raises:
        FileExistsError: `path` exists. Nothing is ever overwritten.
        MatrixError: the disk is full or the folder can't be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MatrixError(
            f"{path.parent} can't be made: {error.strerror}. Remove what is there, or make room, "
            "then run again."
        ) from None
    try:
        with temporary.open("wb") as file:
            file.write(text.encode("utf-8") if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        # A hard link fails when the name is taken; a rename would overwrite it.
        os.link(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        raise
    except OSError as error:
        raise MatrixError(
            f"{path} could not be written: {error.strerror}. "
            "Nothing already written is lost; make room or mend the folder, then run again."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class Store:
    """The evidence of one project folder."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._evidence = str(rooms.evidence)
        self._known = KnownParts()

    def add(self, record: Record) -> Path:
        """Write a new record and return its file.

        Raises:
            FileExistsError: a record with this run id is already there.
            MatrixError: it could not be written.
        """
        path = self._rooms.evidence / place_of(record)
        check_no_links(self._rooms, path.parent)
        write_whole(path, serialise(record))
        return path

    def add_lock(self, machine: str, stack: str, digest: str, text: str) -> None:
        """Keep a lock beside the records that name it; the same lock is written once."""
        try:
            write_whole(self._folder(machine, stack) / lock_name(digest), text)
        except FileExistsError:
            return

    def add_patch(self, machine: str, stack: str, head: str, text: bytes) -> None:
        """Keep a patch file beside the records that name it, so that they can be repeated.

        Args:
            machine: whose folder.
            stack: whose folder.
            head: what the records call it, `sha256:` and a digest.
            text: the patch.
        """
        try:
            write_whole(self._folder(machine, stack) / patch_name(head), text)
        except FileExistsError:
            return

    def records(self) -> Iterator[tuple[Path, Record]]:
        """Every record with its file, sorted by file name.

        Raises:
            DataError: a file is cut, foreign, misplaced or does not validate.
        """
        places = [place for place, _ in evidence_files(self._rooms)]
        evidence = self._rooms.evidence
        for place in sorted(places, key=lambda place: place.split("/")):
            yield evidence / place, self.read_placed(place)

    def files(self, machine: str, stack: str) -> list[Path]:
        """The files of a machine's records of a stack, unread."""
        return sorted(self._folder(machine, stack).glob("*.json"))

    def read_at(self, path: Path) -> Record:
        """One record of this store, which must lie where it belongs.

        Raises:
            DataError: the file is a link, cut, foreign, misplaced or does not validate.
        """
        check_no_links(self._rooms, path)
        return self.read_placed(path.relative_to(self._rooms.evidence).as_posix())

    def read_placed(self, place: str) -> Record:
        """The record at a place that `evidence_files` named, so that links need no look.

        Raises:
            DataError: the file is cut, foreign, misplaced or does not validate.
        """
        record = self._read(f"{self._evidence}/{place}")
        belongs = _place_of(record)
        if belongs != place:
            raise DataError(
                f"{self._rooms.shown(self._rooms.evidence / place)}: this record belongs at "
                f"{belongs}. Move the file back there."
            )
        return record

    def read(self, path: Path) -> Record:
        """One record.

        Raises:
            DataError: the file is cut, foreign or does not validate.
        """
        return self._read(str(path))

    def _read(self, path: str) -> Record:
        # Plain strings and one look at the file: there may be a hundred thousand of them.
        try:
            text = self._content(path).decode("utf-8")
            record = self._known.record(text)
            if record is not None:
                return record
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            shown = self._shown(path)
            raise DataError(
                f"{shown} is not valid JSON ({error}); it may have been cut. Bring it back with "
                f"`git checkout -- {shown}` if it is committed, else move it out of "
                "matrix/evidence. Nothing was changed."
            ) from None
        except OSError as error:
            raise DataError(f"{self._shown(path)} can't be read: {error.strerror}.") from None
        try:
            whole = as_written(data) == text
            record = Record.model_validate(data)
        except (ValueError, OverflowError, RecursionError) as caught:
            why = explain(caught) if isinstance(caught, ValidationError) else f"  {caught}"
            raise DataError(
                f"{self._shown(path)} is not an evidence record of schema 1:\n{why}\n"
                "Evidence is never mended by hand: bring the file back from git, or move it "
                "out of matrix/evidence."
            ) from None
        if not whole:
            # Two values under one key, say: people would read the one, programs the other.
            raise DataError(
                f"{self._shown(path)} does not stand as a run writes it. Evidence is never "
                "mended by hand: bring the file back from git, or move it out of matrix/evidence."
            )
        return record

    def lock(self, record: Record) -> Path | None:
        """The file of the lock that a record names, or None when it names none.

        Raises:
            DataError: the file is not there, is a link, or holds something else.
        """
        if record.stack.lock is None:
            return None
        path = self._folder(record.machine.name, record.stack.id) / lock_name(record.stack.lock)
        check_no_links(self._rooms, path)
        shown = self._rooms.shown(path)
        try:
            content = path.read_bytes()
        except OSError:
            raise DataError(
                f"{shown} is named by run {record.run.id} and is not there. Bring it back from "
                "git: without it the same packages can't be installed."
            ) from None
        if hashlib.sha256(content).hexdigest() != record.stack.lock:
            raise DataError(
                f"{shown} is not the lock of run {record.run.id}: its hash differs. Bring the "
                "file back from git."
            )
        return path

    def _content(self, path: str) -> bytes:
        try:
            facts = os.stat(path)  # noqa: PTH116 - a path object would cost more than the look
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{self._shown(path)}: there is no such file.") from None
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > LIMIT_BYTES:
            raise DataError(
                f"{self._shown(path)} is no file of at most {LIMIT_BYTES} bytes, so it is no "
                "record. Move it out of matrix/evidence."
            )
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - the same
            return file.read()

    def _shown(self, path: str) -> str:
        return self._rooms.shown(Path(path))

    def _folder(self, machine: str, stack: str) -> Path:
        return self._rooms.evidence / machine / stack


def place_of(record: Record) -> Path:
    """Where a record's file belongs, relative to the evidence folder."""
    return Path(_place_of(record))


def _place_of(record: Record) -> str:
    return f"{record.machine.name}/{record.stack.id}/{record.probe.id}--{record.run.id}.json"


def evidence_files(rooms: Rooms) -> Iterator[tuple[str, os.stat_result]]:
    """Every evidence file by its place below the evidence folder, with its facts, unread.

    Raises:
        DataError: the evidence folder is a link, or a file or a folder on the way to one is.
    """
    check_no_links(rooms, rooms.evidence)
    for machine in _folders(str(rooms.evidence)):
        for stack in _folders(machine.path):
            linked = machine.is_symlink() or stack.is_symlink()
            with os.scandir(stack.path) as files:
                for file in files:
                    if not file.name.endswith(".json"):
                        continue
                    place = f"{machine.name}/{stack.name}/{file.name}"
                    if linked or file.is_symlink():
                        check_no_links(rooms, rooms.evidence / place)
                    yield place, file.stat(follow_symlinks=False)


def _folders(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if entry.is_dir()), key=lambda e: e.name)
    except FileNotFoundError:
        return []


def lock_name(digest: str) -> str:
    """The file that holds a lock, from the lock's sha256."""
    return f"lock--{digest[:16]}.txt"
