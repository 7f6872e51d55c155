"""From what ranks found to parts of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probes.cp_ranks import Crew, Told
from probes.session import Check, Session


def report(probe: Session, crew: Crew, told: Told, names: Sequence[str]) -> None:
    """A part for each task that all ranks ended, and one for what stopped the others."""
    elements = mismatches = 0
    for name in names:
        by_rank = told.facts.get(name, {})
        whole = len(by_rank) == crew.world
        if not whole and not (told.fault and told.fault.task == name):
            continue
        with probe.check(name, step=False) as check:
            judge(check, by_rank)
            if not whole and told.fault:
                verdict = told.fault.verdict
                check.expect(
                    False, verdict.reason or "", verdict.detail or "", status=verdict.status
                )
        elements += sum(facts["elements"] for facts in by_rank.values())
        mismatches += sum(facts["mismatches"] for facts in by_rank.values())
    if told.fault and (not told.fault.task or _ended(crew, told)):
        # Before the first task, or after a rank's last one.
        verdict = told.fault.verdict
        probe.part("the group", status=verdict.status, reason=verdict.reason, detail=verdict.detail)
    probe.measure(elements_compared_count=elements, mismatches_count=mismatches)


def _ended(crew: Crew, told: Told) -> bool:
    """Whether the task at which the group stopped was ended by all ranks."""
    return told.fault is not None and len(told.facts.get(told.fault.task, {})) == crew.world


def judge(check: Check, by_rank: dict[int, Any]) -> None:
    """Judge a part by what each rank found."""
    check.measure["elements_compared_count"] = sum(facts["elements"] for facts in by_rank.values())
    # Of the slowest rank; judging takes no time.
    slowest = max((facts["seconds"] for facts in by_rank.values()), default=0.0)
    check.measure["part_s"] = round(slowest, 3)
    idle = [rank for rank, facts in by_rank.items() if not facts["elements"]]
    check.expect(not idle, "probe:NoRows", f"ranks {idle} compared nothing", status="error")
    wrong = [
        f"rank {rank}: {facts['detail']}"
        for rank, facts in sorted(by_rank.items())
        if facts["mismatches"]
    ]
    check.expect(not wrong, "numerics", "; ".join(wrong))
