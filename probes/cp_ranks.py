"""The ranks of a real process group: a process each, watched, and all ended when one goes wrong.

The probe's process imports torch and the software under test and is then forked, once for each
rank, so that the import is paid for once; nothing here touches a GPU before that. The ranks find
each other through a file and talk over the loopback interface. Each does the same tasks in the same
order and tells its parent each step and what it found, as JSON.

A rank that dies, raises or hangs takes the others with it: they wait for it in vain. So the first
of these counts, and an error that only says that another rank was lost or kept one waiting counts
last; a group in which nobody did anything else is said to have waited for itself.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

from probes import loopback, reasons
from probes.reasons import Verdict
from probes.runner import die_with_the_host
from probes.session import Concluded, Session

_LOST: Final = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed? ?out|remote process exited|connectFullMesh",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"timed? ?out", re.IGNORECASE)
_START_LIMIT_S: Final = 60.0
"""For a rank to join the group, where several processes do so at once."""
JOIN: Final = "join the group"


@dataclass(frozen=True)
class Crew:
    """How many ranks there are, and how long they may take."""

    world: int
    cp_sizes: Sequence[int]
    """Each divides the world: neighbouring ranks make groups of that size."""
    device: str
    """`cpu`, or `cuda` for a GPU per rank."""
    group_timeout_s: float
    """After this long, a rank that waits for another one gets an error."""
    step_limit_s: float
    """Longest time for any one step; longer than the former, or the waiting would be blamed."""

    def __post_init__(self) -> None:
        if any(self.world % size for size in self.cp_sizes):
            raise ValueError(f"{self.world} ranks make no groups of {self.cp_sizes}")
        if self.step_limit_s <= self.group_timeout_s:
            raise ValueError("a step must be allowed more time than waiting for a rank")


@dataclass(frozen=True)
class Group:
    """A context-parallel group that a rank belongs to."""

    size: int
    number: int
    """Of the groups of that size, from 0."""
    rank: int
    """Within the group."""
    handle: Any
    """torch's own."""


@dataclass
class Member:
    """One rank, in its own process."""

    probe: Session
    torch: Any
    rank: int
    device: Any
    groups: Mapping[int, Group]
    """By their size."""
    _say: Callable[..., None]

    def step(self, task: str, what: str) -> None:
        """Say what is about to be done."""
        self._say(step=what, task=task)

    def found(self, task: str, facts: Mapping[str, Any]) -> None:
        """Tell what came of a task; must be JSON."""
        self._say(task=task, facts=dict(facts))


Work = Callable[[Member], None]


@dataclass
class _Rank:
    """A rank as its parent sees it."""

    number: int
    process: Any
    reader: Connection
    task: str = ""
    step: str = JOIN
    said: float = field(default_factory=time.monotonic)
    limit_s: float = field(default_factory=lambda: _START_LIMIT_S)
    ended: bool = False


@dataclass(frozen=True)
class Fault:
    """What ended the group before its time."""

    rank: int
    task: str
    """The task that the rank was at; empty before the first."""
    verdict: Verdict


@dataclass
class Told:
    """What came of it."""

    facts: dict[str, dict[int, Any]] = field(default_factory=dict)
    """By task and rank."""
    fault: Fault | None = None


def have_loopback() -> str:
    """See to it that ranks can talk; to be called before anything starts a thread.

    Raises:
        Concluded: they can't, on this machine.
    """
    try:
        return loopback.ensure()
    except OSError as error:
        said = f"no loopback interface is up, and none can be had: {error}"
        raise Concluded(Verdict("miss", "machine:no-condition", said)) from error


def run(probe: Session, torch: Any, crew: Crew, work: Work) -> Told:
    """Let the ranks work, and watch them.

    Args:
        probe: the session.
        torch: the module, imported but not used yet.
        crew: how many, and how long.
        work: what each does.
    """
    meeting = Path(tempfile.mkdtemp(prefix="ranks-", dir=probe.scratch)) / "meeting"
    context = multiprocessing.get_context("fork")
    ranks = []
    sys.stdout.flush()
    sys.stderr.flush()
    for number in range(crew.world):
        reader, writer = context.Pipe(duplex=False)
        arguments = (probe, torch, crew, work, number, meeting, writer)
        process = context.Process(target=_be_rank, args=arguments, daemon=True)
        process.start()
        # The rank alone may hold this end, or its death would not be seen.
        writer.close()
        ranks.append(_Rank(number, process, reader))
    try:
        return _watch(probe, crew, ranks)
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.join()
            rank.reader.close()


def _watch(probe: Session, crew: Crew, ranks: list[_Rank]) -> Told:
    told = Told()
    victims: list[Fault] = []
    while waiting := [rank for rank in ranks if not rank.ended]:
        left = min(rank.said + rank.limit_s for rank in waiting) - time.monotonic()
        ready = wait([rank.reader for rank in waiting], max(0.0, left))
        for rank in waiting:
            fault = None
            if rank.reader in ready:
                fault = _hear(probe, crew, rank, told)
            elif time.monotonic() - rank.said > rank.limit_s:
                _ask_where(rank)
                fault = _fault(rank, Verdict("fail", "timeout", f"silent for {rank.limit_s:g} s"))
            if fault is not None and _lost_another(fault.verdict):
                victims.append(fault)
            elif fault is not None:
                told.fault = _of_the_machine(fault)
                return told
    if victims:
        told.fault = _of_the_machine(_waited_in_vain(victims, len(ranks)))
    return told


def _of_the_machine(fault: Fault) -> Fault:
    """Ranks that did not find each other in time have not met the software under test yet."""
    if fault.task or fault.verdict.reason != "timeout":
        return fault
    verdict = Verdict("miss", "machine:no-condition", fault.verdict.detail)
    return Fault(fault.rank, fault.task, verdict)


def _hear(probe: Session, crew: Crew, rank: _Rank, told: Told) -> Fault | None:
    """Take in one message of a rank; what it says of an end that is none of the right ones."""
    try:
        message = json.loads(rank.reader.recv_bytes())
    except EOFError:
        rank.ended = True
        rank.process.join()
        return _fault(rank, _death(rank.process.exitcode))
    rank.said = time.monotonic()
    rank.limit_s = crew.step_limit_s
    if "verdict" in message:
        rank.ended = True
        return _fault(rank, Verdict(*message["verdict"]))
    if "end" in message:
        rank.ended = True
    elif "facts" in message:
        told.facts.setdefault(message["task"], {})[rank.number] = message["facts"]
    else:
        if message["task"] != rank.task and rank.number == 0:
            probe.step(message["task"])
        rank.task, rank.step = message["task"], message["step"]
    return None


def _fault(rank: _Rank, verdict: Verdict) -> Fault:
    detail = f"rank {rank.number}, during {rank.step}: {verdict.detail}"
    return Fault(rank.number, rank.task, Verdict(verdict.status, verdict.reason, detail))


def _lost_another(verdict: Verdict) -> bool:
    """Whether a rank only says that it lost another one, or waited for it."""
    raised = (verdict.reason or "").startswith(("call:", "probe:"))
    return raised and bool(_LOST.search(verdict.detail or ""))


def _waited_in_vain(victims: list[Fault], world: int) -> Fault:
    """No rank went wrong by itself, and some or all did not come to an end."""
    first = victims[0]
    names = ", ".join(str(victim.rank) for victim in sorted(victims, key=lambda one: one.rank))
    who = "every rank" if len(victims) == world else f"ranks {names}"
    said = f"{who} waited in vain; {first.verdict.detail}"
    if _TIMED_OUT.search(first.verdict.detail or ""):
        return Fault(first.rank, first.task, Verdict("fail", "timeout", said))
    return Fault(first.rank, first.task, Verdict(first.verdict.status, first.verdict.reason, said))


def _death(status: int | None) -> Verdict:
    if status == -signal.SIGKILL:
        return Verdict("miss", "machine:killed", "killed by the system")
    if status is not None and status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"SIG{-status}"
        return Verdict("fail", f"signal:{name}", f"died from {name}")
    return Verdict("fail", f"exit:{status}", f"ended with status {status}")


def _ask_where(rank: _Rank) -> None:
    """Have a hung rank print where its threads are; the runner set that up before the fork."""
    with contextlib.suppress(OSError):
        os.kill(rank.process.pid, signal.SIGUSR1)
        time.sleep(0.3)


def _be_rank(  # noqa: PLR0917 - as a forked process is given its arguments
    probe: Session,
    torch: Any,
    crew: Crew,
    work: Work,
    rank: int,
    meeting: Path,
    writer: Connection,
) -> None:
    """Everything that a rank's process does; it never returns."""
    die_with_the_host()

    def say(**message: Any) -> None:
        writer.send_bytes(json.dumps(message).encode())

    try:
        device, groups = _join(torch, crew, rank, meeting)
        work(Member(probe, torch, rank, device, groups, say))
        # Who leaves early would be missed by those that are still talking to it.
        torch.distributed.barrier()
        say(end=True)
    except Concluded as concluded:
        traceback.print_exc()
        say(verdict=_as_list(concluded.verdict))
    except BaseException as error:  # noqa: BLE001 - reported as the probe's own error
        traceback.print_exc()
        say(verdict=_as_list(reasons.of_ours(error)))
    sys.stderr.flush()
    os._exit(0)


def _as_list(verdict: Verdict) -> list[str | None]:
    return [verdict.status, verdict.reason, verdict.detail]


def _join(torch: Any, crew: Crew, rank: int, meeting: Path) -> tuple[Any, dict[int, Group]]:
    """Become a rank of the world, and of one group of each size; its device and its groups."""
    torch.set_num_threads(1)  # so many ranks share a few cores
    torch.set_float32_matmul_precision("highest")
    on_gpu = crew.device.startswith("cuda")
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # no multicast over NVLink
        os.environ["NCCL_SOCKET_IFNAME"] = loopback.NAME
    os.environ["GLOO_SOCKET_IFNAME"] = loopback.NAME
    distributed = torch.distributed
    patience = datetime.timedelta(seconds=crew.group_timeout_s)
    distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=distributed.FileStore(str(meeting), crew.world),
        rank=rank,
        world_size=crew.world,
        timeout=patience,
    )
    groups = {}
    for size in crew.cp_sizes:
        for number in range(crew.world // size):
            members = list(range(number * size, (number + 1) * size))
            handle = distributed.new_group(members, timeout=patience)
            if rank in members:
                groups[size] = Group(size, number, rank - members[0], handle)
    distributed.barrier()
    return device, groups
