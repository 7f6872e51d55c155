"""How sure a count of runs makes us: what failure rate it still allows.

The bounds are exact (C. J. Clopper, E. S. Pearson: "The use of confidence or fiducial limits
illustrated in the case of the binomial", Biometrika 26, 1934). With no failure they need no
statistics: a rate p stays hidden for n runs with probability (1 - p)^n, so 95 % confidence rules
out every p above 1 - 0.05^(1/n).

They hold for runs that fail independently of each other. Runs on one machine share its faults, so
the number of machines is always told beside the number of runs.
"""

from __future__ import annotations

import math

from pydantic import Field

from matrix.judging.intervals import binomial
from matrix.models import Model

CONFIDENCE = 0.95

#: A count that still allows this failure rate is called weak: a fault that strikes one run in ten
#: could have been missed.
WEAK_ABOVE = 0.10


class Strength(Model):
    """What a count of runs says about the failure rate."""

    runs: int = Field(ge=1)
    failed: int = Field(ge=0)
    confidence: float
    lower: float
    """Lowest failure rate that the count allows; 0 when nothing failed."""
    upper: float
    """Highest failure rate that the count allows; 1 when every run failed."""
    weak: bool
    """Whether a fault that strikes one run in ten could have been missed."""
    text: str
    """The same in words."""


def strength(runs: int, failed: int) -> Strength | None:
    """The strength of a count, or None when nothing was counted.

    Raises:
        ValueError: more runs failed than there were.
    """
    if runs == 0 and failed == 0:
        return None
    lower, upper = bounds(runs, failed)
    weak = failed == 0 and upper > WEAK_ABOVE
    return Strength(
        runs=runs,
        failed=failed,
        confidence=CONFIDENCE,
        lower=lower,
        upper=upper,
        weak=weak,
        text=_words(runs, failed, lower, upper) + (" (weak)" if weak else ""),
    )


def bounds(runs: int, failed: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Exact bounds of the failure rate.

    Where all runs agree only one side is open, so the whole doubt goes to that side; else it is
    split between the two.

    Raises:
        ValueError: the count or the confidence is impossible.
    """
    if not 0 <= failed <= runs or runs == 0:
        raise ValueError(f"{failed} of {runs} runs can't have failed")
    return binomial(failed, runs, confidence)


def clean_runs_to_exclude(rate: float, confidence: float = CONFIDENCE) -> int:
    """How many runs must pass, with none failing, before a failure rate of `rate` is ruled out.

    Raises:
        ValueError: the rate or the confidence does not lie between 0 and 1.
    """
    if not 0 < rate < 1:
        raise ValueError(f"a failure rate to exclude lies between 0 and 1, not at {rate}")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    # The tolerance keeps a rate that was itself computed as a bound from asking for one run more.
    exact = math.log1p(-confidence) / math.log1p(-rate)
    return max(1, math.ceil(exact * (1 - 1e-12)))


class Stop(Model):
    """Whether more runs of a cell would decide anything, and how many."""

    decided: bool
    more_runs: int = Field(ge=0)
    """Least number of further runs that can decide; 0 when decided."""
    text: str


def when_to_stop(runs: int, failed: int, machines_failed: int) -> Stop:
    """The stopping rule of a cell.

    Passes alone are enough once a fault that strikes one run in ten is ruled out. One failure
    among passes has decided: it does not go away by more runs. Failures alone wait for a second
    machine, because they may be the first one's.

    Raises:
        ValueError: the counts are impossible.
    """
    if not 0 <= failed <= runs or machines_failed > failed or (failed and not machines_failed):
        raise ValueError(f"{failed} of {runs} runs on {machines_failed} machines is impossible")
    if failed == 0:
        left = max(0, clean_runs_to_exclude(WEAK_ABOVE) - runs)
        rate = percent(WEAK_ABOVE)
        if left:
            word = "run" if left == 1 else "runs"
            return Stop(
                decided=False,
                more_runs=left,
                text=f"{left} more clean {word} would exclude failure rates above {rate}",
            )
        return Stop(decided=True, more_runs=0, text=f"failure rates above {rate} are excluded")
    if failed < runs:
        return Stop(decided=True, more_runs=0, text="it fails at times, whatever further runs say")
    if machines_failed == 1:
        return Stop(decided=False, more_runs=1, text="a run on a second machine would tell")
    return Stop(decided=True, more_runs=0, text="it fails on more than one machine")


def _words(runs: int, failed: int, lower: float, upper: float) -> str:
    sure = f"at {CONFIDENCE:.0%} confidence".replace("%", " %")
    if failed == 0:
        rate = f"below {percent(upper)}"
    elif failed == runs:
        rate = f"above {percent(lower)}"
    else:
        rate = f"between {percent(lower)} and {percent(upper)}"
    return f"{failed} of {runs} failed: failure rate {rate} {sure}"


def percent(rate: float) -> str:
    """A rate for readers: whole per cents, and one digit more below one per cent."""
    value = rate * 100
    if value == 0 or value >= 0.95:
        return f"{value:.0f} %"
    return f"{value:.1g} %"
