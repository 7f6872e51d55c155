"""Stand-ins that stay right, that change, that drift, and that fail at last."""

from __future__ import annotations

from typing import Any

import pytest

from probes import layouts
from probes.layouts import Layout
from tests.probes.asking import Reply
from tests.probes.stand_ins import stand_ins

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

__all__ = ["stand_ins"]


def ask(
    stand_ins: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    **parameters: Any,
) -> Reply:
    small = {
        "one": (Layout("one", 4, 128, (64, 192, 256)), Layout("two", 4, 160, (320, 192))),
        "other": (Layout("three", 4, 192, (700,)),),
    }
    monkeypatch.setattr(layouts, "report_microbatches", lambda seed: small)
    few = {
        "seconds": 0.5,
        "microbatches": 2,
        "cases": ["indices:2:4", "compaction:4", "backward:128"],
    }
    reply: Reply = stand_ins("soak", options, **{**few, **parameters})
    return reply


def test_right_stand_ins_pass(stand_ins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(stand_ins, monkeypatch, {})
    assert reply.end["status"] == "pass", reply.end
    measure = reply.measure
    assert measure["failures_count"] == 0
    assert measure["gpu_steps_count"] >= 2
    assert measure["launches_count"] == 5 * measure["gpu_steps_count"]
    # The first pass after compiling repeats what was compiled.
    assert measure["repeated_launches_count"] >= 10
    assert measure["steps_per_second"] > 0
    assert measure["microbatches_count"] == 2
    launches = reply.parts["every launch"]["measure"]
    assert launches["sparse_backward_ratio_128_launches_count"] == measure["gpu_steps_count"]
    assert reply.controls == {
        "a changed bit": True,
        "two rows swapped": True,
        "one NaN": True,
        "a gradient off by 1/64": True,
    }
    names = [line["name"] for line in reply.of("step")]
    assert "compile for two, 160 rows a rank" in names


@pytest.mark.parametrize(
    ("fault", "reason", "output"),
    [
        ("changes", "nondeterministic", "dq"),
        ("drifts", "nondeterministic", "dkv"),
        ("NaN", "numerics", "dkv"),
    ],
)
def test_faults_of_a_later_launch_are_found(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str, output: str
) -> None:
    # In the third pass a rank's rows come for the first time, in the fourth for the second.
    reply = ask(stand_ins, monkeypatch, {"backward": fault}, seconds=1.5)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", reason)
    assert output in reply.end["detail"]
    assert "sparse backward ratio 128" in reply.end["detail"]
    assert reply.measure["failures_count"] >= 1
    assert reply.measure["gpu_steps_count"] >= 8


def test_a_late_launch_error_ends_it_and_is_counted(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(stand_ins, monkeypatch, {"backward": "raises late"})
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:invalid-value")
    assert reply.end["detail"].startswith("sparse backward ratio 128, ")
    assert reply.measure["failures_count"] == 1
    assert reply.measure["gpu_steps_count"] == 4  # two steps were needed to compile


def test_an_error_that_spoils_the_device_ends_the_run(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(stand_ins, monkeypatch, {"raises": "indices"})
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:unknown")
    assert reply.measure["gpu_steps_count"] == 0
    assert reply.controls == {}


def test_every_rank_gets_its_turn() -> None:
    from itertools import islice

    from probes.soak import _shares

    every = [Layout("a", 4, 16, (64,)), Layout("b", 4, 16, (64,))]
    seen = [(share.layout.name, share.rank) for share in islice(_shares(every), 16)]
    assert {rank for _, rank in seen} == {0, 1, 2, 3}
    # After the first pass, whatever comes comes twice.
    assert all(seen.count(each) == 2 for each in seen[2:14])
