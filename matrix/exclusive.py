"""One campaign at a time in a project folder, and nothing left of one that was killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from matrix.errors import MatrixError
from matrix.processes import campaign_mark, end_left_over
from matrix.rooms import Rooms


@contextmanager
def only_campaign(rooms: Rooms) -> Iterator[None]:
    """Hold the folder's lock, after ending and sweeping what a killed campaign left.

    Raises:
        MatrixError: another campaign is running here, or the cache can't be written.
    """
    lock = FileLock(rooms.cache / "campaign.lock")
    try:
        rooms.cache.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise MatrixError(
            "another campaign is running in this folder. Wait for it, or use a clone of your own: "
            "two at once would disturb each other's measurements."
        ) from None
    except OSError as error:
        raise MatrixError(
            f"{rooms.shown(rooms.cache)} can't be written: {error.strerror}. Make room or mend the "
            "folder, then run again."
        ) from None
    try:
        end_left_over(campaign_mark(rooms))
        shutil.rmtree(rooms.scratch, ignore_errors=True)
        yield
    finally:
        lock.release()
