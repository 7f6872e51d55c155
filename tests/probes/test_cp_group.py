"""The probe of several GPUs, on processes of the CPU: its ranks, its judgement, its launchers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probes import cp_launch, cp_ranks, cp_watch
from probes.answer import Answer
from probes.cp_launch import Nodes
from probes.cp_ranks import Crew, Told
from probes.session import Session
from tests.probes import cp_group_stand_in
from tests.probes.asking import Asker, Reply, component
from tests.probes.cp_jobs import launch

pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

FEW: dict[str, Any] = {
    "device": "cpu",
    "launcher": "fork",
    "ranks_per_node": 2,
    "cp_sizes": [2],
    "layouts": ["spanning"],
    "attention_layouts": ["spanning"],
    "ratios": [4],
    "local_rows": 64,
    "model": "tiny",
    "late_ms": 150,
    "group_timeout_s": 4,
    "step_limit_s": 8,
    "start_limit_s": 60,
}


@pytest.fixture
def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reply]]:
    before = set(sys.modules)

    def asked(fault: str = "", *, flash: bool = True, **parameters: Any) -> Reply:
        tree, packages = asker.folder / "tree", asker.folder / "packages"
        cp_group_stand_in.write(tree, packages, fault)
        monkeypatch.syspath_prepend(str(packages))
        asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40, "tree": None}}
        asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="json"),
            "nvidia-cudnn-frontend": component("1", module="cudnn"),
            "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
            "flash-mla": component("1" if flash else "none", module="json"),
        }
        # Ranks may be forks of this process, where a warning would be an error.
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return asker.here("cp-group", **{**FEW, **parameters})

    yield asked
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "cudnn" or name.startswith("probes_loaded"):
            del sys.modules[name]


def test_four_ranks_with_right_stand_ins_pass(ask: Callable[..., Reply]) -> None:
    reply = ask(
        ranks_per_node=4, cp_sizes=[], ratios=[4, 128], local_rows=128, flash=False,
        attention_layouts=["padding-rank"], late_ms=20, group_timeout_s=40, step_limit_s=60,
    )  # fmt: skip
    assert reply.end["status"] == "pass", reply.end
    names = [
        f"cp {size} {what}"
        for what in (
            "any numbers", "spanning ratio 4", "spanning ratio 128", "spanning top-k",
            "spanning ratio 128 indices", "padding-rank ratio 4 attention",
            "padding-rank ratio 128 attention", "order",
        )
        for size in (2, 4)
    ]  # fmt: skip
    assert set(reply.parts) == set(names)
    assert reply.measure["forward"] == "reference"
    assert reply.measure["indexer"] == "kernels"
    assert reply.measure["ranks_count"] == 4
    assert len(reply.controls) == 11
    assert all(reply.controls.values())


def test_ranks_that_torchrun_starts_pass(ask: Callable[..., Reply]) -> None:
    reply = ask(launcher="torchrun", late_ms=20, group_timeout_s=40, step_limit_s=60)
    assert reply.end["status"] == "pass", reply.end
    assert reply.parts["the same software on every rank"]["measure"]["ranks_count"] == 2
    assert reply.measure["forward"] == "FlashMLA"
    assert reply.loaded["megatron-core"]["origin"] == "tree"
    assert reply.loaded["nvidia-cudnn-frontend"]["file"]


@pytest.mark.parametrize("fault", cp_group_stand_in.IN_RESULTS)
def test_a_wrong_result_of_one_rank_is_found(ask: Callable[..., Reply], fault: str) -> None:
    reply = ask(fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "numerics"), reply.end
    said = [part["detail"] or "" for part in reply.parts.values() if part["status"] == "fail"]
    wanted = re.escape(cp_group_stand_in.IN_RESULTS[fault])
    assert any(re.match(rf"rank \d+: .*{wanted}", one) for one in said), said
    assert all(reply.controls.values())


@pytest.mark.parametrize(
    ("fault", "reason", "said"),
    [
        ("dies", "exit:7", r"rank 1, during the boundary exchange, forward: .* status 7"),
        ("raises", "call:ValueError", r"rank 1, during .*no rows"),
        ("hangs", "timeout", r"rank 1, during the boundary exchange, forward: silent for 4 s"),
    ],
)
def test_a_rank_that_goes_wrong_is_named(
    ask: Callable[..., Reply], fault: str, reason: str, said: str
) -> None:
    reply = ask(fault, group_timeout_s=2, step_limit_s=4)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason), reply.end
    assert re.match(said, reply.end["detail"]), reply.end


def test_fewer_than_two_gpus_are_the_machines_lack(
    ask: Callable[..., Reply], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    reply = ask(ranks_per_node=0)
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:too-few-gpus")


def running(folder: Path) -> list[int]:
    """Processes, zombies aside, that a launch in this folder has left."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes()
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if str(folder).encode() in command and b"cp_" in command and state != "Z":
                found.append(int(path.name))
    return found


def gone(folder: Path, seconds: float = 15) -> bool:
    deadline = time.monotonic() + seconds
    while running(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not running(folder)


def test_two_nodes_meet_and_strangers_are_not_listened_to(tmp_path: Path) -> None:
    def intrude(_told: Told) -> None:
        (order,) = tmp_path.glob("scratch/ranks-*/order.json")
        assert order.stat().st_mode & 0o077 == 0
        port = json.loads(order.read_text())["port"]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b'{"token": "guess", "rank": 0, "pid": 1}\n{"died": 5}\n')

    told = launch(tmp_path, "meet", Nodes(count=2, ranks=1), on_facts=intrude, torch="torch")
    assert told.fault is None, told.fault
    assert [facts["sum"] for facts in told.facts["meet"].values()] == [3.0, 3.0]
    assert gone(tmp_path)


@pytest.mark.parametrize(
    ("whom", "number", "said"),
    [
        ("rank", signal.SIGKILL, r"machine:killed: rank 1, during stay: killed by the system"),
        ("agent", signal.SIGKILL, r"machine:killed: rank \d, during stay: killed by the system"),
        ("both", signal.SIGSTOP, r"timeout: rank \d, during stay: silent for 3 s"),
    ],
)
def test_nothing_is_left_whoever_is_killed_or_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], whom: str, number: signal.Signals,
    said: str,
) -> None:  # fmt: skip
    def harm(told: Told) -> None:
        facts = told.facts["linger"][1]
        for who in {"rank": ["pid"], "agent": ["agent"], "both": ["agent", "pid"]}[whom]:
            os.kill(facts[who], number)

    told = launch(tmp_path, "linger", Nodes(ranks=2), step_limit_s=3, on_facts=harm)
    assert told.fault is not None
    verdict = told.fault.verdict
    assert re.match(said, f"{verdict.reason}: {verdict.detail}"), verdict
    assert "--- output of agent-0\n" in capfd.readouterr().err
    assert gone(tmp_path)


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.probes import cp_jobs as t; "
        "t.launch(Path(sys.argv[1]), 'linger', t.Nodes(count=2, ranks=1), "
        "on_facts=lambda told: print('here', flush=True))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "here\n"
        assert len(running(tmp_path)) >= 4
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert gone(tmp_path)


def test_an_agent_that_does_not_start_is_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Nodes, "commands", lambda *_: [[sys.executable, "-c", "raise SystemExit(3)"]]
    )
    told = launch(tmp_path, "meet", Nodes(ranks=2))
    assert told.fault is not None
    assert "ended with status 3" in (told.fault.verdict.detail or "")


class _Deaf:
    """Ranks of which nothing is heard."""

    def __init__(self, said: list[tuple[int, dict[str, Any]]]) -> None:
        self.said = said
        self.asked: list[int] = []

    def hear(self, seconds: float) -> list[tuple[int, dict[str, Any]]]:
        if not self.said:
            time.sleep(seconds + 0.01)
        said, self.said = self.said, []
        return said

    def ask_where(self, rank: int) -> None:
        self.asked.append(rank)


def watched(said: list[tuple[int, dict[str, Any]]], tmp_path: Path) -> Told:
    crew = Crew(2, [2], "cuda", 0.1, 0.2, start_limit_s=0.2)
    with (tmp_path / "answer.jsonl").open("wb") as stream:
        session = Session(Asker(tmp_path).request("cp-group", {}), Answer(stream.fileno()))
        return cp_watch.watch(session, crew, _Deaf(said))


def test_who_waits_for_its_gpu_is_not_blamed_for_who_does_not_get_there(tmp_path: Path) -> None:
    step = {"task": "a", "step": "exchange"}
    told = watched([(0, {**step, "waits": True}), (1, step)], tmp_path)
    assert told.fault is not None
    assert told.fault.rank == 1
    both = watched([(0, {**step, "waits": True}), (1, {**step, "waits": True})], tmp_path)
    assert both.fault is not None
    assert "waiting for its GPU; ranks that have not ended: 0, 1" in (
        both.fault.verdict.detail or ""
    )


def test_a_process_that_nccl_ended_because_another_was_lost_is_a_victim(tmp_path: Path) -> None:
    step = {"task": "a", "step": "exchange"}
    aborted = {"died": -signal.SIGABRT, "log": "ncclRemoteError: A call failed"}
    told = watched([(0, step), (1, step), (0, aborted), (1, {"died": 9})], tmp_path)
    assert told.fault is not None
    assert (told.fault.rank, told.fault.verdict.reason) == (1, "exit:9")
    broken = {
        "died": -signal.SIGABRT,
        "log": "CUDA error: an illegal memory access was encountered",
    }
    told = watched([(0, step), (0, broken)], tmp_path)
    assert told.fault is not None
    assert told.fault.verdict.reason == "cuda:illegal-address"


@pytest.mark.parametrize(("shown", "count"), [("0,3", 2), ("", 0), ("GPU-a,GPU-b,GPU-c", 3)])
def test_visible_gpus_are_counted_without_one(
    monkeypatch: pytest.MonkeyPatch, shown: str, count: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert cp_launch.visible_gpus() == count
    assert cp_ranks.sizes_of(8) == [2, 4, 8]
    assert cp_ranks.sizes_of(6) == [2, 3, 6]
