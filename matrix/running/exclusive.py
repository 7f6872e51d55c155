"""Campaigns of one folder: each has a name of its own, and sweeps what killed ones left."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from matrix.errors import MatrixError
from matrix.rooms import Rooms
from matrix.running.processes import end_left_over

HALF_WRITTEN_S = 600.0
"""Age from which a half-written file is rubbish; writing one takes milliseconds."""


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
    # A file that a kill left half-written has a name that nothing reads. Somebody else, perhaps on
    # another machine, may be writing one right now: those are young.
    for path in rooms.evidence.glob("*/*/.*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > HALF_WRITTEN_S:
                path.unlink()
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
def claimed(rooms: Rooms, *cell: str, wait: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Whether a cell is this campaign's to run; False while another one runs it.

    Args:
        rooms: the project folder.
        cell: what tells the cell from all others of this folder.
        wait: asked again and again whether to wait for the other campaign; None does not wait.

    Raises:
        MatrixError: the cache can't be written.
    """
    try:
        rooms.claims.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.claims)} can't be made: {error.strerror}. Remove what is there, "
            "or make room, then run again."
        ) from None
    digest = hashlib.sha256("\0".join(cell).encode()).hexdigest()[:24]
    lock = FileLock(rooms.claims / f"{digest}.lock", thread_local=False)
    while True:
        try:
            lock.acquire(timeout=0 if wait is None else 0.5)
            break
        except Timeout:
            if wait is None or not wait():
                yield False
                return
    try:
        yield True
    finally:
        lock.release()
