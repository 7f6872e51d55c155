"""The probe `streams` on simulated streams: functions that keep to their stream and that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from probes.session import absent
from tests.probes.asking import Asker, Reply, component

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from probes import streams  # noqa: E402 - beside what needs torch
from probes.stream_subjects import Maker, Subject, Tensors  # noqa: E402 - as above

SCENARIOS = [
    "default stream, idle",
    "default stream, late inputs",
    "side stream, late inputs",
    "default stream, other streams busy",
    "side stream, default stream busy",
]


class Simulated:
    """Streams that do their work when they are waited for; busy ones after all others."""

    def __init__(self, *, stays_busy: bool = True) -> None:
        self.default = "default"
        self.pool = [f"pool {number}" for number in range(4)]
        self.side = self.pool[0]
        self.current = self.default
        self.stays_busy = stays_busy
        self.queue: list[tuple[str, Callable[[], Any] | None]] = []
        self.spins: list[float] = []

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def another(self) -> str:
        return self.pool[1]

    def submit(self, work: Callable[[], Any]) -> None:
        self.queue.append((self.current, work))

    def occupy(self, stream: str, seconds: float) -> None:
        self.spins.append(seconds)
        self.queue.append((stream, None))

    def is_busy(self, stream: str) -> bool:
        return self.stays_busy and (stream, None) in self.queue

    def wait(self) -> None:
        queue, self.queue = self.queue, []
        busy: set[str] = set()
        late = []
        for stream, work in queue:
            if work is None:
                busy.add(stream)
            elif stream in busy:
                late.append(work)
            else:
                work()
        for work in late:
            work()


def function(lanes: Simulated, fault: str = "") -> Callable[[Tensors], Tensors]:
    calls = []

    def call(tensors: Tensors) -> Tensors:
        calls.append(1)
        x = tensors["x"]
        out, total = torch.empty_like(x), torch.empty(len(x))
        if fault == "raises when another is busy" and len(lanes.queue) == 4:
            raise RuntimeError("CUDA Error: cudaErrorInvalidValue")

        def work() -> None:
            out.copy_(x + (fault == "another result each time") * len(calls))
            total.copy_(x.sum(1) * (1 + 2.0**-12 * len(calls)))
            if fault == "all the same":
                out.fill_(1)
                total.fill_(1)

        stream = {"default": lanes.default, "own": lanes.pool[2]}.get(fault, lanes.current)
        if fault == "prepares":
            with lanes.use(lanes.pool[3]):
                lanes.submit(lambda: out.fill_(float("-inf")))
        with lanes.use(stream):
            lanes.submit(work)
        return {"out": out, "total": total}

    return call


def ask(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str = "", *, lanes: Any = None
) -> Reply:
    lanes = lanes or Simulated()

    def makers(maker: Maker) -> dict[str, Callable[[], Subject]]:
        def make() -> Subject:
            if fault == "absent":
                raise absent("no such function")
            real = {"x": torch.arange(1.0, 33.0).view(8, 4)}
            decoys = {"x": torch.arange(32.0, 0.0, -1.0).view(8, 4)}
            return Subject(real, decoys, function(lanes, fault), loose=frozenset({"total"}))

        return {"thing": make}

    monkeypatch.setattr(streams, "make_lanes", lambda torch, device: lanes)
    monkeypatch.setattr(streams, "makers", makers)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    asker.components = {
        "torch": component("2", module="torch"),
        "nvidia-cutlass-dsl": component("4", module="json"),
    }
    return asker.here("streams", device="cpu", repeats=3)


def verdicts(reply: Reply) -> dict[str, str | None]:
    return {
        name.partition(": ")[2]: part["reason"]
        for name, part in reply.parts.items()
        if ": " in name
    }


def test_a_right_function_passes_everywhere(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch)
    assert reply.end["status"] == "pass", reply.end
    assert verdicts(reply) == dict.fromkeys(["side stream, idle", *SCENARIOS])
    assert reply.parts["thing: default stream, idle"]["measure"]["answers_count"] == 6
    assert reply.controls == {
        "launches on the default stream": True,
        "launches on a stream of its own": True,
        "prepares its output on another stream": True,
    }


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        ("default", ["side stream, late inputs", "side stream, default stream busy"]),
        (
            "own",
            [
                "default stream, late inputs",
                "side stream, late inputs",
                "default stream, other streams busy",
            ],
        ),
        ("prepares", ["default stream, other streams busy"]),
    ],
)
def test_a_function_that_leaves_its_stream_is_found(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, fault: str, bad: list[str]
) -> None:
    reply = ask(asker, monkeypatch, fault)
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "nondeterministic")
    found = verdicts(reply)
    assert [name for name in SCENARIOS if found[name]] == bad


def test_a_result_that_changes_has_no_baseline(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch, "another result each time")
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "nondeterministic")
    assert verdicts(reply)["side stream, idle"] == "nondeterministic"


def test_inputs_that_tell_nothing_apart_are_our_error(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = ask(asker, monkeypatch, "all the same")
    assert "probe:SameAnswer" in verdicts(reply).values()


def test_a_launch_error_is_the_upstreams(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, "raises when another is busy")
    found = verdicts(reply)
    assert found["default stream, other streams busy"] == "cuda:invalid-value"
    assert found["side stream, default stream busy"] is None


def test_streams_that_are_never_busy_prove_nothing(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = Simulated(stays_busy=False)
    reply = ask(asker, monkeypatch, lanes=lanes)
    assert verdicts(reply)["side stream, late inputs"] == "probe:OurFault"
    assert verdicts(reply)["default stream, idle"] is None
    assert sorted(set(lanes.spins)) == [0.15, 0.6, 2.4]


def test_an_absent_function_is_skipped(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = ask(asker, monkeypatch, "absent")
    assert (reply.end["status"], reply.end["reason"]) == ("skip", "upstream:absent")
    assert list(reply.parts) == ["thing"]
