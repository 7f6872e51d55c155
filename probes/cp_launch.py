"""Ranks that torchrun starts, on one node or on all nodes of a Slurm allocation.

    one node        this process -> agent (torchrun) -> a process for each rank
    several nodes   this process -> srun -> an agent on each node -> its ranks

Agents and ranks (`probes/cp_agent.py`, `probes/cp_rank.py`) connect back to this process, on the
loopback interface where there is one node. A rank's connection carries what it does, and its end
shows that the rank has died, before torchrun knows how. An agent dies when its connection closes,
and its ranks with it: whatever happens to this process, to an agent, or to a rank, nothing stays
behind. Connections are told apart from others by a secret in a file that only its owner can read.

Each rank's output goes into a file of the folder, which all nodes see; the ends of them, the
culprit's last, go into this process's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from probes import cp_agent, cp_rank
from probes.cp_ranks import Crew, Message, Told
from probes.cp_watch import watch
from probes.session import Session

LOG_KEPT: Final = 48_000
"""Characters of all ranks' output together; the host keeps some more of a probe's."""
DEATH_WORDS: Final = 16_000
REPORT_LIMIT_S: Final = 45.0
"""For torchrun to say how a rank ended: it first ends the others, which may take 30 s."""
GRACE_S: Final = 15.0
"""For everything to be gone after it was killed; the driver takes a while to stop a busy GPU."""
_TICK_S: Final = 0.2
_LINE_LIMIT: Final = 1 << 22


@dataclass(frozen=True)
class Job:
    """What each rank does: `function(member)` of a module of this room."""

    module: str
    function: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """That differ from those of this process."""


@dataclass(frozen=True)
class Nodes:
    """Where ranks are started."""

    count: int = 1
    ranks: int = 1
    """On each of them."""
    slurm: bool = False
    """By srun within this allocation; otherwise all agents are started here."""

    def commands(self, folder: Path) -> list[list[str]]:
        """What starts the agents."""
        agent = [sys.executable, "-s", "-P", cp_agent.__file__, str(folder)]
        if not self.slurm:
            return [[*agent, str(node)] for node in range(self.count)]
        return [
            [
                "srun", f"--nodes={self.count}", f"--ntasks={self.count}", "--ntasks-per-node=1",
                # Beside the campaign's own step, which holds the first node.
                "--overlap", "--kill-on-bad-exit=1", "--cpu-bind=none", "--export=ALL", *agent,
            ]
        ]  # fmt: skip


def slurm_nodes() -> int:
    """Nodes of the allocation that this process may use; 1 outside of one.

    The host shows a probe Slurm's variables only if it may use all nodes.
    """
    return max(1, int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))


def visible_gpus() -> int:
    """GPUs that this process is shown, found without touching one."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        return len([name for name in shown.split(",") if name.strip()])
    try:
        return len(list(Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return 0


def run(probe: Session, crew: Crew, job: Job, nodes: Nodes) -> Told:
    """Start the ranks, watch them, and end whatever is left of them.

    Args:
        probe: the session.
        crew: how many, and how long.
        job: what each does.
        nodes: where; as many ranks as the crew has.
    """
    assert crew.world == nodes.count * nodes.ranks
    launched = Launched(probe, crew, job, nodes)
    told = Told()
    try:
        told = watch(probe, crew, launched)
        return told
    finally:
        launched.end()
        launched.write_logs(told.fault.rank if told.fault else None)


@dataclass(eq=False)
class _Connection:
    """One agent or rank."""

    socket: socket.socket
    waiting: bytes = b""
    agent: int | None = None
    rank: int | None = None
    node: int = 0
    pid: int = 0
    farewell: bool = False

    def lines(self, data: bytes) -> list[Message]:
        *lines, self.waiting = (self.waiting + data).split(b"\n")
        if len(self.waiting) > _LINE_LIMIT:
            raise ValueError("a line without an end")
        return [json.loads(line) for line in lines]


class Launched:
    """The ranks of one launch, as `cp_ranks.Ranks` has them."""

    def __init__(self, probe: Session, crew: Crew, job: Job, nodes: Nodes) -> None:
        self._crew, self._nodes = crew, nodes
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=probe.scratch))
        one_host = not nodes.slurm
        self._server = socket.create_server(("127.0.0.1" if one_host else "", 0))
        self._token = secrets.token_hex(16)
        order = {
            "request": _request(probe, job),
            "crew": crew.as_json(),
            "module": job.module,
            "function": job.function,
            "sys_path": sys.path,
            "hosts": ["127.0.0.1"] if one_host else _addresses(),
            "port": self._server.getsockname()[1],
            "token": self._token,
            "one_host": one_host,
            "nodes": nodes.count,
            "ranks_per_node": nodes.ranks,
            "start_limit_s": crew.start_limit_s,
        }
        path = self.folder / cp_agent.ORDER
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(order, file)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._hellos: dict[int, dict[str, Any]] = {}
        self._agents: dict[int, _Connection] = {}
        self._ranks: dict[int, _Connection] = {}
        self._gone: dict[int, float] = {}
        """Ranks that died without a farewell, in the order in which they did, and when."""
        self._said: set[int] = set()
        """Ranks whose end was passed on."""
        self._starters = []
        for number, command in enumerate(nodes.commands(self.folder)):
            with (self.folder / f"start-{number}.log").open("wb") as log:
                self._starters.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        process_group=0,
                    )
                )  # fmt: skip

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """See `cp_ranks.Ranks`."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            heard: list[tuple[int, Message]] = []
            for key, _ in self._selector.select(min(left, _TICK_S)):
                heard += self._accept() if key.fileobj is self._server else self._read(key.data)
            heard = heard or self._overdue()
            if heard or left <= 0:
                return heard

    def _accept(self) -> list[tuple[int, Message]]:
        accepted, _ = self._server.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))
        return []

    def _read(self, connection: _Connection) -> list[tuple[int, Message]]:
        try:
            data = connection.socket.recv(1 << 16)
            messages = connection.lines(data)
        except (OSError, ValueError):
            data, messages = b"", []
        heard: list[tuple[int, Message]] = []
        for message in messages:
            if connection.agent is None and connection.rank is None:
                if message.get("token") != self._token:
                    data = b""  # somebody else's
                    break
                self._welcome(connection, message)
            elif connection.rank is not None:
                connection.farewell |= "end" in message or "verdict" in message
                heard.append((connection.rank, message))
            else:
                connection.farewell = True
                heard += self._report(connection.agent or 0, message)
        if not data:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            heard += self._closed(connection)
        return heard

    def _welcome(self, connection: _Connection, hello: dict[str, Any]) -> None:
        connection.pid = int(hello["pid"])
        if "rank" in hello:
            connection.rank, connection.node = int(hello["rank"]), int(hello["node"])
            self._ranks[connection.rank] = connection
            return
        connection.agent = int(hello["agent"])
        self._agents[connection.agent] = connection
        self._hellos[connection.agent] = hello
        if len(self._hellos) == self._nodes.count:
            endpoint = f"{self._hellos[0]['host']}:{self._hellos[0]['port']}"
            for agent in self._agents.values():
                with contextlib.suppress(OSError):
                    cp_agent.send(agent.socket, {"endpoint": endpoint})

    def _closed(self, connection: _Connection) -> list[tuple[int, Message]]:
        """What a connection's end says of ranks."""
        if connection.rank is not None:
            if not connection.farewell:
                self._gone[connection.rank] = time.monotonic()
        elif connection.agent is not None and not connection.farewell:
            return self._without_agent(connection.agent)
        return []

    def _report(self, agent: int, message: dict[str, Any]) -> list[tuple[int, Message]]:
        """What torchrun says of the ranks of a node, in the order in which they died."""
        if "broke" in message:
            return self._without_agent(agent, message["broke"])
        statuses = {int(rank): status for rank, status in message["ranks"].items()}
        order = [*(rank for rank in self._gone if rank in statuses), *statuses]
        return [self._death(rank, statuses[rank]) for rank in dict.fromkeys(order)]

    def _without_agent(self, agent: int, why: str = "") -> list[tuple[int, Message]]:
        """A node's launcher ended by itself, or was killed, and its ranks with it."""
        known = [rank for rank, one in self._ranks.items() if one.node == agent]
        lost = sorted(rank for rank in known if not self._ranks[rank].farewell)
        if len(known) < self._nodes.ranks:
            # Which ranks would have been its own is not known, if they did not get that far.
            lost += [rank for rank in range(self._crew.world) if rank not in self._ranks]
        if not lost:
            return []
        starter = self._starters[min(agent, len(self._starters) - 1)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            starter.wait(GRACE_S)
        said = f"the launcher of node {agent} ended" + (f": {why}" if why else "")
        status = None if why else starter.returncode
        return [self._death(lost[0], status, f"{said}\n{self._log(f'agent-{agent}')}")]

    def _overdue(self) -> list[tuple[int, Message]]:
        """Ends that nobody will explain any more."""
        late = time.monotonic() - REPORT_LIMIT_S
        heard = [
            self._death(rank, None)
            for rank, when in self._gone.items()
            if when < late and rank not in self._said
        ]
        for number, starter in enumerate(self._starters):
            if starter.poll() is not None and number not in self._agents and not heard:
                words = self._log(f"start-{number}") + self._log(f"agent-{number}")
                rank = number * self._nodes.ranks
                if rank not in self._said:
                    heard.append(self._death(rank, starter.returncode, words))
        return heard

    def _death(self, rank: int, status: int | None, words: str = "") -> tuple[int, Message]:
        self._said.add(rank)
        return rank, {"died": status, "log": words or self._log(f"rank-{rank}")}

    def _log(self, name: str, kept: int = DEATH_WORDS) -> str:
        try:
            with (self.folder / f"{name}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - kept))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def ask_where(self, rank: int) -> None:
        """See `cp_ranks.Ranks`; through the agent, since the rank may be on another node."""
        known = self._ranks.get(rank)
        agent = None if known is None else self._agents.get(known.node)
        if known is not None and agent is not None:
            with contextlib.suppress(OSError):
                cp_agent.send(agent.socket, {"where": known.pid})

    def end(self) -> None:
        """End everything that was started here, on every node, and wait until it is gone."""
        for agent in self._agents.values():
            with contextlib.suppress(OSError):
                agent.socket.shutdown(socket.SHUT_RDWR if agent.farewell else socket.SHUT_WR)
        if not self._nodes.slurm:
            self._kill_starters()
        deadline = time.monotonic() + GRACE_S
        while self._open() and time.monotonic() < deadline:
            for key, _ in self._selector.select(_TICK_S):
                if key.fileobj is not self._server:
                    self._read(key.data)
                else:
                    self._accept()
        for starter in self._starters:
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(max(0.0, deadline - time.monotonic()))
        self._kill_starters()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self._selector.close()

    def _open(self) -> list[_Connection]:
        """Agents and ranks that are still there."""
        found = [key.data for key in self._selector.get_map().values() if key.data is not None]
        return [one for one in found if one.agent is not None or one.rank is not None]

    def _kill_starters(self) -> None:
        for starter in self._starters:
            # srun passes a polite end on to its tasks; a killed one leaves them to themselves.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starter.pid, signal.SIGTERM if self._nodes.slurm else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                starter.wait(GRACE_S)

    def write_logs(self, culprit: int | None) -> None:
        """Put the ends of all output into this process's own, the culprit's last."""
        names = [f"rank-{rank}" for rank in range(self._crew.world) if rank != culprit]
        names = [
            *(f"start-{number}" for number in range(len(self._starters))),
            *(f"agent-{node}" for node in range(self._nodes.count)),
            *names,
            *([] if culprit is None else [f"rank-{culprit}"]),
        ]
        share = LOG_KEPT // 2 // len(names)
        for name in names:
            kept = LOG_KEPT // 2 if name == f"rank-{culprit}" else share
            text = self._log(name, kept).rstrip()
            if text:
                sys.stderr.write(f"--- output of {name}\n{text}\n---\n")
        sys.stderr.flush()


def _request(probe: Session, job: Job) -> dict[str, Any]:
    return {
        "parameters": {**probe.parameters, **job.parameters},
        "components": {name: dict(entry) for name, entry in probe.components.items()},
        "trees": {name: dict(tree) for name, tree in probe.trees.items()},
        "environment": str(probe.environment),
        "image": [str(path) for path in probe.places.images],
        "scratch": str(probe.scratch),
    }


def _addresses() -> list[str]:
    """Under which other nodes may find this one: by name, then by each address of the name."""
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)]
    return list(dict.fromkeys(found))


RANK_SCRIPT: Final = cp_rank.__file__
"""Named here, so that a change of it makes another probe of those that launch ranks."""
