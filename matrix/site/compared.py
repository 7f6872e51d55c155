"""Comparisons for readers: two stacks that differ in one thing, and what that changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from matrix.components import Component
from matrix.judging.comparisons import Comparing, Comparison, ProbeChange
from matrix.judging.findings import StackFindings
from matrix.judging.noise import Difference
from matrix.judging.strength import percent
from matrix.parallel import in_processes
from matrix.site.derived import ComparisonView, ProbeChangeView

#: From so many on, starting processes is the smaller part of comparing them.
MANY_PAIRS: Final = 1000


def comparison_views(
    findings: Mapping[str, StackFindings], components: Mapping[str, Component]
) -> list[ComparisonView]:
    """Every pair of stacks that differ in one component or one patch."""
    comparing = Comparing(findings, components)
    pairs = comparing.pairs

    def view(number: int) -> ComparisonView:
        return _view(comparing.compared(pairs[number]))

    # Of many, each processor compares a share: numbers are sent there, what is shown comes back.
    many = len(pairs) >= MANY_PAIRS
    return list((in_processes if many else map)(view, range(len(pairs))))


def _view(found: Comparison) -> ComparisonView:
    return ComparisonView(
        kind=found.kind,
        what=found.what,
        before=found.before,
        after=found.after,
        before_version=found.before_version,
        after_version=found.after_version,
        counts={str(change): count for change, count in found.counts().items()},
        changes=[
            _change(probe)
            for probe in found.probes
            if probe.change in ("fixed", "broken", "changed reason", "flaky")
            or any(d.says in ("more", "less") for d in probe.differences)
        ],
    )


def _change(probe: ProbeChange) -> ProbeChangeView:
    return ProbeChangeView(
        probe=probe.probe,
        change=probe.change,
        why=probe.why,
        before=probe.before.status,
        before_words=_words(probe.before.words, probe.before.reasons),
        after=probe.after.status,
        after_words=_words(probe.after.words, probe.after.reasons),
        one_machine=probe.one_machine,
        measures=[_measure(d) for d in probe.differences if d.says in ("more", "less")],
    )


def _words(words: str, reasons: list[str]) -> str:
    return f"{words} ({', '.join(reasons)})" if reasons else words


def _measure(found: Difference) -> str:
    where = f"{found.part}: " if found.part else ""
    much = ""
    if found.change is not None:
        much = f", {percent(abs(found.change))} {found.says}"
    return f"{where}{found.measure} {found.before:.4g} → {found.after:.4g}{much}"
