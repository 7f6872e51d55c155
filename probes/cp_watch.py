"""Ranks as their parent sees them: what they say, and who is to blame when one goes wrong.

A rank that dies, raises or hangs takes the others with it: they wait for it in vain. So the first
of these counts, and an error that only says that another rank was lost or kept one waiting counts
last; a group in which nobody did anything else is said to have waited for itself. On a GPU a rank
that waits does not notice: its process waits for the GPU, says so before, and is given twice the
time, so that a rank that never got that far is blamed before it.
"""

from __future__ import annotations

import re
import signal
import time
from dataclasses import dataclass, field
from typing import Final

from probes import reasons
from probes.cp_ranks import JOIN, Crew, Fault, Message, Ranks, Told
from probes.reasons import Verdict
from probes.session import Session

_LOST: Final = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed? ?out|remote process exited|connectFullMesh"
    r"|communicator was aborted|NCCL.*(?:remote|network) error|ncclRemoteError",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"timed? ?out", re.IGNORECASE)
_NO_GROUP: Final = re.compile(r"probe:(?:Dist\w*Error|RuntimeError)")


@dataclass
class _Rank:
    """A rank as its parent sees it."""

    number: int
    limit_s: float
    task: str = ""
    step: str = JOIN
    said: float = field(default_factory=time.monotonic)
    waits: bool = False
    ended: bool = False


def watch(probe: Session, crew: Crew, ranks: Ranks) -> Told:
    """Take in what ranks say until all have ended or one has gone wrong."""
    told = Told()
    victims: list[Fault] = []
    seen = [_Rank(number, crew.start_limit_s) for number in range(crew.world)]
    while waiting := [rank for rank in seen if not rank.ended]:
        left = min(rank.said + rank.limit_s for rank in waiting) - time.monotonic()
        faults = [
            fault
            for number, message in ranks.hear(max(0.0, left))
            if (fault := _take(probe, crew, seen[number], message, told)) is not None
        ]
        if not faults:
            faults = _silent(ranks, [rank for rank in seen if not rank.ended])
        for fault in faults:
            if _lost_another(fault.verdict):
                victims.append(fault)
            else:
                told.fault = _of_the_machine(fault)
                return told
    if victims:
        told.fault = _of_the_machine(_waited_in_vain(victims, crew.world))
    return told


def _take(probe: Session, crew: Crew, rank: _Rank, message: Message, told: Told) -> Fault | None:
    """Take in one message of a rank; what it says of an end that is none of the right ones."""
    if rank.ended:
        return None
    rank.said = time.monotonic()
    rank.limit_s = crew.step_limit_s if message.get("task") or rank.task else crew.start_limit_s
    if "died" in message:
        rank.ended = True
        return _fault(rank, _death(message["died"], message.get("log", "")))
    if "verdict" in message:
        rank.ended = True
        return _fault(rank, Verdict(*message["verdict"]))
    if "loaded" in message:
        told.loaded[rank.number] = message["loaded"]
        probe.adopt_loaded(message["loaded"])
    elif "measure" in message:
        probe.measure(**message["measure"])
    elif "end" in message:
        rank.ended = True
    elif "facts" in message:
        told.facts.setdefault(message["task"], {})[rank.number] = message["facts"]
    else:
        if message["task"] != rank.task and rank.number == 0:
            probe.step(message["task"])
        rank.task, rank.step = message["task"], message["step"]
        rank.waits = bool(message.get("waits"))
        if rank.waits:
            rank.limit_s *= 2
    return None


def _silent(ranks: Ranks, waiting: list[_Rank]) -> list[Fault]:
    now = time.monotonic()
    late = [rank for rank in waiting if now - rank.said > rank.limit_s]
    if not late:
        return []
    # A rank that did not get as far as waiting for its GPU keeps the others waiting for theirs.
    late.sort(key=lambda rank: rank.waits)
    for rank in late:
        ranks.ask_where(rank.number)
    time.sleep(0.3)
    first = late[0]
    said = f"silent for {first.limit_s:g} s"
    if first.waits:
        names = ", ".join(str(rank.number) for rank in waiting)
        said += f", waiting for its GPU; ranks that have not ended: {names}"
    return [_fault(first, Verdict("fail", "timeout", said))]


def _of_the_machine(fault: Fault) -> Fault:
    """Ranks that did not find each other have not met the software under test yet."""
    reason = fault.verdict.reason or ""
    if fault.task or fault.step != JOIN or not (reason == "timeout" or _NO_GROUP.match(reason)):
        return fault
    verdict = Verdict("miss", "machine:no-condition", fault.verdict.detail)
    return Fault(fault.rank, fault.task, fault.step, verdict)


def _fault(rank: _Rank, verdict: Verdict) -> Fault:
    detail = f"rank {rank.number}, during {rank.step}: {verdict.detail}"
    return Fault(rank.number, rank.task, rank.step, Verdict(verdict.status, verdict.reason, detail))


def _lost_another(verdict: Verdict) -> bool:
    """Whether a rank only says that it lost another one, or waited for it."""
    raised = (verdict.reason or "").startswith(("call:", "probe:", "signal:SIGABRT"))
    return raised and bool(_LOST.search(verdict.detail or ""))


def _waited_in_vain(victims: list[Fault], world: int) -> Fault:
    """No rank went wrong by itself, and some or all did not come to an end."""
    first = victims[0]
    names = ", ".join(str(victim.rank) for victim in sorted(victims, key=lambda one: one.rank))
    who = "every rank" if len(victims) == world else f"ranks {names}"
    said = f"{who} waited in vain; {first.verdict.detail}"
    late = bool(_TIMED_OUT.search(first.verdict.detail or ""))
    status, reason = ("fail", "timeout") if late else (first.verdict.status, first.verdict.reason)
    return Fault(first.rank, first.task, first.step, Verdict(status, reason, said))


def _death(status: int | None, log: str) -> Verdict:
    if status == -signal.SIGKILL:
        return Verdict("miss", "machine:killed", "killed by the system")
    line = next((line for line in log.splitlines() if reasons.cuda_error(line)), "").strip()
    cuda = reasons.cuda_error(line)
    if cuda is not None:
        machine = reasons.MACHINE_ERRORS.get(cuda)
        said = line[:300]
        return Verdict("miss", machine, said) if machine else Verdict("fail", f"cuda:{cuda}", said)
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"SIG{-status}"
        lost = next((line.strip() for line in log.splitlines() if _LOST.search(line)), "")
        words = f", saying: {lost[:300]}" if lost and name == "SIGABRT" else ""
        return Verdict("fail", f"signal:{name}", f"died from {name}{words}")
    if status is None:
        return Verdict("fail", "exit:unknown", "ended without a word")
    return Verdict("fail", f"exit:{status}", f"ended with status {status}")
