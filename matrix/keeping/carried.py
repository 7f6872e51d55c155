"""Evidence carried over from another machine, as a folder or an archive, read with distrust.

Files are copied, never extracted: what is written, and where, is decided here from checked names.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from matrix.errors import DataError
from matrix.keeping.store import LIMIT_BYTES
from matrix.visible import visible

#: More files than a campaign of many years makes.
LIMIT_FILES = 500_000
#: All of one archive, unpacked: what is beside the evidence is passed over, but has to be read.
LIMIT_ARCHIVE_BYTES = 64 * 2**30
#: The longest header of an archive that is read into memory.
_LIMIT_READ = 64 * 2**20

_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_STACK = re.compile(r"[0-9a-f]{12}")
_FILE = re.compile(
    r"[a-z0-9][a-z0-9._-]{0,63}--\d{8}T\d{6}Z-[0-9a-f]{8}\.json"
    r"|lock--[0-9a-f]{16}\.txt"
    r"|patch--[0-9a-f]{16}\.patch"
)
_NO_SOURCE = "it is neither a folder nor a regular file."
#: What a run that was killed while it wrote leaves behind.
_LEFT_OVER = re.compile(r"\..*\.tmp")


class Refused(DataError):
    """A source holds something that is no evidence; nothing of it is used."""


def copy_evidence(source: Path, target: Path) -> None:
    """Copy the evidence of a source into a new folder, as `MACHINE/STACK/FILE`.

    Args:
        source: a project folder, an evidence folder, or a .tar, .tgz or .tar.gz of either.
        target: where to; it must not exist.

    Raises:
        Refused: the source is no such thing, can't be read, or holds a link, a device, a path that
            leads elsewhere, a foreign file or one of absurd size.
    """
    target.mkdir(parents=True)
    found = False
    try:
        if not source.is_dir() and not source.is_file():
            there = source.exists()
            # A pipe would be waited for, for ever.
            raise Refused(_NO_SOURCE if there else "there is no such file or folder.")
        files = _of_folder(source) if source.is_dir() else _of_archive(source)
        for number, (name, content) in enumerate(files):
            if number >= LIMIT_FILES:
                raise Refused(f"more than {LIMIT_FILES} files.")
            machine, stack, file = _checked(name)
            found = found or file.endswith(".json")
            folder = target / machine / stack
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with (folder / file).open("xb") as out:
                    out.write(content)
            except FileExistsError:
                raise Refused(f"{_shown(name)} is there twice.") from None
    except tarfile.ReadError as error:
        raise Refused(f"it is no whole .tar, .tgz or .tar.gz: {error}.") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError) as error:
        raise Refused(f"it can't be read: {error}.") from None
    if not found:
        raise Refused(
            "there is no evidence in it. Name a project folder, its folder matrix/evidence, or a "
            ".tar or .tgz of one of them."
        )


def _checked(name: PurePosixPath) -> tuple[str, str, str]:
    """(machine, stack, file), each safe as a file's name."""
    parts = name.parts
    if len(parts) == 3:
        machine, stack, file = parts
        if _SLUG.fullmatch(machine) and _STACK.fullmatch(stack) and _FILE.fullmatch(file):
            return machine, stack, file
    raise Refused(
        f"{_shown(name)} is no file of an evidence folder. Those are MACHINE/STACK/PROBE--RUN.json "
        "and the locks and patches beside them. Name the folder that holds those of all machines."
    )


def _of_folder(source: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    root = source
    for name in ("matrix", "evidence"):
        inner = root / name
        if inner.is_symlink():
            raise Refused(f"{_shown(inner.relative_to(source))} is a symbolic link.")
        if not inner.is_dir():
            root = source
            break
        root = inner
    yield from _below(root, PurePosixPath())


def _below(folder: Path, name: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: entry.name)
    for entry in listed:
        inner = name / entry.name
        if entry.is_symlink():
            raise Refused(f"{_shown(inner)} is a symbolic link.")
        if entry.is_dir(follow_symlinks=False):
            if len(inner.parts) > 2:
                raise Refused(f"{_shown(inner)} is a folder where only files belong.")
            yield from _below(Path(entry.path), inner)
        elif not _LEFT_OVER.fullmatch(entry.name):
            _checked(inner)
            yield inner, _content(Path(entry.path), inner)


def _content(path: Path, name: PurePosixPath) -> bytes:
    # Asked of the opened file: what lies there could have been replaced since it was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise Refused(f"{_shown(name)} is no ordinary file.")
        _check_size(name, facts.st_size)
        content = file.read(LIMIT_BYTES + 1)
    _check_size(name, len(content))
    return content


def _check_size(name: PurePosixPath, size: int) -> None:
    if not 0 <= size <= LIMIT_BYTES:
        raise Refused(f"{_shown(name)} has {size} bytes; no run writes more than {LIMIT_BYTES}.")


class _Cautious:
    """A file that refuses to be read in huge pieces: an archive's header may ask for any."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LIMIT_READ:
            raise Refused(f"a header of it claims {size} bytes.")
        if self._file.tell() > LIMIT_ARCHIVE_BYTES:
            raise Refused(f"it unpacks to more than {LIMIT_ARCHIVE_BYTES} bytes.")
        return self._file.read(size)

    def seek(self, place: int) -> int:
        if place > LIMIT_ARCHIVE_BYTES:
            raise Refused(f"it unpacks to more than {LIMIT_ARCHIVE_BYTES} bytes.")
        return self._file.seek(place)

    def tell(self) -> int:
        return self._file.tell()


@contextmanager
def _opened(source: Path) -> Iterator[tarfile.TarFile]:
    with source.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        plain: IO[bytes] = gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[assignment]
        cautious: IO[bytes] = _Cautious(plain)  # type: ignore[assignment]
        with tarfile.open(fileobj=cautious, mode="r:", errorlevel=2) as archive:
            yield archive


def _of_archive(source: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    prefix = _evidence_in(source)
    with _opened(source) as archive:
        for member in _members(archive):
            name = PurePosixPath(member.name)
            if not name.is_relative_to(prefix) or name == prefix:
                continue
            inner = name.relative_to(prefix)
            if member.isdir():
                if len(inner.parts) > 2:
                    raise Refused(f"{_shown(inner)} is a folder where only files belong.")
                continue
            if _LEFT_OVER.fullmatch(inner.name):
                continue
            _checked(inner)
            _check_size(inner, member.size)
            content = archive.extractfile(member)
            if content is None:  # refused before; nothing without content comes here
                raise Refused(f"{_shown(name)} has no content.")
            yield inner, content.read()


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        # The library keeps every member it has seen; a long list would fill the memory.
        archive.members = []  # type: ignore[attr-defined]
        yield member
    # It takes a damaged header for the end, and would lose what comes after it.
    end: IO[bytes] = archive.fileobj  # type: ignore[assignment]
    end.seek(archive.offset)
    if end.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise Refused("it is cut or damaged: it has no end.")
    while rest := end.read(2**20):
        if rest.strip(b"\0"):
            raise Refused("something follows its end.")


def _evidence_in(source: Path) -> PurePosixPath:
    """Where in an archive its evidence folder is; every member's name is checked on the way."""
    folders: set[PurePosixPath] = set()
    bare: set[PurePosixPath] = set()
    with _opened(source) as archive:
        others: list[PurePosixPath] = []
        for number, member in enumerate(_members(archive)):
            if number >= 4 * LIMIT_FILES:
                raise Refused("it has more entries than a project folder has files.")
            name = PurePosixPath(member.name)
            if member.size < 0:
                raise Refused(f"{_shown(name)} claims a size below 0.")
            if name.is_absolute() or ".." in name.parts or "\0" in member.name:
                raise Refused(f"{_shown(name)} leads out of the archive.")
            if not (member.isreg() or member.isdir()) or member.issparse():
                others.append(name)
            parts = name.parts
            for place in range(1, len(parts)):
                if parts[place - 1 : place + 1] == ("matrix", "evidence"):
                    folders.add(PurePosixPath(*parts[: place + 1]))
                    break
            if len(parts) > 2 and _FILE.fullmatch(parts[-1]) and _STACK.fullmatch(parts[-2]):
                bare.add(PurePosixPath(*parts[:-3]))
    found = folders or bare
    if len(found) > 1:
        names = ", ".join(sorted(_shown(name) or "." for name in found)[:3])
        raise Refused(f"it has several evidence folders: {names}. Make an archive of each.")
    if not found:
        return PurePosixPath()
    (prefix,) = found
    for name in others:
        if name.is_relative_to(prefix) or prefix.is_relative_to(name):
            raise Refused(f"{_shown(name)} is a link, a device or the like.")
    return prefix


def _shown(name: PurePosixPath | Path) -> str:
    return visible(str(name))[:200]
