"""What soaks say: failures for each GPU-step, beside the rate of the report.

A GPU-step is one pass of one GPU through one rank's share of a step's microbatches, as the probe
`soak` replays them; it is shorter than a training step, of which it has the kernels in question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pydantic import Field

from matrix.judging.cells import count_of
from matrix.judging.claims import Incidents
from matrix.judging.findings import StackFindings
from matrix.judging.intervals import poisson
from matrix.judging.strength import CONFIDENCE
from matrix.keeping.records import Number, Record
from matrix.models import Model

SOAK = "soak"


class Soak(Model):
    """All counted soaks of one stack together."""

    stack: str
    runs: list[str]
    """Ids of the counted runs, newest first."""
    machines: list[str]
    gpu_steps_count: int = Field(ge=0)
    failures_count: int = Field(ge=0)
    died: list[str]
    """Failed runs that could not say how far they came: neither failures nor steps are counted."""
    steps_per_second: float | None
    """Of the runs that say so, over all their seconds."""
    lower: float | None
    """Lowest rate of failures per GPU-step that the count allows, at 95 % confidence."""
    upper: float | None
    """Highest; None without a step."""
    text: str


class Needed(Model):
    """How long soaks have to stay clean to exclude a rate, at 95 % confidence."""

    rate: float
    """Failures per GPU-step."""
    clean_steps_count: int
    """GPU-steps without a failure."""
    left_count: int | None
    """Still missing from what was soaked clean; None where a soak has failed."""
    left_s: float | None
    """The same in seconds of one GPU, at the pace of the soaks so far."""
    text: str


def soaks(findings: Mapping[str, StackFindings]) -> dict[str, Soak]:
    """Every stack that was soaked, by its id."""
    found = {}
    for stack in findings.values():
        counted = stack.counted(SOAK)
        if counted:
            found[stack.id] = _soak(stack.id, counted)
    return found


def _soak(stack: str, records: Iterable[Record]) -> Soak:
    runs = list(records)
    told = [run for run in runs if _number(run.measure.get("gpu_steps_count")) is not None]
    steps = round(sum(_number(run.measure["gpu_steps_count"]) or 0 for run in told))
    failures = sum(_failures(run) for run in told)
    died = [run.run.id for run in runs if run not in told and run.status == "fail"]
    timed = [run for run in told if _number(run.measure.get("soak_s"))]
    seconds = sum(_number(run.measure["soak_s"]) or 0.0 for run in timed)
    paced = sum(_number(run.measure["gpu_steps_count"]) or 0.0 for run in timed)
    lower, upper = poisson(failures, steps, CONFIDENCE) if steps else (None, None)
    text = f"{count_of(failures, 'failure')} in {count_of(steps, 'GPU-step')}"
    if upper is not None and lower is not None:
        rate = f"below {upper:.2g}"
        if failures:
            rate = f"between {lower:.2g} and {upper:.2g}"
        text += f": rate {rate} per GPU-step at {CONFIDENCE:.0%} confidence".replace("%", " %")
    if died:
        text += f"; {count_of(len(died), 'run')} died without saying how far it came"
    return Soak(
        stack=stack,
        runs=[run.run.id for run in runs],
        machines=sorted({run.machine.name for run in runs}),
        gpu_steps_count=steps,
        failures_count=failures,
        died=died,
        steps_per_second=paced / seconds if seconds else None,
        lower=lower,
        upper=upper,
        text=text,
    )


def _failures(run: Record) -> int:
    said = round(_number(run.measure.get("failures_count")) or 0)
    # A failing run had a failure, whether or not its own count has it.
    return max(said, 1) if run.status == "fail" else said


def reported_rates(reported: Incidents) -> tuple[float, float, float]:
    """Incidents per GPU-step of the report: lowest that it allows, as counted, highest."""
    steps = reported.gpu_steps_count
    lower, upper = poisson(reported.incidents_count, steps, CONFIDENCE)
    return lower, reported.incidents_count / steps, upper


def needed(rate: float, soak: Soak | None = None) -> Needed:
    """How many clean GPU-steps exclude a rate, and how many are left.

    Raises:
        ValueError: the rate is not above 0.
    """
    if not rate > 0:
        raise ValueError(f"a rate to exclude is above 0, not {rate}")
    steps = math.ceil(-math.log(1 - CONFIDENCE) / rate)
    failed = soak is not None and bool(soak.failures_count or soak.died)
    left = None if failed else max(0, steps - (soak.gpu_steps_count if soak else 0))
    pace = soak.steps_per_second if soak else None
    text = f"{count_of(steps, 'clean GPU-step')} exclude {rate:.2g} per GPU-step"
    if failed:
        text += "; a soak has failed"
    elif soak is not None:
        text += f"; {left} are left" if left else "; they were made"
    return Needed(
        rate=rate,
        clean_steps_count=steps,
        left_count=left,
        left_s=left / pace if left is not None and pace else None,
        text=text,
    )


def _number(value: Number) -> float | None:
    return None if isinstance(value, bool | str) or value is None else float(value)
