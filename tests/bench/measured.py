"""One measured number, and the limit it should keep."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """A number with its unit in its name."""

    name: str
    value: float
    most: float | None = None
    """It should be no more than this."""
    least: float | None = None
    """It should be no less than this."""
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether it is outside its limits."""
        over = self.most is not None and self.value > self.most
        return over or (self.least is not None and self.value < self.least)


def show(measured: Measured) -> str:
    """A line for people."""
    limit = ""
    if measured.most is not None:
        limit = f"  (at most {measured.most:g})"
    if measured.least is not None:
        limit = f"  (at least {measured.least:g})"
    mark = "✖" if measured.missed else "✔" if limit else " "
    note = f"  {measured.note}" if measured.note else ""
    return f"{mark} {measured.name} {measured.value:.4g}{limit}{note}"


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Took:
    """What a command took."""

    seconds: float
    """Wall time."""
    cpu_s: float
    """User and system, of all its processes."""
    megabytes: float
    """Peak resident memory of its largest process."""


def command(arguments: list[str], *, folder: Path) -> Took:
    """Run a command that must succeed.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(arguments, cwd=folder, stdout=said, stderr=said)
        # Its own figures: those of all children together would hide it behind a larger one.
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            text = said.read().decode(errors="replace")
            raise RuntimeError(f"{' '.join(arguments)} failed:\n{text[-4000:]}")
    return Took(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
