"""How long cells take, and how long what is left will take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

#: (stack id, probe)
Name = tuple[str, str]


def expected_seconds(
    cells: Iterable[Name], measured: Iterable[tuple[str, str, float]]
) -> dict[Name, float]:
    """What each cell will take, from what was measured earlier.

    The newest run of the same cell tells most; else the median of the same probe on other stacks.
    A cell whose probe never ran anywhere has no entry.

    Args:
        cells: what is to run.
        measured: (stack id, probe, seconds) of earlier runs, oldest first; runs of 0 seconds had no
            process and tell nothing.
    """
    own: dict[Name, float] = {}
    by_probe: dict[str, list[float]] = {}
    for stack, probe, seconds in measured:
        if seconds > 0:
            own[stack, probe] = seconds
            by_probe.setdefault(probe, []).append(seconds)
    medians = {probe: statistics.median(found) for probe, found in by_probe.items()}
    expected = {}
    for name in cells:
        seconds = own.get(name, medians.get(name[1], 0.0))
        if seconds > 0:
            expected[name] = seconds
    return expected


@dataclass
class Pace:
    """The course of one campaign; not safe to use from several threads at once."""

    cells: int
    expected: Mapping[Name, float] = field(default_factory=dict)
    """Seconds for each cell, as far as they are known."""
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    _began: float | None = None
    _worked: float = 0.0
    """Seconds of all runs that ended, side by side or not."""
    _finished: set[Name] = field(default_factory=set)
    _running: dict[Name, float] = field(default_factory=dict)

    def began(self, name: Name) -> None:
        """A probe's process started."""
        now = self.clock()
        if self._began is None:
            self._began = now
        self._running[name] = now

    def ended(self, name: Name, seconds: float) -> None:
        """A run ended after so many seconds."""
        if self._began is None:
            self._began = self.clock() - seconds
        self.done += 1
        self._worked += seconds
        self._running.pop(name, None)
        self._finished.add(name)

    def seconds_per_cell(self) -> float | None:
        """Seconds on the clock for each cell so far; None before the first one ended."""
        if self._began is None or self.done == 0:
            return None
        return (self.clock() - self._began) / self.done

    def seconds_left(self) -> float | None:
        """About how long the rest will take; None while too little is known.

        The seconds that the rest is expected to take, divided by how many probes have been running
        side by side so far. A cell of which nothing is known counts as the mean of the others.
        """
        left = self.cells - self.done
        if left <= 0:
            return 0.0
        now = self.clock()
        known = [seconds for name, seconds in self.expected.items() if name not in self._finished]
        mean = self._mean(known)
        if mean is None or self._began is None or now <= self._began:
            return None
        spent = {name: now - start for name, start in self._running.items()}
        # A run that takes longer than expected is taken to end any moment.
        ahead = sum(
            max(0.0, seconds - spent.get(name, 0.0))
            for name, seconds in self.expected.items()
            if name not in self._finished
        )
        ahead += mean * max(0, left - len(known))
        side_by_side = max(1.0, (self._worked + sum(spent.values())) / (now - self._began))
        return ahead / side_by_side

    def _mean(self, known: list[float]) -> float | None:
        if self.done:
            return self._worked / self.done
        return statistics.fmean(known) if known else None


def shown_seconds(seconds: float) -> str:
    """Seconds for people: `8.5 s`, `45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
