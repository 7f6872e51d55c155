"""One measured number, and the limit it should keep."""

from __future__ import annotations

import resource
import subprocess
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


def command(arguments: list[str], *, folder: Path) -> tuple[float, float]:
    """Seconds and peak resident megabytes of a command that must succeed.

    Raises:
        RuntimeError: it failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    done: list[subprocess.CompletedProcess[str]] = []
    seconds = timed(
        lambda: done.append(
            subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        )
    )
    if done[0].returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done[0].stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # The system keeps the largest of all children; a larger one before this hides it.
    return seconds, (max(before, after)) / 1024
