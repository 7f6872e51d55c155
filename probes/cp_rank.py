"""One rank, as torchrun starts it: a process of its own that has inherited no GPU's context.

    python -s -P probes/cp_rank.py FOLDER

It does what the order in the folder says, tells it over a connection of its own, and writes all its
output into a file of the folder.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Voice:
    """In place of a probe's answer: of what a session says, only what was loaded goes on."""

    def __init__(self, say: Callable[..., None]) -> None:
        self._say = say
        self.redact: Callable[[str], str] = str

    def write(self, line: Mapping[str, Any]) -> None:
        """Pass a line on, or drop it."""
        from probes.answer import plain

        if line["kind"] == "loaded":
            self._say(loaded=plain(line["components"], self.redact))


def main() -> None:
    """Be the rank that torchrun's variables say; it never returns."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    _make_probes_importable()
    from probes import cp_agent
    from probes.cp_ranks import Crew, be_rank
    from probes.runner import die_with_the_host
    from probes.session import Session

    die_with_the_host()
    cp_agent.output_to(folder / f"rank-{rank}.log")
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)
    order = json.loads((folder / cp_agent.ORDER).read_text(encoding="utf-8"))
    parent = cp_agent.connect(
        order, rank=rank, node=int(os.environ[cp_agent.NODE]), pid=os.getpid()
    )

    def say(**message: Any) -> None:
        cp_agent.send(parent, message)

    def work(member: Any) -> None:
        module = importlib.import_module(order["module"])
        getattr(module, order["function"])(member)

    sys.path[:] = order["sys_path"]
    voice: Any = Voice(say)
    session = Session(order["request"], voice)
    be_rank(
        session,
        Crew(**order["crew"]),
        rank,
        say,
        load=lambda: session.load("torch"),
        meet=lambda _torch: {},  # by the variables that torchrun sets
        local_rank=int(os.environ["LOCAL_RANK"]),
        work=work,
    )
    sys.stderr.flush()
    # Without exit handlers, which have hung in libraries under test.
    os._exit(0)


def _make_probes_importable() -> None:
    room = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location("cp_agent", room / "cp_agent.py")
    assert spec is not None
    assert spec.loader is not None
    agent = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agent)
    agent.make_probes_importable()


if __name__ == "__main__":
    main()
