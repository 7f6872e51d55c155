"""Evidence in short, made up for tests of what plans from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from matrix.keeping.ledger import Entry, RecordedStack
from matrix.probe_specs import ProbeSpec


@dataclass
class InShort:
    """What `matrix.keeping.ledger` gives, without files."""

    entries: list[Entry] = field(default_factory=list)
    stacks: dict[str, RecordedStack] = field(default_factory=dict)


def entry(
    stack: str,
    probe: str,
    status: str,
    *,
    reason: str | None = None,
    lacked: tuple[str, ...] = (),
    seconds: float = 5.0,
    machine: str = "m",
    run: str = "20261101T000000Z-00000000",
    revision: str = "0" * 16,
) -> Entry:
    """One record in short."""
    return Entry(
        path=f"{machine}/{stack}/{probe}--{run}.json",
        machine=machine,
        stack=stack,
        probe=probe,
        revision=revision,
        setting="quick",
        sanitize="",
        status=status,
        reason=reason,
        detail=None,
        run=run,
        seconds=seconds,
        lacked=lacked,
    )


def spec(probe: str, *, group: str = "functional", time_limit_s: float = 100) -> ProbeSpec:
    """A probe that is declared and not there."""
    return ProbeSpec.model_validate(
        {
            "id": probe,
            "question": f"{probe}?",
            "method": "",
            "needs": ["torch"],
            "required": True,
            "group": group,
            "time_limit_s": time_limit_s,
            "parameters": {"quick": {}},
            "revision": "0" * 16,
        }
    )
