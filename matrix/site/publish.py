"""Writing what is published: all of it is made first, then each file is replaced whole."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final, Self

from matrix.errors import MatrixError
from matrix.parallel import die_with_parent, in_processes
from matrix.rooms import Rooms, check_no_links
from matrix.site.pages import check_no_marker

#: What rendering owns below the docs folder. Everything else there is written by hand.
GENERATED_FOLDERS = ("api", "components", "machines", "patches", "probes", "stacks")
GENERATED_FILES = ("changes.md", "claims.md", "coverage.md", "environment.md", "index.md")

#: From so many on, starting processes is the smaller part of writing them.
MANY_FILES: Final = 4000

_FRESH: Final = ".render-"
_HELD: Final = ".gitignore"
"""Of such a folder: locked for as long as somebody writes there."""


class CopiedAhead:
    """Files that another processor copies while what they belong to is still being made.

    Nothing is moved into its place before `replace_generated`, which may be given this. To be used
    as a context: at its end the process is gone, and so is what it wrote.

    Args:
        rooms: of the project.
        files: where each comes from, by its name below the docs folder. Of few, or where there is
            one processor only, none is copied ahead.
    """

    def __init__(self, rooms: Rooms, files: Mapping[str, Path]) -> None:
        self.folder: Path | None = None
        self._rooms = rooms
        self._files = files
        self._process: ForkProcess | None = None
        self._held = ExitStack()

    def names(self) -> frozenset[str]:
        """What was copied, once that is done; nothing where it failed, so that it is done again."""
        if self._process is None:
            return frozenset()
        self._process.join()
        return frozenset(self._files) if self._process.exitcode == 0 else frozenset()

    def __enter__(self) -> Self:
        if len(self._files) < MANY_FILES or len(os.sched_getaffinity(0)) < 2:
            return self
        docs = self._rooms.docs
        check_no_links(self._rooms, docs)
        try:
            folder = self._held.enter_context(_fresh_folder(docs))
        except OSError:
            return self  # It is tried again when all is made, and then refused in words.

        def copy() -> None:
            die_with_parent()
            # Whoever interrupts the parent interrupts nothing here: the parent ends this.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for name, source in self._files.items():
                _stage(folder / "docs", docs, name, source)

        self.folder = folder
        self._process = multiprocessing.get_context("fork").Process(target=copy, daemon=True)
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._held.close()


def replace_generated(
    rooms: Rooms, files: Mapping[str, bytes | Path], ahead: CopiedAhead | None = None
) -> list[Path]:
    """Put `files` in place of what was generated before, and return them sorted.

    A file is given as its content, or as another file that it is a copy of. One that stands there
    already keeps its time, so that a preview does not reload for nothing.

    Old output is never removed before the new is complete beside it. Each file is then renamed
    over its old one, so a reader or a killed process finds every file whole; what is no longer
    generated goes last.

    Raises:
        MatrixError: the docs folder can't be written.
    """
    for name in files:
        if name not in GENERATED_FILES and name.split("/")[0] not in GENERATED_FOLDERS:
            raise ValueError(f"{name} is not a place for generated files")
    check_no_links(rooms, rooms.docs, *(rooms.docs / name for name in GENERATED_FILES))
    for folder in GENERATED_FOLDERS:
        check_no_links(rooms, rooms.docs / folder)
        for entry in _below(str(rooms.docs / folder)):
            if entry.is_symlink():
                check_no_links(rooms, Path(entry.path))
    try:
        given = ahead.folder if ahead is not None else None
        with nullcontext(given) if given is not None else _fresh_folder(rooms.docs) as fresh:
            staged = fresh / "docs"
            copied = ahead.names() if ahead is not None else frozenset()
            _stage_all(staged, rooms.docs, {n: c for n, c in files.items() if n not in copied})
            _move(str(staged), str(rooms.docs))
        _prune(rooms.docs, files)
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.docs)} can't be written: {error.strerror} ({error.filename}). "
            "Make room or mend the folder, then render again."
        ) from None
    # As paths sort, without making paths of them first.
    return [rooms.docs / name for name in sorted(files, key=lambda name: name.split("/"))]


@contextmanager
def _fresh_folder(docs: Path) -> Iterator[Path]:
    """A folder to write to first, whose `docs` takes the place of the real one's files."""
    docs.mkdir(parents=True, exist_ok=True)
    _sweep(docs)
    # Beside its destination, for a rename can't cross file systems. mkdocs leaves out names that
    # begin with a dot, and git leaves out this one.
    fresh = Path(tempfile.mkdtemp(prefix=_FRESH, dir=docs))
    try:
        with (fresh / _HELD).open("w", encoding="utf-8") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.write("*\n")
            held.flush()
            (fresh / "docs").mkdir()
            yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _sweep(docs: Path) -> None:
    """Remove what killed processes left: folders that nobody holds any more."""
    for old in docs.glob(f"{_FRESH}*"):
        try:
            with (old / _HELD).open("rb") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # Somebody holds it, or has just made it and will.
        shutil.rmtree(old, ignore_errors=True)


def _stage_all(staged: Path, docs: Path, files: Mapping[str, bytes | Path]) -> None:
    def stage(name: str) -> None:
        _stage(staged, docs, name, files[name])

    many = len(files) >= MANY_FILES
    for _ in (in_processes if many else map)(stage, list(files)):
        pass


def _stage(staged: Path, docs: Path, name: str, given: bytes | Path) -> None:
    """Write a file below `staged` unless it stands below `docs` already."""
    content = given if isinstance(given, bytes) else _read(given)
    if not _stands(f"{docs}/{name}", content):
        _write(f"{staged}/{name}", content)


def _move(staged: str, docs: str) -> None:
    """Rename everything into its place, a folder that is not there yet as a whole."""
    with os.scandir(staged) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        place = f"{docs}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and os.path.isdir(place):  # noqa: PTH112
            _move(entry.path, place)
        else:
            os.replace(entry.path, place)  # noqa: PTH105 - says what happens to the old file


def check_hand_written(rooms: Rooms) -> None:
    """Refuse a hand-written page that waits for generated text, for none is ever filled there.

    Raises:
        MatrixError: one does.
    """
    for path in sorted(rooms.docs.rglob("*.md")):
        name = path.relative_to(rooms.docs).as_posix()
        if name.split("/")[0] not in (*GENERATED_FOLDERS, *GENERATED_FILES):
            try:
                check_no_marker(rooms.shown(path), path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                raise MatrixError(f"{rooms.shown(path)} is not UTF-8. Save it as UTF-8.") from None


# Plain strings and no buffers in these, for there are very many files.


def _read(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read()


def _write(path: str, content: bytes) -> None:
    try:
        file = open(path, "wb")  # noqa: PTH123, SIM115 - nearly always the folder is there
    except FileNotFoundError:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")  # noqa: PTH123, SIM115
    with file:
        file.write(content)


def _stands(path: str, content: bytes) -> bool:
    """Whether a file has this content already."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            # One byte more shows that a file is longer.
            return file.read(len(content) + 1) == content
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, what is deeper first; links are not followed."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path)
        yield entry


def _prune(docs: Path, files: Iterable[str]) -> None:
    kept = {f"{docs}/{name}" for name in files}
    for folder in GENERATED_FOLDERS:
        for entry in _below(str(docs / folder)):
            if entry.is_dir(follow_symlinks=False):
                if not any(Path(entry.path).iterdir()):
                    Path(entry.path).rmdir()
            elif entry.path not in kept:
                Path(entry.path).unlink()
