"""A condition in words, and as lines of a constraints file that keep clear of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from matrix.components import NONE, Component
from matrix.judging.conditions import Axis, Clause, Condition, Point
from matrix.versions import short_version


def name_of(axis: Axis, value: str) -> str:
    """A version as readers know it; of a revision the first digits and the date."""
    if len(value) == 40 and value in axis.dates:
        return f"{short_version(value)} of {axis.dates[value]}"
    return short_version(value)


def clause_words(clause: Clause, components: Mapping[str, Component]) -> str:
    """A clause as part of a sentence: `nvidia-cudnn-frontend <= 1.28.0`."""
    axis = clause.axis
    name = axis.name
    if name not in components:
        without = clause.only == NONE or clause.all_but == "applied"
        return f"{name} left out" if without else f"{name} applied"
    if clause.only is not None:
        return f"{name} {name_of(axis, clause.only)}" if clause.only != NONE else f"no {name}"
    if clause.all_but is not None:
        if clause.all_but == NONE:
            return f"any {name}"
        return f"{name} other than {name_of(axis, clause.all_but)}"
    if clause.at_least == clause.at_most and clause.at_least is not None:
        return f"{name} {name_of(axis, clause.at_least)}"
    low, high = clause.at_least, clause.at_most
    if axis.dates:
        ends = [f"from {name_of(axis, low)} on" if low else ""]
        ends.append(f"up to {name_of(axis, high)}" if high else "")
    else:
        ends = [f">= {low}" if low else "", f"<= {high}" if high else ""]
    return f"{name} {', '.join(end for end in ends if end)}"


def listed(axis: Axis, values: Sequence[str]) -> str:
    """Some versions of an axis; of many the first and the last."""
    names = [name_of(axis, value) for value in values]
    if len(names) > 4:
        return f"{names[0]} to {names[-1]} ({len(names)} known)"
    return ", ".join(names)


def constraint_lines(
    condition: Condition,
    passing: Iterable[Point],
    components: Mapping[str, Component],
    what: str,
    text: str,
) -> list[str]:
    """Lines of a constraints file, each with what it avoids before it.

    Only versions that were seen to pass are let in where that can be said: an untested version is
    kept out. A condition of two clauses is avoided by breaking either, and a constraints file can't
    say `or`, so its lines stand there as remarks.
    """
    points = list(passing)
    head = f"# {what}: {text}"
    lines = [_avoiding(clause, points, components) for clause in condition]
    if len(condition) == 1:
        return [head, lines[0]]
    return [head, "# Either of these avoids it:", *(f"# {line.lstrip('# ')}" for line in lines)]


def _avoiding(clause: Clause, passing: Iterable[Point], components: Mapping[str, Component]) -> str:
    axis = clause.axis
    component = components.get(axis.name)
    good = {point.get(axis.name, NONE) for point in passing}
    if component is None or component.kind in ("git", "image") or component.distribution is None:
        return f"# No package index has it: keep clear of {clause_words(clause, components)}."
    name = component.distribution
    if NONE in (clause.only, clause.all_but):
        words = clause_words(clause, components)
        return f"# A constraints file can't say it: keep clear of {words}."
    if clause.only is not None:
        return f"{name}!={clause.only}"
    if clause.all_but is not None:
        return f"{name}=={clause.all_but}"
    inside = [value for value in axis.order if clause.holds({axis.name: value})]
    below = [v for v in axis.order[: axis.place(inside[0])] if v in good]
    above = [v for v in axis.order[axis.place(inside[-1]) + 1 :] if v in good]
    if above and not below:
        return f"{name}>={above[0]}"
    if below and not above:
        return f"{name}<={below[-1]}"
    return f"{name}{','.join(f'!={value}' for value in inside)}"


def constraints_file(explained: Iterable[Iterable[str]]) -> str:
    """The lines of several failures as one file, each line once."""
    seen: dict[str, None] = {}
    for lines in explained:
        for line in lines:
            seen.setdefault(line)
    return "".join(f"{line}\n" for line in seen)
