"""Environments in which wheels wrote over each other's files.

Two wheels can bring the same path with different content. Whichever is written last stands, and an
installer that writes several at once leaves some paths of one and some of the other: two
environments of one lock then run different software. Ours are settled when they are built (see
`matrix.building.settling`): the wheel whose name comes last stands everywhere. A gate says in its
record who won; until its next run, so it was for every run on that machine and stack.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from matrix.keeping.records import Record

#: How a gate's notes call paths that several distributions claim with different content.
_NOTE = "overwrites: "
#: From the start of a word on, and so many digits: a stranger's text may be long.
_WON = re.compile(r"(?<!\S)(\S+) won (\d{1,9})(?!\d)")


class Overwrite(NamedTuple):
    """Paths that several wheels write with different content, in one environment."""

    wheels: tuple[str, ...]
    """Sorted by name; the last should stand everywhere."""
    won: tuple[tuple[str, int], ...]
    """How many paths have the content of which wheel; `neither` for foreign content."""

    @property
    def settled(self) -> bool:
        """Whether every path has the content of the wheel whose name comes last."""
        return [name for name, _ in self.won] == [self.wheels[-1]]

    @property
    def paths(self) -> int:
        """How many there are."""
        return sum(count for _, count in self.won)

    @property
    def text(self) -> str:
        """Such as `99 paths: a won 24, b won 75`."""
        won = ", ".join(f"{name} won {count}" for name, count in self.won)
        return f"{self.paths} path{'' if self.paths == 1 else 's'}: {won}"


def overwrites_of(record: Record) -> list[Overwrite]:
    """What a gate noted of its environment; empty for any other record."""
    found: dict[str, str] = {}
    for loaded in record.stack.loaded.values():
        # An image is as it is: nobody builds it anew between two runs.
        if loaded.origin == "environment":
            notes = loaded.notes.items()
            found.update((key, str(text)) for key, text in notes if key.startswith(_NOTE))
    told = []
    for key, text in sorted(found.items()):
        wheels = tuple(sorted(key.removeprefix(_NOTE).split(" + ")))
        # Behind the semicolon stand examples of paths.
        won = _WON.findall(text.partition(";")[0])
        # Anything else is no word of a gate of ours.
        if len(wheels) > 1 and won:
            told.append(Overwrite(wheels, tuple((name, int(count)) for name, count in won)))
    return told


def unsettled(record: Record) -> str:
    """Who won in a gate's environment where it was left to chance, or nothing."""
    return "; ".join(each.text for each in overwrites_of(record) if not each.settled)


class Run(NamedTuple):
    """One run, as far as its environment matters."""

    machine: str
    stack: str
    id: str
    is_gate: bool
    unsettled: str
    """Of a gate; see `unsettled`."""


def left_to_chance(records: Iterable[Record], gates: Collection[str]) -> Mapping[str, str]:
    """By run id: who won, for every run whose environment was left to chance.

    Args:
        records: all of a stack, or of many.
        gates: probes that say what was installed.
    """
    return in_unsettled(_run_of(record, gates) for record in records)


def _run_of(record: Record, gates: Collection[str]) -> Run:
    is_gate = record.probe.id in gates
    told = unsettled(record) if is_gate else ""
    return Run(record.machine.name, record.stack.id, record.run.id, is_gate, told)


def in_unsettled(runs: Iterable[Run]) -> Mapping[str, str]:
    """By run id: who won, for every run whose environment was left to chance.

    A run belongs to the newest gate before it on its machine and stack: an environment is only
    built anew before a gate.
    """
    by_place: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_place[run.machine, run.stack].append(run)
    found: dict[str, str] = {}
    for own in by_place.values():
        # Ids tell seconds. Of two gates in one, that which left something to chance is the newer
        # one here: no run is counted that it may stand behind.
        gates = sorted((_second(run), run.unsettled) for run in own if run.is_gate)
        if not any(text for _, text in gates):
            continue
        seconds = [second for second, _ in gates]
        for run in own:
            place = bisect_right(seconds, _second(run))
            text = run.unsettled if run.is_gate else gates[place - 1][1] if place else ""
            if text:
                found[run.id] = text
    return found


def _second(run: Run) -> str:
    return run.id.partition("-")[0]
