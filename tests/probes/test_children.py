"""Children of a probe: each way to end, told apart, and nothing left behind."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from probes import children
from probes.answer import Answer
from probes.session import Session
from tests.probes.asking import Asker, component

CASES = """
import ctypes, os, signal, subprocess, sys, time
PROBE = {"id": "cases", "parameters": {"quick": {"size": 3}}}

def give(probe, arguments):
    probe.step("give")
    print("printed by the child")
    return {"twice": 2 * arguments["number"], "size": probe.parameters["size"],
            "seed": probe.seed, "same_path": sys.path == arguments["sys_path"],
            "pid": os.getpid(), "alone": os.getpgrp() == os.getpid(),
            "variable": os.environ.get("EXTRA"), "scratch": str(probe.scratch)}

def load(probe, arguments):
    probe.load("thing")
    return True

def fault(probe, arguments):
    probe.step("call")
    with probe.tested("call", "it"):
        raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")

def mistake(probe, arguments):
    raise ZeroDivisionError("ours")

def crash(probe, arguments):
    probe.step("crash")
    ctypes.string_at(0)

def give_up(probe, arguments):
    probe.step("give up")
    print("assertion `context` failed", file=sys.stderr)
    os.abort()

def abort(probe, arguments):
    probe.step("abort")
    print("terminate: CUDA error: an illegal memory access was encountered", file=sys.stderr)
    os.abort()

def leave(probe, arguments):
    os._exit(3)

def silent(probe, arguments):
    os._exit(0)

def hang(probe, arguments):
    probe.step("prepare")
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(arguments["file"], "w") as file:
        file.write(f"{os.getpid()} {helper.pid}")
    probe.step("the dangerous call")
    time.sleep(60)

def killed(probe, arguments):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def parent(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Session:
    room = asker.room_with(cases=CASES)
    monkeypatch.setattr(children, "RUNNER", room / "runner.py")
    asker.components = {"thing": component("1", module="json")}
    request = asker.request("cases", {"size": 5})
    return Session(request, Answer(os.open(asker.folder / "parent.jsonl", os.O_CREAT | os.O_RDWR)))


def ask(parent: Session, function: str, **more: Any) -> children.Ended:
    return children.run(parent, children.Call("cases", function, **more))


def said(parent: Session, asker: Asker, kind: str) -> list[dict[str, Any]]:
    lines = (asker.folder / "parent.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]


def test_a_function_gets_its_parents_world_and_returns(parent: Session, asker: Asker) -> None:
    ended = ask(
        parent,
        "give",
        arguments={"number": 21, "sys_path": sys.path},
        environment={"EXTRA": "set"},
        parameters={"size": 8},
    )
    assert (ended.how, ended.verdict.status, ended.status) == ("returned", "pass", 0)
    pid = ended.value.pop("pid")
    assert pid != os.getpid()
    assert ended.value == {
        "twice": 42,
        "size": 8,
        "seed": 7,
        "same_path": True,
        "alone": True,
        "variable": "set",
        "scratch": "<scratch>",
    }
    assert "printed by the child" in ended.log
    assert ended.last_step == "give"
    assert set(ended.step_seconds) == {"start", "give"}
    assert [line["name"] for line in said(parent, asker, "step")] == ["give: give"]


def test_what_a_child_loads_is_said_by_the_parent(parent: Session, asker: Asker) -> None:
    assert ask(parent, "load").value is True
    (line,) = said(parent, asker, "loaded")
    assert line["components"]["thing"]["sha256"]
    assert parent.loaded("thing")


@pytest.mark.parametrize(
    ("function", "how", "status", "reason"),
    [
        ("fault", "raised", "fail", "cuda:illegal-address"),
        ("mistake", "raised", "error", "probe:ZeroDivisionError"),
        ("crash", "died", "fail", "signal:SIGSEGV"),
        ("abort", "died", "fail", "cuda:illegal-address"),
        ("leave", "died", "fail", "exit:3"),
        ("silent", "raised", "error", "protocol:no-end"),
        ("killed", "died", "miss", "machine:killed"),
        ("no_such_function", "raised", "error", "probe:AttributeError"),
    ],
)
def test_each_way_to_end_has_its_reason(
    parent: Session, function: str, how: str, status: str, reason: str
) -> None:
    ended = ask(parent, function)
    assert (ended.how, ended.verdict.status, ended.verdict.reason) == (how, status, reason)
    assert ended.value is None


def test_a_death_names_the_step(parent: Session) -> None:
    assert ask(parent, "crash").verdict.detail == "died from SIGSEGV during: crash"


def test_a_death_has_last_words(parent: Session) -> None:
    verdict = ask(parent, "give_up").verdict
    assert verdict.reason == "signal:SIGABRT"
    assert verdict.detail == (
        "died from SIGABRT during: give up, saying: assertion `context` failed"
    )


def test_a_hung_child_is_killed_with_all_it_started(parent: Session, asker: Asker) -> None:
    file = asker.folder / "pids"
    started = time.monotonic()
    ended = ask(
        parent,
        "hang",
        arguments={"file": str(file)},
        limit_s=30,
        step_limits_s={"the dangerous call": 0.3},
    )
    assert time.monotonic() - started < 20
    assert (ended.how, ended.verdict.reason) == ("timeout", "timeout")
    assert ended.verdict.detail == "still running after 0.3 s during: the dangerous call"
    assert "in hang" in ended.log  # it was asked where it was
    for pid in file.read_text().split():
        assert gone(int(pid)), pid


def gone(pid: int) -> bool:
    for _ in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # killed, and its new parent has yet to ask for its status
            return True
        time.sleep(0.1)
    return False


def test_one_bad_child_hides_no_other(parent: Session) -> None:
    calls = [
        children.Call("cases", "crash"),
        children.Call("cases", "give", {"number": 1, "sys_path": []}),
        children.Call("cases", "mistake"),
    ]
    assert [ended.how for ended in children.run_all(parent, calls, at_once=2)] == [
        "died",
        "returned",
        "raised",
    ]


def test_a_part_takes_the_verdict_and_the_parent_lives_on(parent: Session, asker: Asker) -> None:
    for function in ("fault", "give"):
        with parent.check(function) as check:
            arguments = {"number": 1, "sys_path": []}
            found = ask(parent, function, arguments=arguments).result_for(check)
            if found is not None:
                check.expect(found["twice"] == 2, "numerics", "not twice")
    parts = said(parent, asker, "part")
    assert [(part["name"], part["reason"]) for part in parts] == [
        ("fault", "cuda:illegal-address"),
        ("give", None),
    ]
