"""Writing what is published: all of it is made first, then each file is replaced whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from matrix.errors import MatrixError
from matrix.rooms import Rooms, check_no_links
from matrix.site.pages import check_no_marker

#: What rendering owns below the docs folder. Everything else there is written by hand.
GENERATED_FOLDERS = ("api", "components", "machines", "patches", "probes", "stacks")
GENERATED_FILES = ("changes.md", "claims.md", "coverage.md", "environment.md", "index.md")


def replace_generated(rooms: Rooms, files: Mapping[str, bytes | Path]) -> list[Path]:
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
        rooms.docs.mkdir(parents=True, exist_ok=True)
        # Beside its destination, for a rename can't cross file systems. mkdocs leaves out names
        # that begin with a dot, and git leaves out this one.
        fresh = Path(tempfile.mkdtemp(prefix=".render-", dir=rooms.docs))
        try:
            (fresh / ".gitignore").write_text("*\n", encoding="utf-8")
            new = []
            for name, given in files.items():
                content = given if isinstance(given, bytes) else given.read_bytes()
                if not _stands(f"{rooms.docs}/{name}", content):
                    new.append(name)
                    path = fresh / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
            for name in new:
                old = rooms.docs / name
                old.parent.mkdir(parents=True, exist_ok=True)
                os.replace(fresh / name, old)  # noqa: PTH105 - says what happens to the old file
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _prune(rooms.docs, files)
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.docs)} can't be written: {error.strerror} ({error.filename}). "
            "Make room or mend the folder, then render again."
        ) from None
    return sorted(rooms.docs / name for name in files)


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


def _stands(path: str, content: bytes) -> bool:
    """Whether a file has this content already."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - there are very many
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
