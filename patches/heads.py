"""New heads of pull requests: asked for, shown, and written down on request."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from patches.applying import Bench, Pin
from patches.candidates import UNKNOWN, Candidate
from patches.containment import Past
from patches.history import History
from patches.inert import GitFailed


@dataclass(frozen=True)
class Head:
    """What the source says of one request's head."""

    candidate: Candidate
    now: str | None
    """None when the source has no such request."""

    @property
    def moved(self) -> bool:
        return self.now is not None and self.now != self.candidate.head


def ask(history: History, candidates: Sequence[Candidate]) -> list[Head]:
    """The heads that the source offers now, in one question; nothing is fetched.

    Raises:
        SourceError: it can't be asked.
    """
    requests = [candidate for candidate in candidates if candidate.number is not None]
    names = {candidate.id: f"refs/pull/{candidate.number}/head" for candidate in requests}
    offered = history.remote.refs(*names.values()) if names else {}
    return [Head(candidate, offered.get(names[candidate.id])) for candidate in requests]


def write(history: History, heads: Sequence[Head], folder: Path, today: dt.date) -> list[str]:
    """Write moved heads into their files, comments kept, with the commit they branched off from.

    Args:
        history: fetches the heads; nothing of them is run.
        heads: what the source offers.
        folder: holds the candidates.
        today: becomes `seen`.

    Returns:
        The files that were written.

    Raises:
        SourceError: the source can't be asked.
        GitFailed: a head can't be read.
    """
    moved = [head for head in heads if head.moved and head.now is not None]
    targets = {head.candidate.target for head in moved if head.candidate.target}
    missing = history.sync(
        branches=sorted(targets),
        heads=[(head.candidate.number, head.now) for head in moved if head.now],
        again=True,
    )
    written = []
    for head in moved:
        if head.now is None or head.now in missing:
            continue
        path = folder / f"{head.candidate.id}.toml"
        document = tomlkit.parse(path.read_text(encoding="utf-8"))
        day, base = _facts(history, head)
        document["head"] = head.now
        document["head_date"] = day
        document["base"] = base
        document["seen"] = today
        new = path.with_suffix(".toml.new")
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
        new.replace(path)
        written.append(path.name)
    return written


def _facts(history: History, head: Head) -> tuple[dt.date, str]:
    """When a head was committed, and where it left its target, if that can be told."""
    now = str(head.now)
    target = history.branch(head.candidate.target or "")
    commits = history.commits([now, *([target] if target else [])])
    day = dt.datetime.fromtimestamp(commits.all[now].time, dt.UTC).date()
    bench = Bench(history, Past(history, commits, ()), ())
    pin = Pin(head.candidate.id, now, number=head.candidate.number, target=head.candidate.target)
    try:
        return day, bench.fork(pin)
    except GitFailed:
        return day, UNKNOWN
