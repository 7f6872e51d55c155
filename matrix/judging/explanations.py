"""Explanations: for each failure, the smallest condition over versions that the evidence allows.

A failure is a probe with a reason. Stacks on which it was seen are separated from those on which
the same probe, in the same version and with the same inputs, passed. What else fails there, or was
never asked, is on neither side and is named as such. Pure and deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from matrix.components import NONE, Component
from matrix.judging.cells import count_of
from matrix.judging.chance import DOUBT, all_among
from matrix.judging.conditions import (
    Axis,
    Clause,
    Condition,
    Point,
    axes_of,
    holds,
    nearest,
    smallest,
)
from matrix.judging.constraints import clause_words, constraint_lines, listed, name_of
from matrix.judging.findings import StackFindings
from matrix.judging.noise import inputs
from matrix.keeping.records import Record
from matrix.models import Model
from matrix.probe_specs import ProbeSpec

PATCH = "patch "


class Seen(Model):
    """One stack of a failure, with the runs that put it on its side."""

    stack: str
    runs: list[str]


class ClauseView(Model):
    """One clause of a condition, for whoever reads data instead of words."""

    what: str
    """A component, or `patch` and a candidate's id."""
    at_least: str | None
    at_most: str | None
    only: str | None
    all_but: str | None
    untested: list[str]
    """Known versions between the last failing and the next passing one that no run tells about:
    they may be on either side."""
    otherwise: list[str]
    """Versions between them on which the probe fails for another reason."""
    extrapolated: list[str]
    """Known versions that fulfil the clause without having been seen to fail."""


class Explanation(Model):
    """One condition that separates failing from passing stacks, or comes nearest to it."""

    clauses: list[ClauseView]
    exact: bool
    """Whether it holds for all failing and no passing stacks, `by_chance` aside."""
    text: str
    """One line."""
    by_chance: list[str] = Field(default_factory=list)
    """Stacks that passed though it holds, as chance allows for a failure that comes and goes."""
    counter_examples: list[str]
    """Stacks that pass though it holds, or fail though it does not; none where it is exact."""
    witnesses: list[tuple[str, str]]
    """(failing, passing) stacks that differ in nothing but what the condition speaks of."""
    constraints: list[str]
    """Lines of a constraints file that keep clear of it; remarks where no line can."""


class Failure(Model):
    """A probe and a reason, over all stacks."""

    probe: str
    reason: str
    text: str
    """One line."""
    revision: str
    """Of the probe; runs of other revisions are not looked at."""
    older_probe: bool
    """Whether the probe has changed since."""
    failing: list[Seen]
    passing: list[Seen]
    flaky: list[str]
    """Failing stacks that also passed at times."""
    undecided: dict[str, str]
    """Stacks on neither side, each with why."""
    explanations: list[Explanation]
    """All of the smallest; those with witnesses first. Where there are several, evidence can't
    tell them apart yet."""
    constraints: list[str]
    """Lines of a constraints file. Where several conditions fit, all are there as remarks, except
    when a single one of them has witnesses."""


def explain_failures(
    findings: Mapping[str, StackFindings],
    specs: Mapping[str, ProbeSpec],
    components: Mapping[str, Component],
) -> list[Failure]:
    """Every failure that was counted, in the order of the probes, then of the reasons."""
    failures = []
    for probe, spec in specs.items():
        asked = {stack.id: stack for stack in findings.values() if probe in stack.cells}
        revision = _revision(probe, spec, asked.values())
        if revision is None:
            continue
        counted = {
            stack.id: stack.counted(probe)
            for stack in asked.values()
            if stack.cells[probe].revision == revision
        }
        reasons = {reason for runs in counted.values() for run in runs for reason in _reasons(run)}
        failures += [
            _failure(spec, reason, counted, findings, components) for reason in sorted(reasons)
        ]
    return failures


def _revision(probe: str, spec: ProbeSpec, stacks: Iterable[StackFindings]) -> str | None:
    """The probe of today where it was ever asked, else the one of the newest counted run."""
    cells = [stack.cells[probe] for stack in stacks if stack.cells[probe].counted]
    if any(cell.revision == spec.revision for cell in cells):
        return spec.revision
    newest = max(
        cells, key=lambda cell: next(run.id for run in cell.runs if run.counted), default=None
    )
    return newest.revision if newest is not None else None


def _reasons(run: Record) -> set[str]:
    """Every reason that a failing run gives, of itself and of its parts."""
    if run.status != "fail":
        return set()
    said = {run.reason, *(part.reason for part in run.parts if part.status == "fail")}
    return {reason for reason in said if reason is not None}


def _failure(
    spec: ProbeSpec,
    reason: str,
    counted: Mapping[str, Sequence[Record]],
    findings: Mapping[str, StackFindings],
    components: Mapping[str, Component],
) -> Failure:
    failing: list[Seen] = []
    passing: list[Seen] = []
    flaky: list[str] = []
    otherwise: list[str] = []
    undecided: dict[str, str] = {}
    shown = {s: [r for r in runs if reason in _reasons(r)] for s, runs in counted.items()}
    asked = {inputs(run) for runs in shown.values() for run in runs}
    for stack in findings:
        runs = _asked(counted.get(stack, ()), asked)
        passes = [run.run.id for run in runs if run.status == "pass"]
        if shown.get(stack):
            failing.append(Seen(stack=stack, runs=[run.run.id for run in shown[stack]]))
            if passes:
                flaky.append(stack)
        elif runs and len(passes) == len(runs):
            passing.append(Seen(stack=stack, runs=passes))
        elif runs:
            others = sorted({run.reason for run in runs if run.reason})
            undecided[stack] = f"fails otherwise: {', '.join(others)}"
            otherwise.append(stack)
        elif counted.get(stack):
            undecided[stack] = "was asked with other inputs"
        else:
            undecided[stack] = "no counted run of this version of the probe"
    points = {stack: _point(findings[stack]) for stack in findings}
    sides = _Sides(
        failing={seen.stack: points[seen.stack] for seen in failing},
        passing={seen.stack: points[seen.stack] for seen in passing},
        otherwise=[points[stack] for stack in otherwise],
        comes_and_goes=bool(flaky),
        failures=sum(len(seen.runs) for seen in failing),
        failing_runs=sum(len(_asked(counted[seen.stack], asked)) for seen in failing),
        passes={seen.stack: len(seen.runs) for seen in passing},
    )
    explanations = _explanations(sides, components, f"{spec.id}, {reason}")
    return Failure(
        probe=spec.id,
        reason=reason,
        text=_text(sides, explanations),
        revision=next(runs[0].probe.revision for runs in shown.values() if runs),
        older_probe=all(
            run.probe.revision != spec.revision for runs in shown.values() for run in runs
        ),
        failing=failing,
        passing=passing,
        flaky=flaky,
        undecided=undecided,
        explanations=explanations,
        constraints=_constraints(explanations),
    )


def _asked(runs: Sequence[Record], asked: Collection[object]) -> list[Record]:
    """The runs with inputs that showed the failure somewhere."""
    return [run for run in runs if inputs(run) in asked]


@dataclass(frozen=True)
class _Sides:
    """Stacks by what they show of one failure, each as a point on the axes."""

    failing: Mapping[str, Point]
    passing: Mapping[str, Point]
    otherwise: Sequence[Point]
    """Of stacks that fail for another reason."""
    comes_and_goes: bool
    """Whether a failing stack also passed."""
    failures: int
    """Runs that showed it."""
    failing_runs: int
    """All runs of the failing stacks."""
    passes: Mapping[str, int]
    """Runs of each passing stack."""

    def within(self, condition: Condition) -> list[str]:
        """The passing stacks for which a condition holds."""
        return [stack for stack, point in self.passing.items() if holds(condition, point)]

    def separating(self, conditions: Sequence[Condition]) -> list[Condition]:
        """Those that separate the failing stacks from the others; all hold for the failing ones."""
        if not self.comes_and_goes:
            outside = self.passing.values()
            return [one for one in conditions if not any(holds(one, point) for point in outside)]
        splits = [frozenset(self.within(one)) for one in conditions]
        # Among many ways to split the stacks, chance brings about one that looks good.
        tried = len({split for split in splits if len(split) < len(self.passing)})
        return [
            one
            for one, split in zip(conditions, splits, strict=True)
            if self._is_no_chance(split, tried)
        ]

    def _is_no_chance(self, within: Collection[str], tried: int) -> bool:
        inside = sum(self.passes[stack] for stack in within)
        outside = sum(self.passes.values()) - inside
        there = self.failing_runs + inside
        return all_among(self.failures, self.failing_runs, inside) > DOUBT and all_among(
            self.failures, there, outside
        ) <= DOUBT / max(tried, 1)


def _constraints(explanations: Sequence[Explanation]) -> list[str]:
    witnessed = [one for one in explanations if one.witnesses]
    sure = witnessed if len(witnessed) == 1 else explanations
    if len(sure) == 1:
        return sure[0].constraints
    lines = [line for one in sure for line in one.constraints]
    return [line if line.startswith("#") else f"# perhaps {line}" for line in lines]


def _point(stack: StackFindings) -> Point:
    # Which head of a patch it was is left to the comparisons: here it is applied or not.
    return {**stack.requested, **{f"{PATCH}{id_}": "applied" for id_, _ in stack.patches}}


def _explanations(
    sides: _Sides, components: Mapping[str, Component], what: str
) -> list[Explanation]:
    inside, outside = list(sides.failing.values()), list(sides.passing.values())
    axes = axes_of([*inside, *outside], components)
    found = smallest(inside, outside, axes, sides.separating)
    # Where passes may be chance, the fewest mistakes are no sign of anything.
    near = None if found or sides.comes_and_goes else nearest(inside, outside, axes)
    conditions = found or ([near] if near is not None else [])
    made = [_explanation(condition, sides, components, what) for condition in conditions]
    return sorted(made, key=lambda one: (-len(one.witnesses), len(one.by_chance)))


def _explanation(
    condition: Condition, sides: _Sides, components: Mapping[str, Component], what: str
) -> Explanation:
    within = sides.within(condition)
    by_chance = within if sides.comes_and_goes else []
    failing = sides.failing
    passing = {stack: p for stack, p in sides.passing.items() if stack not in by_chance}
    wrong = [stack for stack, point in failing.items() if not holds(condition, point)]
    wrong += [stack for stack in within if stack not in by_chance]
    views = [_view(clause, sides) for clause in condition]
    text = _words(condition, views, replace(sides, passing=passing), components)
    if by_chance:
        runs = count_of(sum(sides.passes[stack] for stack in by_chance), "run")
        text += f"; that {runs} with it passed may be chance"
    if wrong:
        text += f"; {count_of(len(wrong), 'counter-example')}"
    lines = constraint_lines(condition, passing.values(), components, what, text)
    return Explanation(
        clauses=views,
        exact=not wrong,
        text=text,
        by_chance=sorted(by_chance),
        counter_examples=sorted(wrong),
        witnesses=_witnesses({clause.axis.name for clause in condition}, failing, passing),
        constraints=[] if wrong else lines,
    )


def _witnesses(
    names: set[str], failing: Mapping[str, Point], passing: Mapping[str, Point]
) -> list[tuple[str, str]]:
    def rest(point: Point) -> dict[str, str]:
        return {name: value for name, value in point.items() if name not in names}

    by_rest: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for stack, point in passing.items():
        by_rest[tuple(sorted(rest(point).items()))].append(stack)
    return sorted(
        (bad, good)
        for bad, point in failing.items()
        for good in by_rest[tuple(sorted(rest(point).items()))]
    )


def _view(clause: Clause, sides: _Sides) -> ClauseView:
    axis = clause.axis
    failed = _values(axis, sides.failing.values())
    tested = failed | _values(axis, sides.passing.values())
    otherwise = _values(axis, sides.otherwise)
    between = _between(clause, tested)
    fulfil = [value for value in axis.order if clause.holds({axis.name: value})]
    return ClauseView(
        what=axis.name,
        at_least=clause.at_least,
        at_most=clause.at_most,
        only=clause.only,
        all_but=clause.all_but,
        untested=[value for value in between if value not in otherwise],
        otherwise=[value for value in between if value in otherwise],
        extrapolated=[value for value in fulfil if value not in failed],
    )


def _values(axis: Axis, points: Iterable[Point]) -> set[str]:
    return {point.get(axis.name, NONE) for point in points}


def _between(clause: Clause, tested: set[str]) -> list[str]:
    """Known versions beyond a bound, as far as the next tested one; none without such a one."""
    order, place = clause.axis.order, clause.axis.place
    found: list[str] = []
    if clause.at_least is not None:
        below = order[: place(clause.at_least)]
        last = max((place(value) for value in below if value in tested), default=None)
        found += below[last + 1 :] if last is not None else ()
    if clause.at_most is not None:
        above = order[place(clause.at_most) + 1 :]
        first = next((at for at, value in enumerate(above) if value in tested), 0)
        found += above[:first]
    return found


def _words(
    condition: Condition,
    views: Sequence[ClauseView],
    sides: _Sides,
    components: Mapping[str, Component],
) -> str:
    often = "fails at times with " if sides.comes_and_goes else "fails with "
    text = often + " together with ".join(clause_words(clause, components) for clause in condition)
    if len(condition) == 1 and condition[0].axis.order:
        (clause,) = condition
        seen = _values(clause.axis, sides.failing.values())
        good = _values(clause.axis, sides.passing.values()) - seen
        text += f" (seen on {listed(clause.axis, [v for v in clause.axis.order if v in seen])})"
        text += _passes(clause, good)
    for clause, view in zip(condition, views, strict=True):
        if view.otherwise:
            text += f"; {view.what} {listed(clause.axis, view.otherwise)}: other failures"
        if view.untested:
            text += f"; {view.what} {listed(clause.axis, view.untested)} untested"
    return text


def _passes(clause: Clause, good: set[str]) -> str:
    """From where on, and up to where, it passes."""
    axis, words = clause.axis, ""
    if clause.at_least is not None:
        below = [v for v in axis.order[: axis.place(clause.at_least)] if v in good]
        words += f", passes up to {name_of(axis, below[-1])}" if below else ""
    if clause.at_most is not None:
        above = [v for v in axis.order[axis.place(clause.at_most) + 1 :] if v in good]
        words += f", passes from {name_of(axis, above[0])}" if above else ""
    return words


def _text(sides: _Sides, explanations: Sequence[Explanation]) -> str:
    failing = count_of(len(sides.failing), "stack")
    number = len(sides.otherwise)
    others = f", {number} {'fails' if number == 1 else 'fail'} otherwise" if number else ""
    if not sides.passing:
        return f"fails on {failing}{others}; none is known to pass"
    if not explanations and sides.comes_and_goes:
        passed = count_of(sum(sides.passes.values()), "run")
        return (
            f"fails at times: in {sides.failures} of {count_of(sides.failing_runs, 'run')} on "
            f"{failing}{others}; other stacks passed in {passed}, too few to say what "
            "it depends on"
        )
    if not explanations:
        return (
            f"fails on {failing} and passes on {len(sides.passing)}; no condition on one or two "
            "components separates them"
        )
    text = explanations[0].text
    if len(explanations) > 1:
        more = count_of(len(explanations) - 1, "other condition")
        text += f" (or {more} that evidence can't tell from it)"
    return text
