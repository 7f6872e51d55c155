"""Where along one axis a probe's answer changes: which version to run next, or the answer. Pure.

Two ways. A steady probe gives a version the same answer each time; then one run for each version
is enough, and versions that can't be tested are stepped around, as cargo-bisect-rustc does. A flaky
probe fails in some runs only; then every version has a rate of failure, one rate up to the change
and another from there on, and runs are spent where they tell most about the place of the change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import cos, exp, lgamma, log, pi, sin

from packaging.version import InvalidVersion, Version

from matrix.components import Component


@dataclass(frozen=True)
class Tally:
    """What is known of one version."""

    passed: int = 0
    failed: int = 0
    untestable: bool = False
    """Nothing can be learnt of it: it conflicts, lacks what the probe needs, or can't be had."""

    @property
    def runs(self) -> int:
        return self.passed + self.failed


@dataclass(frozen=True)
class Run:
    """Run these versions next. Several only where none depends on another's result."""

    versions: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Answer:
    """Between which two versions the probe's answer changes."""

    last: str
    """The last version that is as the good one."""
    first: str
    """The first version that is as the bad one."""
    between: tuple[str, ...] = ()
    """Versions in between that could not be tested: the change may be in any of them."""
    probability: float | None = None
    """Of the answer, for a flaky probe; None for a steady one."""


@dataclass(frozen=True)
class Stuck:
    """No answer can be given, and no run would help."""

    why: str


Step = Run | Answer | Stuck

_NOTHING = Tally()


def next_step(
    versions: Sequence[str],
    results: Mapping[str, Tally],
    *,
    flaky: bool = False,
    confidence: float = 0.95,
    most_runs: int = 400,
) -> Step:
    """What to run next, or the answer.

    A steady search turns into a flaky one as soon as a version has both passed and failed.

    Args:
        versions: in order, from the good one to the bad one, both included.
        results: what is known of each; a version without entry was never run.
        flaky: reckon with a fault that strikes in some runs only, from the start.
        confidence: how sure to be of the answer for a flaky probe.
        most_runs: of a flaky probe, after which the search gives up.

    Raises:
        ValueError: there are fewer than two versions, or one is listed twice.
    """
    if len(versions) < 2 or len(set(versions)) < len(versions):
        raise ValueError("a search is between two versions, each listed once")
    known = [results.get(version, _NOTHING) for version in versions]
    for end, tally in ((versions[0], known[0]), (versions[-1], known[-1])):
        if tally.untestable and not tally.runs:
            return Stuck(f"{end} can't be tested, and it is one of the two ends")
    ends = [v for v, t in ((versions[0], known[0]), (versions[-1], known[-1])) if not t.runs]
    if ends:
        return Run(tuple(ends), "both ends come first")
    mixed = any(tally.passed and tally.failed for tally in known)
    if flaky or mixed:
        return _flaky_step(versions, known, confidence, most_runs)
    return _steady_step(versions, known)


def _steady_step(versions: Sequence[str], known: Sequence[Tally]) -> Step:
    if known[0].failed:
        return Stuck(f"{versions[0]} was to be the good end, and it fails")
    if known[-1].passed:
        return Stuck(f"{versions[-1]} was to be the bad end, and it passes")
    bad = next(place for place, tally in enumerate(known) if tally.failed)
    good = max(place for place in range(bad) if known[place].passed)
    between = range(good + 1, bad)
    open_ = [place for place in between if not known[place].untestable]
    if not open_:
        return Answer(versions[good], versions[bad], tuple(versions[place] for place in between))
    # Around the middle of what can be tested; beside an untestable block the search goes on.
    place = open_[(len(open_) - 1) // 2]
    return Run((versions[place],), f"between {versions[good]} (pass) and {versions[bad]} (fail)")


def _flaky_step(
    versions: Sequence[str], known: Sequence[Tally], confidence: float, most_runs: int
) -> Step:
    able = [place for place, tally in enumerate(known) if tally.runs or not tally.untestable]
    tallies = [known[place] for place in able]
    posterior = change_probabilities(tallies)
    best = max(range(len(posterior)), key=lambda place: posterior[place])
    spent = sum(tally.runs for tally in tallies)
    left, right = able[best], able[best + 1]
    worse = chance_of_a_higher_rate(tallies[: best + 1], tallies[best + 1 :])
    if posterior[best] * worse >= confidence:
        between = tuple(versions[left + 1 : right])
        return Answer(versions[left], versions[right], between, posterior[best] * worse)
    if posterior[best] * (1 - worse) >= confidence:
        return Stuck(
            f"{versions[0]} was to be the good end, yet versions up to {versions[left]} fail more "
            f"often than those from {versions[right]} on"
        )
    if spent >= most_runs:
        return Stuck(
            f"{spent} runs did not place the change with a probability of {confidence:g}; the best "
            f"guess is {versions[able[best + 1]]} with {posterior[best]:.2f}"
        )
    place = most_telling(tallies)
    guess = versions[able[best + 1]]
    return Run(
        (versions[able[place]],),
        f"{guess} is first to be bad with probability {posterior[best]:.2f} after {spent} runs",
    )


def change_probabilities(tallies: Sequence[Tally]) -> list[float]:
    """The probability that the rate of failure changes behind each version but the last.

    Each place is as likely beforehand. On either side the runs are Bernoulli trials of one unknown
    rate, with Jeffreys' prior Beta(1/2, 1/2).
    """
    failed = passed = 0
    all_failed = sum(tally.failed for tally in tallies)
    all_passed = sum(tally.passed for tally in tallies)
    logs = []
    for tally in tallies[:-1]:
        failed += tally.failed
        passed += tally.passed
        logs.append(
            _log_evidence(failed, passed) + _log_evidence(all_failed - failed, all_passed - passed)
        )
    top = max(logs)
    weights = [exp(value - top) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def most_telling(tallies: Sequence[Tally]) -> int:
    """The version whose next run leaves the least expected entropy; of equals the least tried."""
    posterior = change_probabilities(tallies)
    predicted = _predicted(tallies, posterior)

    def expected(place: int) -> tuple[float, int, int]:
        rate = predicted[place]
        left = 0.0
        for chance, failed in ((rate, 1), (1 - rate, 0)):
            tally = tallies[place]
            after = list(tallies)
            after[place] = Tally(tally.passed + 1 - failed, tally.failed + failed)
            left += chance * entropy(change_probabilities(after))
        # Rounded, so that equal choices are equal on every machine.
        return round(left, 9), tallies[place].runs, place

    return min(range(len(tallies)), key=expected)


def chance_of_a_higher_rate(before: Sequence[Tally], after: Sequence[Tally]) -> float:
    """The probability that the second group's rate of failure is above the first's.

    Both rates have Jeffreys' prior, under which the arcsine of a rate's root is uniform: a sum over
    equal steps of that angle is an integral over the rates.
    """
    first, second = _densities(before), _densities(after)
    below = chance = 0.0
    for density, other in zip(first, second, strict=True):
        chance += other * (below + density / 2)
        below += density
    return chance


def _densities(tallies: Sequence[Tally], steps: int = 1000) -> list[float]:
    """The posterior of a rate over equal steps of its angle; the sum is 1."""
    failed = sum(tally.failed for tally in tallies)
    passed = sum(tally.passed for tally in tallies)
    angles = [(step + 0.5) / steps * pi / 2 for step in range(steps)]
    logs = [2 * failed * log(sin(angle)) + 2 * passed * log(cos(angle)) for angle in angles]
    top = max(logs)
    weights = [exp(value - top) for value in logs]
    total = sum(weights)
    return [weight / total for weight in weights]


def entropy(probabilities: Sequence[float]) -> float:
    """In nats."""
    return -sum(p * log(p) for p in probabilities if p > 0)


def _predicted(tallies: Sequence[Tally], posterior: Sequence[float]) -> list[float]:
    """The chance that the next run of each version fails."""
    rates = []
    for place in range(len(tallies)):
        rate = 0.0
        for change, weight in enumerate(posterior):
            side = tallies[: change + 1] if place <= change else tallies[change + 1 :]
            rate += weight * _rate(side)
        rates.append(rate)
    return rates


def _rate(tallies: Sequence[Tally]) -> float:
    failed = sum(tally.failed for tally in tallies)
    return (failed + 0.5) / (failed + sum(tally.passed for tally in tallies) + 1)


def _log_evidence(failed: int, passed: int) -> float:
    """Logarithm of Beta(failed + 1/2, passed + 1/2), less a constant that every place shares."""
    return lgamma(failed + 0.5) + lgamma(passed + 0.5) - lgamma(failed + passed + 1)


def undated(component: Component, versions: Sequence[str]) -> list[str]:
    """Versions whose date the catalogue does not have."""
    dates = _dates(component)
    return [version for version in versions if version not in dates]


def in_order(component: Component, versions: Sequence[str]) -> list[str]:
    """Versions from the oldest to the newest.

    By date of release where the catalogue has all of them: a number says nothing of when it came.
    Else by number, as PEP 440 has it; where some are no numbers, as they were listed.
    """
    dates = _dates(component)
    if all(version in dates for version in versions):
        return sorted(versions, key=lambda version: (dates[version], versions.index(version)))
    try:
        return sorted(versions, key=Version)
    except InvalidVersion:
        return list(versions)


def _dates(component: Component) -> dict[str, dt.date]:
    return {v.version: v.date for v in component.versions if v.date is not None}
