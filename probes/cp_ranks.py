"""The ranks of a real process group, however they were started: what they do, and who is to blame.

Each rank does the same tasks in the same order and tells its parent each step and what it found, as
JSON. `probes/cp_forks.py` starts ranks by forking this process, `probes/cp_launch.py` by torchrun
on one node or several.

A rank that dies, raises or hangs takes the others with it: they wait for it in vain. So the first
of these counts, and an error that only says that another rank was lost or kept one waiting counts
last; a group in which nobody did anything else is said to have waited for itself. On a GPU a rank
that waits does not notice: its process waits for the GPU, says so before, and is given twice the
time, so that a rank that never got that far is blamed before it.
"""

from __future__ import annotations

import datetime
import os
import re
import signal
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from probes import loopback, reasons
from probes.reasons import Verdict
from probes.session import Concluded, Session

_LOST: Final = re.compile(
    r"closed by peer|reset by peer|broken pipe|timed? ?out|remote process exited|connectFullMesh"
    r"|communicator was aborted|NCCL.*(?:remote|network) error|ncclRemoteError",
    re.IGNORECASE,
)
_TIMED_OUT: Final = re.compile(r"timed? ?out", re.IGNORECASE)
_NO_GROUP: Final = re.compile(r"probe:(?:Dist\w*Error|RuntimeError)")
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
    """After this long, a rank on the CPU that waits for another one gets an error."""
    step_limit_s: float
    """Longest time for any one step; longer than the former, or the waiting would be blamed."""
    start_limit_s: float = 60.0
    """For a rank to join the group, where several processes do so at once."""
    nodes: int = 1

    def __post_init__(self) -> None:
        if any(self.world % size for size in self.cp_sizes):
            raise ValueError(f"{self.world} ranks make no groups of {self.cp_sizes}")
        if self.step_limit_s <= self.group_timeout_s:
            raise ValueError("a step must be allowed more time than waiting for a rank")

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def patience(self) -> datetime.timedelta:
        """Torch's own limit.

        On a GPU it would end the process that waits, so the parent's, which knows who kept whom
        waiting, comes long before it.
        """
        return datetime.timedelta(
            seconds=8 * self.step_limit_s if self.on_gpu else self.group_timeout_s
        )

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "cp_sizes": list(self.cp_sizes)}


def sizes_of(world: int) -> list[int]:
    """The sizes of groups that ranks can be put into, whole, two or more in each."""
    return [size for size in range(2, world + 1) if world % size == 0]


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
    _at: tuple[str, str] = ("", JOIN)

    def step(self, task: str, what: str) -> None:
        """Say what is about to be done."""
        self._at = (task, what)
        self._say(step=what, task=task)

    def found(self, task: str, facts: Mapping[str, Any]) -> None:
        """Tell what came of a task; must be JSON."""
        self._say(task=task, facts=dict(facts))

    def tell(self, **values: Any) -> None:
        """Report plain facts of the whole run."""
        self._say(measure=values)

    def wait(self) -> None:
        """Wait for the GPU, so that its errors show here; on the CPU nothing is left to wait for.

        A rank that gets here has done its part, and only another one can keep it waiting.
        """
        if self.device.type == "cuda":
            task, step = self._at
            self._say(step=step, task=task, waits=True)
            self.torch.cuda.synchronize(self.device)
            self._say(step=step, task=task)


Work = Callable[[Member], None]
Message = dict[str, Any]


class Ranks(Protocol):
    """Ranks that were started, as their parent sees them."""

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """What ranks said within that time, oldest first; as soon as there is anything.

        `{"died": status}` is about a rank that ended without having said that it would: exit
        status, negative for a signal, None if nobody knows; `log` may be the end of what it wrote.
        """

    def ask_where(self, rank: int) -> None:
        """Have a hung rank write where its threads are."""


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


@dataclass(frozen=True)
class Fault:
    """What ended the group before its time."""

    rank: int
    task: str
    """The task that the rank was at; empty before the first."""
    step: str
    verdict: Verdict


@dataclass
class Told:
    """What came of it."""

    facts: dict[str, dict[int, Any]] = field(default_factory=dict)
    """By task and rank."""
    fault: Fault | None = None
    loaded: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By rank, what it says it loaded, where ranks are processes of their own."""


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


# The parent's side


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


# A rank's side


def be_rank(
    probe: Session, crew: Crew, rank: int, say: Callable[..., None], *,
    load: Callable[[], Any], meet: Callable[[Any], dict[str, Any]], local_rank: int, work: Work,
) -> None:  # fmt: skip
    """Everything that a rank does.

    Args:
        probe: the session.
        crew: of which this is one.
        rank: its number.
        say: takes a message for the parent.
        load: gives torch.
        meet: from torch, the arguments of `init_process_group` by which ranks find each other.
        local_rank: number among the ranks of this node.
        work: what to do.
    """
    try:
        torch = load()
        say(step=JOIN, task="")
        device, groups = _join(torch, crew, rank, local_rank, meet)
        say(step="start", task="")
        work(Member(probe, torch, rank, device, groups, say, ("", "start")))
        # Who leaves early would be missed by those that are still talking to it.
        barrier(torch, device)
        say(end=True)
    except Concluded as concluded:
        traceback.print_exc()
        say(verdict=_as_list(concluded.verdict))
    except BaseException as error:  # noqa: BLE001 - reported as the probe's own error
        traceback.print_exc()
        say(verdict=_as_list(reasons.of_ours(error)))


def _as_list(verdict: Verdict) -> list[str | None]:
    return [verdict.status, verdict.reason, verdict.detail]


def barrier(torch: Any, device: Any, group: Any = None) -> None:
    """Wait until all ranks of a group are here; on a GPU, until its work is done too."""
    if device.type == "cuda":
        torch.distributed.barrier(group=group, device_ids=[device.index])
        torch.cuda.synchronize(device)
    else:
        torch.distributed.barrier(group=group)


def _join(
    torch: Any, crew: Crew, rank: int, local_rank: int, meet: Callable[[Any], dict[str, Any]]
) -> tuple[Any, dict[int, Group]]:
    """Become a rank of the world, and of one group of each size; its device and its groups."""
    torch.set_num_threads(1)  # so many ranks share a few cores
    torch.set_float32_matmul_precision("highest")
    device = torch.device("cuda", local_rank) if crew.on_gpu else torch.device("cpu")
    if crew.on_gpu:
        torch.cuda.set_device(device)
        os.environ["NCCL_NVLS_ENABLE"] = "0"  # no multicast over NVLink
    if crew.nodes == 1:
        os.environ["NCCL_SOCKET_IFNAME"] = loopback.NAME
        os.environ["GLOO_SOCKET_IFNAME"] = loopback.NAME
    distributed = torch.distributed
    distributed.init_process_group(
        "nccl" if crew.on_gpu else "gloo",
        rank=rank,
        world_size=crew.world,
        timeout=crew.patience,
        **meet(torch),
    )
    groups = {}
    for size in crew.cp_sizes:
        for number in range(crew.world // size):
            members = list(range(number * size, (number + 1) * size))
            handle = distributed.new_group(members, timeout=crew.patience)
            if rank in members:
                groups[size] = Group(size, number, rank - members[0], handle)
    # Connections are made by the first collective, so that no later step is blamed for them.
    for size in sorted(groups):
        barrier(torch, device, groups[size].handle)
    barrier(torch, device)
    return device, groups
