"""The probe `threads` against functions that stand several callers and functions that do not."""

from __future__ import annotations

import threading as python_threading
from typing import Any

import pytest

from probes import threads
from tests.probes.asking import Asker, Reply, component
from tests.probes.inline import Hangs, inline_children

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

__all__ = ["inline_children"]
pytestmark = pytest.mark.usefixtures("inline_children")


class Loaders:
    """Functions that are loaded by their first call, as the DSL's are."""

    fault = ""
    raced = False

    def __init__(self, probe: Any, torch: Any) -> None:
        self.lock = python_threading.Lock()
        self.compiling = python_threading.Lock()

    def compile(self, number: int) -> threads.Adding:
        if self.fault == "compiles one at a time" and not self.compiling.acquire(blocking=False):
            raise SystemError("another context")
        loading = python_threading.Lock()
        calls: list[int] = []
        if self.fault == "compiles one at a time":
            python_threading.Event().wait(0.05)  # as long as a compilation takes
            self.compiling.release()

        def call(values: Any) -> None:
            calls.append(1)
            if number % 1000 == 500 and self.fault == "hangs after a race":
                raise Hangs
            if self.fault == "raises when not first" and len(calls) > 1:
                raise RuntimeError("CUDA Error: cudaErrorUnknown")
            if self.fault == "drops all but the first" and not loading.acquire(blocking=False):
                return
            values.add_(number + (self.fault == "loads another kernel" and number % 1000 == 3))

        return call


def ask(asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str = "", **more: Any) -> Reply:
    def hung(probe: Any, arguments: Any) -> None:
        if fault == "limits do not work":
            return
        raise Hangs

    monkeypatch.setattr(Loaders, "fault", fault)
    monkeypatch.setattr(threads, "Adders", Loaders)
    monkeypatch.setattr(threads, "hung", hung)
    asker.components = {
        "torch": component("2", module="torch"),
        "nvidia-cutlass-dsl": component("4", module="json"),
    }
    parameters = {"device": "cpu", "threads": 4, "rounds": 2, "at_once": 1, **more}
    return asker.here("threads", **parameters)


def test_functions_that_stand_several_callers_pass(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch)
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == ["first calls", "different functions", "compile"]
    measure = reply.parts["first calls"]["measure"]
    assert (measure["calls_count"], measure["wrong_calls_count"]) == (10, 0)
    assert reply.controls == {
        "work of all threads but the first forgotten": True,
        "work of the first thread done twice": True,
        "a lock that is never released": True,
    }


@pytest.mark.parametrize(
    ("fault", "reason", "bad"),
    [
        ("hangs after a race", "timeout", ["first calls", "different functions", "compile"]),
        ("raises when not first", "cuda:unknown", ["first calls"]),
        ("drops all but the first", "numerics", ["first calls"]),
        ("loads another kernel", "numerics", ["different functions"]),
        ("compiles one at a time", "compile:SystemError", ["compile"]),
    ],
)
def test_every_planted_fault_is_found_in_its_cases_only(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str, bad: list[str]
) -> None:
    reply = ask(asker, monkeypatch, fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason)
    assert [name for name, part in reply.parts.items() if part["reason"] == reason] == bad


def test_a_hang_names_its_round(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, "hangs after a race", cases=["first calls"])
    assert reply.end["detail"] == "hangs during: round 0: first call of another function"


def test_a_limit_that_does_not_work_is_our_error(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch, "limits do not work")
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")
