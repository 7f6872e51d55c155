"""Exact confidence intervals, from scipy's quantiles.

scipy takes a good part of a second to import, so it is imported where an interval needs it: a plan
and a cell whose runs all agree need none.
"""

from __future__ import annotations

import math
from functools import lru_cache


def binomial(events: int, trials: int, confidence: float) -> tuple[float, float]:
    """Bounds of a probability, both-sided where some trials had the event and some had not.

    C. J. Clopper, E. S. Pearson: "The use of confidence or fiducial limits illustrated in the case
    of the binomial", Biometrika 26, 1934. Where all trials agree only one side is open, so the
    whole doubt goes to that side.

    Raises:
        ValueError: the count or the confidence is impossible.
    """
    if not 0 <= events <= trials or trials == 0:
        raise ValueError(f"{events} of {trials} trials can't have it")
    doubt = _doubt(confidence)
    if events == 0:
        return 0.0, -math.expm1(math.log(doubt) / trials)
    if events == trials:
        return math.exp(math.log(doubt) / trials), 1.0
    from scipy.special import betaincinv  # noqa: PLC0415 - see above

    others = trials - events
    lower = float(betaincinv(events, others + 1, doubt / 2))
    upper = float(betaincinv(events + 1, others, 1 - doubt / 2))
    return lower, upper


def poisson(events: int, exposure: float, confidence: float) -> tuple[float, float]:
    """Bounds of a rate of events per unit of exposure.

    F. Garwood: "Fiducial limits for the Poisson distribution", Biometrika 28, 1936. Without any
    event the whole doubt goes to the upper side.

    Raises:
        ValueError: the count, the exposure or the confidence is impossible.
    """
    if events < 0 or not 0 < exposure < math.inf:
        raise ValueError(f"{events} events in an exposure of {exposure} are impossible")
    doubt = _doubt(confidence)
    if events == 0:
        return 0.0, -math.log(doubt) / exposure
    from scipy.special import gammaincinv  # noqa: PLC0415 - see above

    lower = float(gammaincinv(events, doubt / 2)) / exposure
    upper = float(gammaincinv(events + 1, 1 - doubt / 2)) / exposure
    return lower, upper


@lru_cache(1024)  # asked for each measure of each two stacks
def student(degrees: int, confidence: float) -> float:
    """How many standard errors a difference has to be away from none, both-sided.

    Raises:
        ValueError: there is no degree of freedom, or the confidence is impossible.
    """
    if degrees < 1:
        raise ValueError("without a degree of freedom nothing is known of the noise")
    doubt = _doubt(confidence)
    from scipy.special import stdtrit  # noqa: PLC0415 - see above

    return float(stdtrit(degrees, 1 - doubt / 2))


def _doubt(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence lies between 0 and 1, not at {confidence}")
    return 1 - confidence
