"""Who holds an environment: any number of runs at once, or one builder alone."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from matrix.running.processes import Stopped

_POLL_S = 0.1


def always() -> bool:
    """Wait as long as it takes."""
    return True


def never() -> bool:
    """Don't wait."""
    return False


@contextmanager
def locked(folder: Path, going_on: Callable[[], bool] = always) -> Iterator[None]:
    """Decide alone, among all campaigns, what becomes of an environment's folder.

    Args:
        folder: the environment; its parent must exist.
        going_on: asked again and again whether to wait.

    Raises:
        Stopped: `going_on` said no.
    """
    lock = FileLock(folder.parent / f"{folder.name}.lock", thread_local=False)
    while True:
        try:
            lock.acquire(timeout=5 * _POLL_S)
            break
        except Timeout:
            if not going_on():
                raise Stopped from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def held(folder: Path, *, alone: bool, going_on: Callable[[], bool] = always) -> Iterator[None]:
    """Keep an environment as it is while a run uses it; `alone` for who removes or makes it.

    Args:
        folder: the environment; its parent must exist.
        alone: wait until nobody else holds it, and let nobody else.
        going_on: asked again and again whether to wait.

    Raises:
        Stopped: `going_on` said no.
    """
    # Whoever dies lets go of it: the system releases a lock with the last descriptor of its file.
    descriptor = os.open(folder.parent / f"{folder.name}.use", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        how = (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, how)
                break
            if not going_on():
                raise Stopped
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)
