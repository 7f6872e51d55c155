"""The ranks of a real process group, however they were started: what each is, and does.

Each rank does the same tasks in the same order and tells its parent each step and what it found, as
JSON. `probes/cp_forks.py` starts ranks by forking this process, `probes/cp_launch.py` by torchrun
on one node or several.

`probes/cp_watch.py` is the parent's side.
"""

from __future__ import annotations

import datetime
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol

from probes import loopback, reasons
from probes.reasons import Verdict
from probes.session import Concluded, Session

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
