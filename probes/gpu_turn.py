"""Whose turn it is on the GPU: many probes share it, and some need it for themselves for a while.

The turn is a lock on a file of the host's: whoever shares the GPU holds it shared for as long as
it lives, and whoever needs it alone waits until nobody else holds it. The kernel lets go of it
when a process ends, however that happens, so nobody has to clean up after a crash.

Standard library only: the host imports it too.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

WAITING: Final = "wait until nothing else uses the GPU"
"""Name of the step in which a probe waits: it does not count towards a time limit."""
LONGEST_WAIT_S: Final = 3600.0
"""Seconds; who is still waiting then waits for something that will not come."""


class Turn:
    """A place in the queue for one GPU; without a file, on a machine of one's own, it is free.

    Args:
        path: the lock's file, or None.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def share(self) -> None:
        """Use the GPU beside others, until this process ends or takes the turn back."""
        self._take(fcntl.LOCK_SH)

    def take(self) -> float:
        """Wait until nobody else uses the GPU, and keep it so.

        Returns:
            Seconds that were waited.
        """
        started = time.monotonic()
        self._take(fcntl.LOCK_EX)
        return time.monotonic() - started

    def give_back(self) -> None:
        """Let others use the GPU."""
        self._take(fcntl.LOCK_UN)

    def _take(self, how: int) -> None:
        if self._file is not None:
            fcntl.flock(self._file, how)
