"""Campaigns of one folder: each has a name of its own, and sweeps what killed ones left."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from matrix.errors import MatrixError
from matrix.processes import end_left_over
from matrix.rooms import Rooms


@contextmanager
def campaign_of(rooms: Rooms) -> Iterator[str]:
    """A name for a running campaign, whose lock says that it is alive.

    What campaigns of this folder left that are alive no more is ended and swept first: processes
    that would keep the GPU, and their scratch folders. Living ones are left alone.

    Raises:
        MatrixError: the cache can't be written.
    """
    name = secrets.token_hex(8)
    try:
        rooms.campaigns_running.mkdir(parents=True, exist_ok=True)
        lock = FileLock(rooms.campaigns_running / f"{name}.lock")
        lock.acquire(timeout=0)
        _sweep(rooms, name)
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.cache)} can't be written: {error.strerror}. Make room or mend the "
            "folder, then run again."
        ) from None
    try:
        yield name
    finally:
        shutil.rmtree(rooms.scratch / name, ignore_errors=True)
        lock.release()
        with suppress(OSError):
            (rooms.campaigns_running / f"{name}.lock").unlink()


def _sweep(rooms: Rooms, own: str) -> None:
    """End and remove what campaigns left whose lock nobody holds."""
    for path in sorted(rooms.campaigns_running.glob("*.lock")):
        name = path.stem
        if name == own:
            continue
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue  # it is alive
        try:
            end_left_over(name)
            shutil.rmtree(rooms.scratch / name, ignore_errors=True)
            path.unlink(missing_ok=True)
        finally:
            lock.release()


@contextmanager
def claimed(rooms: Rooms, *cell: str) -> Iterator[bool]:
    """Whether a cell is this campaign's to run; False while another one runs it.

    Args:
        rooms: the project folder.
        cell: what tells the cell from all others of this folder.
    """
    rooms.claims.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\0".join(cell).encode()).hexdigest()[:24]
    lock = FileLock(rooms.claims / f"{digest}.lock", thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
