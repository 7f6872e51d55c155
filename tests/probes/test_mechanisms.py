"""Conditions against a driver that is a dictionary: in children, as on a GPU."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probes import conditions, process_facts
from probes.answer import Answer
from probes.children import Ended
from probes.conditions import Outcome, describe, read
from probes.reasons import Verdict
from probes.session import Session
from tests.probes.asking import Asker, Reply
from tests.probes.stand_ins import stand_ins

__all__ = ["stand_ins"]


def parts(reply: Reply) -> dict[str, dict[str, Any]]:
    """Measures of the parts, all of which passed."""
    assert reply.end["status"] == "pass", reply.end
    return {name: part["measure"] for name, part in reply.parts.items()}


LAUNCHES = [
    "no attribute",
    "destroyed stream",
    "foreign stream",
    "stream that never was",
    "illegal address",
    "illegal address, blocking",
    "misaligned address",
]


@pytest.fixture
def no_cubin(monkeypatch: pytest.MonkeyPatch, asker: Asker) -> None:
    """The stand-in's cubin is none; its only kernel is known anyway."""
    package = asker.folder / "packages"
    package.mkdir(parents=True, exist_ok=True)
    # Read at the start of every Python whose path has it: children are processes of their own.
    (package / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'probes.mechanism_launch':\n"
        "            import probes.cubin, types\n"
        "            kernel = types.SimpleNamespace(name='count')\n"
        "            probes.cubin.kernels = lambda cubin: [kernel]\n"
        "sys.meta_path.insert(0, Finder())\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(package))


def test_errors_of_launches_are_recorded(stand_ins: Any, no_cubin: None) -> None:
    found = parts(stand_ins("mechanism-launch", {}, conditions=LAUNCHES, at_once=2))
    codes = {name: measure["error_code"] for name, measure in found.items()}
    assert codes == {
        "no attribute": "cuda:invalid-value",
        "destroyed stream": "cuda:invalid-resource-handle",
        "foreign stream": "cuda:invalid-value",
        "stream that never was": "signal:SIGSEGV",
        "illegal address": "cuda:illegal-address",
        "illegal address, blocking": "cuda:illegal-address",
        "misaligned address": "cuda:misaligned-address",
    }
    assert all(measure["created"] is True for measure in found.values())
    attribute = found["no attribute"]
    assert attribute["error_text"].startswith(
        "DriverError: cuLaunchKernel: CUDA_ERROR_INVALID_VALUE"
    )
    assert (attribute["allowed_shared_bytes"], attribute["wanted_shared_bytes"]) == (49152, 214016)
    # Which call says so is the point of the two.
    assert found["illegal address"]["error_at"] == "same function at once"
    assert found["illegal address"]["after_launch_that_touches_it"] == "none"
    assert found["illegal address"]["after_first_call_of_another_function"] == (
        "cuda:illegal-address"
    )
    assert found["illegal address, blocking"]["error_at"] == "launch that touches it"
    assert found["stream that never was"]["error_at"] == "known function on it"


def test_each_control_is_the_same_without_the_condition(stand_ins: Any) -> None:
    reply = stand_ins("mechanism-launch", {}, conditions=LAUNCHES[1:3], at_once=2)
    assert reply.controls == {f"without: {name}": True for name in LAUNCHES[1:3]}
    # Both have one control, which ran once.
    names = [line["name"] for line in reply.of("step")]
    starts = [name for name in names if name.endswith(": call on an ordinary stream")]
    assert len(starts) == 3


def test_calls_that_fail_without_the_condition_are_no_evidence(stand_ins: Any) -> None:
    reply = stand_ins("mechanism-launch", {"launch": "fails"}, conditions=["illegal address"])
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")


def test_a_launch_that_does_nothing_is_noticed(stand_ins: Any) -> None:
    options = {"launch": "does nothing"}
    reply = stand_ins("mechanism-launch", options, conditions=["destroyed stream"])
    assert reply.end["reason"] == "control:not-caught"
    assert "WrongCount" in reply.of("control")[0]["detail"]


@pytest.mark.parametrize("leaks", [False, True])
def test_a_failed_load_and_what_it_leaves(stand_ins: Any, leaks: bool) -> None:
    reply = stand_ins("mechanism-first-call", {"leaks_lock": leaks}, rounds=1, hang_s=1)
    measure = parts(reply)["failed load, then another function"]
    assert (measure["error_code"], measure["error_at"]) == ("cuda:invalid-value", "first call")
    assert measure["error_text"].startswith("RuntimeError: Got Cuda Runtime Error")
    assert measure["after_known_function"] == "none"
    other = "timeout" if leaks else "none"
    assert measure["after_first_call_of_another_function"] == other
    assert set(reply.controls.values()) == {True}


@pytest.mark.parametrize(
    ("how", "code"), [("raises", "cuda:unknown"), ("hangs", "timeout"), ("waits", "none")]
)
def test_races_and_what_comes_of_them(stand_ins: Any, how: str, code: str) -> None:
    reply = stand_ins("mechanism-first-call", {"race": how}, rounds=2, hang_s=1)
    found = parts(reply)
    for name in ("race for one function", "race of several functions"):
        assert found[name]["error_code"] == code
        assert found[name]["created"] is True
    assert set(reply.controls.values()) == {True}


def test_memory_that_has_run_out(stand_ins: Any) -> None:
    limit = process_facts.mapping_limit()
    if limit is None or limit > 1 << 20:
        pytest.skip("this system's limit of mappings is too far away for a test")
    reply = stand_ins(
        "mechanism-exhaustion",
        {"maps": 60},
        functions=2,
        kept_functions=3,
        mappings_left=[200, 20],
        upstream=False,
        loading=["LAZY"],
        at_once=2,
    )
    found = parts(reply)
    device = found["no device memory, LAZY loading"]
    assert (device["error_code"], device["error_at"]) == (
        "cuda:unknown",
        "first call of function 1",
    )
    assert device["free_bytes"] < 2 << 20
    assert device["taken_bytes"] == 3 << 30
    assert device["after_first_call_with_memory_again"] == "none"
    assert found["200 mappings left"]["error_code"] == "none"
    few = found["20 mappings left"]
    assert (few["error_code"], few["error_at"]) == (
        "cuda:unknown",
        "first call of a compiled function",
    )
    assert few["after_first_call_with_room_again"] == "none"
    kept = found["kept of each function, LAZY loading"]
    assert 60 <= kept["mappings_per_first_call"] < 64
    assert kept["mappings_per_compiled_function"] < 5
    assert kept["mappings_per_second_call"] < 1
    assert set(reply.controls.values()) == {True}


def test_a_limit_that_nobody_enforces_is_no_condition(
    stand_ins: Any, asker: Asker, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    stand_ins.prepare()
    from probes import mechanism_exhaustion

    monkeypatch.setattr(process_facts, "mapping_limit", lambda: 100)
    mechanism_exhaustion.host_mappings(_session(asker), {"left": 20, "children": 1000})
    record = read(_ended(capfd.readouterr().err))
    assert record.created is False
    assert "none was refused" in record.how


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("index rows", "cuda:unknown"),
        ("alignment", "ValueError"),
        ("compaction rows", "cuda:invalid-configuration"),
        ("compaction capacity", "cuda:invalid-configuration"),
        ("backward rows", "cuda:invalid-configuration"),
    ],
)
def test_odd_sizes_reach_upstream(
    stand_ins: Any, asker: Asker, capfd: Any, what: str, code: str
) -> None:
    pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")
    stand_ins.prepare()
    from probes import mechanism_launch

    for odd, expected in ((False, "none"), (True, code)):
        mechanism_launch.odd_sizes(_session(asker), {"what": what, "odd": odd})
        record = read(_ended(capfd.readouterr().err))
        assert record.created is odd
        assert [(outcome.action, outcome.code) for outcome in record.outcomes] == [
            ("first call", expected),
            ("second call", expected),
        ]


def test_a_new_shape_of_upstreams_without_memory(stand_ins: Any, asker: Asker, capfd: Any) -> None:
    pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")
    stand_ins.prepare()
    from probes import mechanism_exhaustion

    mechanism_exhaustion.device_memory_upstream(_session(asker), {"fill": True})
    record = read(_ended(capfd.readouterr().err))
    assert record.created is True
    assert record.numbers["taken_bytes"] == 3 << 30
    assert {outcome.code for outcome in record.outcomes} == {"none"}  # the CPU has memory
    assert record.outcomes[2].action == "first call for a new shape"


def _session(asker: Asker) -> Session:
    request = asker.request("mechanism-launch", {"device": "cpu", "model": "tiny"})
    return Session(request, Answer(os.open(os.devnull, os.O_WRONLY)))


def _ended(log: str, how: Any = "returned", **verdict: Any) -> Ended:
    found = Verdict(**verdict) if verdict else Verdict("pass")
    return Ended(how, found, None, "the last step", {}, 0, log)


def test_what_a_dead_child_said_counts() -> None:
    log = (
        'noise\ncondition-fact {"created": true, "how": "so"}\n'
        "[10:11:12.5][123][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunch\n"
        'condition-fact {"action": "first", "code": "none", "text": ""}\ncondition-fact {"act'
    )
    record = read(_ended(log, "died", status="fail", reason="signal:SIGABRT", detail="died"))
    assert (record.created, record.how) == (True, "so")
    assert record.outcomes == [
        Outcome("first", "none", "", "Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunch"),
        Outcome("the last step", "signal:SIGABRT", "died"),
    ]
    assert record.error == record.outcomes[1]


def test_a_child_that_never_said_anything_has_its_own_verdict(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = _ended("", "raised", status="fail", reason="import:ImportError", detail="no DSL")
    monkeypatch.setattr("probes.children.run_all", lambda *args, **more: [broken])
    path = asker.folder / "answer.jsonl"
    with path.open("wb") as stream:
        probe = Session(asker.request("x", {}), Answer(stream.fileno()))
        condition = conditions.Condition("it", "function", {"a": 1}, {"a": 0})
        conditions.examine(probe, "x", [condition])
        assert probe.verdict() == Verdict("fail", "import:ImportError", "no DSL")


def test_a_condition_that_could_not_be_created_is_a_miss(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'condition-fact {"created": %s, "how": "tried"}\n'
    call = 'condition-fact {"action": "first", "code": "none", "text": ""}\n'
    ended = [_ended(said % "false" + call)]
    monkeypatch.setattr("probes.children.run_all", lambda *args, **more: ended)
    with (asker.folder / "answer.jsonl").open("wb") as stream:
        probe = Session(asker.request("x", {}), Answer(stream.fileno()))
        conditions.examine(probe, "x", [conditions.Condition("it", "f", {"a": 1}, {"a": 0})])
        assert probe.verdict() == Verdict("miss", "machine:no-condition", "tried")


def test_codes_of_errors() -> None:
    assert describe(RuntimeError("CUDA Error: cudaErrorInvalidValue"))[0] == "cuda:invalid-value"
    assert describe(MemoryError())[0] == "MemoryError"
    code, text = describe(ValueError("Misaligned Tensor data\non argument 3"))
    assert (code, text) == ("ValueError", "ValueError: Misaligned Tensor data on argument 3")


def test_mappings_are_taken_and_given_back_in_a_child() -> None:
    """In a process of its own: this one may need some while all are taken."""
    import subprocess

    limit = process_facts.mapping_limit()
    if limit is None or limit > 1 << 20:
        pytest.skip("this system's limit of mappings is too far away for a test")
    script = (
        "import mmap, sys\n"
        "from probes.mechanism_exhaustion import Mappings\n"
        "from probes.process_facts import count_mappings\n"
        "before = count_mappings()\n"
        "mappings, kept = Mappings(), []\n"
        f"assert mappings.take_all({limit} + 1000)\n"
        "assert mappings.give_back(30) == 30\n"
        "try:\n"
        "    while len(kept) < 1000:\n"
        "        kept.append(mmap.mmap(-1, 4096))\n"
        "except OSError:\n"
        "    pass\n"
        "got = len(kept)\n"
        "kept.clear()\n"
        "mappings.give_back(10**9)\n"
        "print(got, count_mappings() - before)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True
    )
    got, left_over = map(int, done.stdout.split())
    assert 28 <= got <= 34
    assert left_over < 8


def test_a_driver_without_a_gpu_is_a_miss(asker: Asker) -> None:
    from probes.gpu_driver import DriverError, Gpu
    from probes.session import Concluded

    class Status(int):
        name = "CUDA_ERROR_NO_DEVICE"

    driver = SimpleNamespace(
        cuInit=lambda flags: (Status(100),),
        cuGetErrorString=lambda status: (0, b"no CUDA-capable device is detected"),
    )
    probe: Any = SimpleNamespace(load=lambda component, module: driver)
    with pytest.raises(Concluded) as caught:
        Gpu(probe)
    assert caught.value.verdict.reason == "machine:no-gpu"
    assert isinstance(caught.value.__cause__, DriverError)
    assert mmap.PAGESIZE >= 4096
