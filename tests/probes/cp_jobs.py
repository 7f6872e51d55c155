"""Jobs of ranks that do little, and their launch: a module that is imported without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes import cp_launch, cp_watch
from probes.answer import Answer
from probes.cp_launch import Job, Nodes
from probes.cp_ranks import Crew, Member, Told
from probes.session import Session
from tests.probes.asking import Asker, component


def meet(member: Member) -> None:
    """Add up a number of each rank."""
    member.step("meet", "sum")
    total = member.torch.tensor([member.rank + 1.0])
    member.torch.distributed.all_reduce(total)
    member.found("meet", {"sum": total.item(), "pid": os.getpid()})


def linger(member: Member) -> None:
    """Say who this is, and stay."""
    member.step("linger", "stay")
    member.found("linger", {"pid": os.getpid(), "agent": os.getppid()})
    time.sleep(600)


def launch(
    folder: Path, function: str, nodes: Nodes, *, step_limit_s: float = 60,
    on_facts: Callable[[Told], None] | None = None, torch: str = "tests.probes.no_torch",
) -> Told:  # fmt: skip
    """Launch ranks in this process, doing something to them once all have said who they are."""
    request = Asker(folder).request("cp-group", {})
    request["components"] = {"torch": component("2", module=torch)}
    world = nodes.count * nodes.ranks
    crew = Crew(world, [world], "cpu", min(20.0, step_limit_s / 2), step_limit_s, nodes=1)
    with (folder / "answer.jsonl").open("wb") as stream:
        session = Session(request, Answer(stream.fileno()))
        original = cp_watch._take

        def take(probe: Any, crew: Any, rank: Any, message: Any, told: Told) -> Any:
            made = original(probe, crew, rank, message, told)
            if on_facts and "facts" in message and len(told.facts[message["task"]]) == world:
                on_facts(told)
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cp_watch, "_take", take)
            return cp_launch.run(session, crew, Job(__name__, function), nodes)
