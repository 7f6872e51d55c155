"""Ranks that are forks of the probe's process: on the CPU, where the import is paid for once.

Nothing touches a GPU before the fork. The ranks find each other through a file and talk over the
loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from probes.cp_ranks import Crew, Message, Told, Work, be_rank
from probes.cp_watch import watch
from probes.runner import die_with_the_host
from probes.session import Session


@dataclass
class _Fork:
    process: Any
    reader: Connection
    ended: bool = False


class Forks:
    """The ranks, by their number."""

    def __init__(self, forks: list[_Fork]) -> None:
        self._forks = forks

    def hear(self, seconds: float) -> list[tuple[int, Message]]:
        """See `cp_ranks.Ranks`."""
        readers = [fork.reader for fork in self._forks if not fork.ended]
        if not readers:
            time.sleep(min(seconds, 0.05))
            return []
        ready = wait(readers, seconds)
        return [
            (number, self._receive(fork))
            for number, fork in enumerate(self._forks)
            if fork.reader in ready
        ]

    def _receive(self, fork: _Fork) -> Message:
        try:
            message: Message = json.loads(fork.reader.recv_bytes())
        except EOFError:
            fork.ended = True
            fork.process.join()
            return {"died": fork.process.exitcode}
        fork.ended = "end" in message or "verdict" in message
        return message

    def ask_where(self, rank: int) -> None:
        """See `cp_ranks.Ranks`; the runner set that up before the fork."""
        with contextlib.suppress(OSError):
            os.kill(self._forks[rank].process.pid, signal.SIGUSR1)

    def end(self) -> None:
        """End all of them, and bury them."""
        for fork in self._forks:
            fork.process.kill()
            fork.process.join()
            fork.reader.close()


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
    forks: list[_Fork] = []
    sys.stdout.flush()
    sys.stderr.flush()
    for number in range(crew.world):
        reader, writer = context.Pipe(duplex=False)
        arguments = (probe, torch, crew, work, number, meeting, writer)
        process = context.Process(target=_be_fork, args=arguments, daemon=True)
        process.start()
        # The rank alone may hold this end, or its death would not be seen.
        writer.close()
        forks.append(_Fork(process, reader))
    ranks = Forks(forks)
    try:
        return watch(probe, crew, ranks)
    finally:
        ranks.end()


def _be_fork(  # noqa: PLR0917 - as a forked process is given its arguments
    probe: Session, torch: Any, crew: Crew, work: Work, rank: int, meeting: Path,
    writer: Connection,
) -> None:  # fmt: skip
    """Everything that a rank's process does; it never returns."""
    die_with_the_host()

    def say(**message: Any) -> None:
        writer.send_bytes(json.dumps(message).encode())

    def meet(torch: Any) -> dict[str, Any]:
        return {"store": torch.distributed.FileStore(str(meeting), crew.world)}

    be_rank(
        probe, crew, rank, say, load=lambda: torch, meet=meet, local_rank=rank, work=work
    )  # fmt: skip
    sys.stderr.flush()
    os._exit(0)
