"""Whether chance alone explains where a failure that comes and goes was seen.

A stack that fails in one run of three passes in two. That another stack passed twice says little
of that stack.
"""

from __future__ import annotations

from math import comb
from typing import Final

from matrix.judging.strength import CONFIDENCE

#: Chance explains what is more likely than this.
DOUBT: Final = 1 - CONFIDENCE


def all_among(failures: int, runs: int, others: int) -> float:
    """How likely all failures fall among some runs by chance, were all runs equally prone to them.

    One side of the exact test of R. A. Fisher: "On the interpretation of chi-squared from
    contingency tables, and the calculation of P", Journal of the Royal Statistical Society 85,
    1922.

    Args:
        failures: all there are.
        runs: among which they fell.
        others: runs that passed.

    Raises:
        ValueError: the counts are impossible.
    """
    if not 0 <= failures <= runs or others < 0:
        raise ValueError(f"{failures} failures in {runs} runs beside {others} are impossible")
    return comb(runs, failures) / comb(runs + others, failures)


def may_be_chance(failed: int, counted: int, passes: int) -> bool:
    """Whether a stack that fails at times may as well have passed as often as another one did.

    Args:
        failed: its failing runs.
        counted: all its runs.
        passes: runs of the other, which all passed.
    """
    return 0 < failed < counted and all_among(failed, counted, passes) > DOUBT
