"""The probe of two GPUs on a driver with two: what a DSL may do there, and what is said of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probes import mechanism_devices
from probes.answer import Answer
from probes.children import Ended
from probes.conditions import Condition, Record, read
from probes.gpu_pair import only
from probes.reasons import Verdict
from probes.session import Session
from tests.probes.asking import Asker, Reply
from tests.probes.stand_ins import stand_ins
from tests.probes.two_gpus import TwoGpus, two_gpus

__all__ = ["stand_ins", "two_gpus"]

MIB = 1 << 20
Ask = Callable[..., Reply]


@pytest.fixture
def ask(two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks the probe for some of its conditions, by name."""
    made = {"alone": mechanism_devices.alone, "beside": mechanism_devices.beside}

    def some(name: str, wanted: tuple[str, ...]) -> Callable[[Session], list[Condition]]:
        return lambda probe: [each for each in made[name](probe) if each.name in wanted]

    def ask(*wanted: str, parameters: dict[str, Any] | None = None, **options: Any) -> Reply:
        for name in made:
            monkeypatch.setattr(mechanism_devices, name, some(name, wanted))
        reply = two_gpus(options=options, **(parameters or {}))
        assert set(reply.parts) == {"two GPUs", *wanted}
        return reply

    return ask


def measures(reply: Reply) -> dict[str, dict[str, Any]]:
    """Measures of the parts, all of which passed, and whose controls were all caught."""
    assert reply.end["status"] == "pass", (reply.end, reply.of("part"))
    assert set(reply.controls.values()) == {True}
    return {name: part["measure"] for name, part in reply.parts.items()}


def test_every_condition_is_created_and_what_comes_of_it_recorded(two_gpus: TwoGpus) -> None:
    reply = two_gpus()
    found = measures(reply)
    two = found.pop("two GPUs")
    assert (two["gpus_count"], two["first_reaches_second"]) == (2, True)
    assert {name: (each["error_code"], each["error_at"]) for name, each in found.items()} == {
        "what first calls touch, LAZY loading": ("none", None),
        "second GPU busy": ("none", None),
        "second GPU used by another process": ("none", None),
        # Loads that failed in silence, and where that shows.
        "second GPU full, LAZY loading": ("cuda:invalid-value", "same function on the other GPU"),
        "second GPU filled by another process, LAZY loading": (
            "cuda:invalid-value", "same function on the other GPU",
        ),
        "first GPU full, LAZY loading": ("cuda:invalid-value", "first call"),
        "first GPU full and alone, LAZY loading": ("cuda:memory-allocation", "first call"),
        "first call on the first of two GPUs, LAZY loading": ("none", None),
        "first call on the second of two GPUs, LAZY loading": ("none", None),
        "stream of the second GPU": (
            "cuda:invalid-resource-handle", "known function, strange",
        ),
        "address on the second GPU": ("cuda:illegal-address", "wait after the known function"),
        "stream and address of the second GPU": (
            "cuda:invalid-resource-handle", "known function, strange",
        ),
        "tensors of the second GPU": ("none", None),
        "tensors and stream of the second GPU": ("none", None),
        "tensors of the second GPU, stream of the first": (
            "cuda:invalid-resource-handle", "first call",
        ),
        "tensors of the first GPU, stream of the second": (
            "cuda:invalid-resource-handle", "first call",
        ),
        "written on the first GPU, read on the second": ("ValueError", "first call"),
        "written on the second GPU, read on the first": ("ValueError", "first call"),
    }  # fmt: skip
    assert all(each["created"] is True for each in found.values())
    assert set(reply.controls) == {f"without: {name}" for name in found}

    touched = found["what first calls touch, LAZY loading"]
    assert touched["contexts_count_before_calls"] == 1
    assert touched["contexts_count_of_first_call"] == 2
    assert touched["second_gpu_bytes_before_calls"] == 0
    assert touched["second_gpu_bytes_of_first_call"] == 66 * MIB
    assert touched["second_gpu_bytes_per_further_function"] == 2 * MIB
    assert touched["second_gpu_bytes_in_all"] == 66 * MIB + 4 * 2 * MIB
    assert touched["first_gpu_bytes_before_calls"] == 64 * MIB
    assert touched["first_gpu_bytes_of_first_call"] == 2 * MIB

    busy = found["second GPU busy"]
    assert busy["first_call_s"] < 1.5
    assert busy["still_busy"] is True
    full = found["second GPU full, LAZY loading"]
    assert full["free_bytes"] < 2 * MIB
    assert full["taken_bytes"] > 2900 * MIB
    assert full["after_first_call"] == full["after_first_call_of_another_function_there"] == "none"
    filled = found["second GPU filled by another process, LAZY loading"]
    assert filled["free_bytes"] < 2 * MIB
    assert filled["created_how"].startswith("another process there: fill cuMemAlloc")
    first = found["first GPU full, LAZY loading"]
    assert first["after_second_call"] == first["after_first_function_again"] == "cuda:invalid-value"
    assert first["after_same_function_on_the_other_gpu"] == "none"
    alone = found["first GPU full and alone, LAZY loading"]
    assert alone["error_text"].startswith("RuntimeError: Got Cuda Runtime Error")
    assert alone["after_first_function_again"] == "none"
    calls = found["first call on the second of two GPUs, LAZY loading"]
    assert (calls["other_context_before"], calls["other_context_after"]) == (True, True)
    calls = found["first call on the first of two GPUs, LAZY loading"]
    assert (calls["other_context_before"], calls["other_context_after"]) == (False, True)


def test_one_gpu_is_no_condition(two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    reply = two_gpus()
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:no-condition")
    assert reply.end["detail"].startswith("1 GPU is visible")
    assert list(reply.parts) == ["two GPUs"]
    assert not reply.controls


def test_no_gpu_is_the_machines_lack(two_gpus: TwoGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    reply = two_gpus(options={"gpus": 0})
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:no-gpu")
    assert list(reply.parts) == ["two GPUs"]


BUSY = "second GPU busy"
FULL = "second GPU full, LAZY loading"
FILLED = "second GPU filled by another process, LAZY loading"
TOUCHED = "what first calls touch, LAZY loading"
STREAM = "stream of the second GPU"
TENSORS = "tensors of the second GPU"
ADDRESS = "address on the second GPU"
MIXED = "written on the first GPU, read on the second"
CALLS = "first call on the first of two GPUs, LAZY loading"


@pytest.mark.parametrize("fault", ["fails", "does nothing"])
def test_calls_that_fail_without_the_condition_are_no_evidence(ask: Ask, fault: str) -> None:
    wanted = [TOUCHED, FULL, CALLS, STREAM, TENSORS]
    reply = ask(*wanted, launch=fault)
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")
    assert reply.controls == {f"without: {name}": False for name in wanted}
    details = {line["name"]: line["detail"] for line in reply.of("control")}
    words = {"fails": "cudaErrorLaunchFailure", "does nothing": "Wrong"}[fault]
    assert all(words in detail for detail in details.values()), details


def test_calls_that_die_are_recorded_or_the_failure_of_what_comes_before(ask: Ask) -> None:
    reply = ask(BUSY, CALLS, STREAM, launch="dies")
    reasons = {name: part["reason"] for name, part in reply.parts.items()}
    assert reasons == {
        "two GPUs": None,
        BUSY: "signal:SIGSEGV",  # of the kernel that was to spin
        CALLS: None,
        STREAM: "signal:SIGSEGV",  # of an ordinary call
    }
    assert reply.parts[CALLS]["measure"]["error_code"] == "signal:SIGSEGV"
    assert reply.parts[CALLS]["measure"]["error_at"] == "first call"
    assert set(reply.controls.values()) == {False}


def test_a_kernel_that_can_not_spin_is_a_failure_of_its_own(ask: Ask) -> None:
    reply = ask(BUSY, launch="fails")
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:launch-failure")
    assert reply.end["detail"].startswith("a spinning kernel of ours")


def test_a_load_that_waits_for_the_other_gpu_shows_in_the_time(ask: Ask) -> None:
    busy = measures(ask(BUSY, loads="after all work"))[BUSY]
    assert busy["created"] is True
    assert busy["still_busy"] is False
    assert busy["first_call_s"] > 1.5


def test_a_kernel_that_ends_at_once_is_no_busy_gpu(ask: Ask) -> None:
    reply = ask(BUSY, spin="ends at once")
    assert (reply.end["status"], reply.end["reason"]) == ("miss", "machine:no-condition")
    assert reply.end["detail"] == "the kernel ended at once"


def test_a_load_that_says_that_it_failed_somewhere(ask: Ask) -> None:
    found = measures(ask(FULL, FILLED, loads="everywhere or not at all"))
    for name in (FULL, FILLED):
        assert (found[name]["error_code"], found[name]["error_at"]) == (
            "cuda:memory-allocation", "first call",
        )  # fmt: skip
        assert found[name]["after_first_function_again"] == "none"


def test_a_load_where_it_is_called_alone(ask: Ask) -> None:
    found = measures(ask(TOUCHED, CALLS, loads="where it is called"))
    assert found[TOUCHED]["second_gpu_bytes_in_all"] == 0
    assert found[TOUCHED]["contexts_count_in_all"] == 1
    assert found[CALLS]["other_context_after"] is False
    assert found[CALLS]["error_at"] == "same function on the other GPU"


def test_no_crowd_is_blamed_for_what_happens_without_one(ask: Ask) -> None:
    reply = ask(FILLED, loads="where it is called")
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")
    (control,) = reply.of("control")
    assert control["detail"].startswith("same function on the other GPU: cuda:invalid-value")


@pytest.mark.parametrize(("how", "code"), [("rightly", None), ("wrongly", "Wrong")])
def test_wrong_results_of_calls_that_reported_success(ask: Ask, how: str, code: str | None) -> None:
    found = measures(ask(ADDRESS, MIXED, reaches=how))
    codes = {name: found[name]["error_code"] for name in (ADDRESS, MIXED)}
    assert codes == ({ADDRESS: "WrongCount", MIXED: "WrongAnswer"} if code else
                     {ADDRESS: "none", MIXED: "none"})  # fmt: skip


def test_a_neighbour_goes_with_the_one_that_is_killed_beside_it(
    ask: Ask, two_gpus: TwoGpus
) -> None:
    options = {"loads": "for ever where one fails"}
    filled = measures(ask(FILLED, parameters={"hang_s": 2}, **options))[FILLED]
    assert (filled["error_code"], filled["error_at"]) == ("timeout", "first call")
    ledger = json.loads((two_gpus.folder / "cuda" / "bindings" / "ledger.json").read_text())
    assert len(ledger) == 2  # it took all memory of the GPU, and nobody has taken any since
    since = time.monotonic()
    while any(_lives(pid) for pid in ledger) and time.monotonic() - since < 20:
        time.sleep(0.05)
    assert not [pid for pid in ledger if _lives(pid)]


def _lives(pid: str) -> bool:
    try:
        state = Path("/proc", pid, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # whoever adopted it may take its time to bury it


def test_tensors_of_two_gpus_that_nobody_refuses(ask: Ask) -> None:
    mixed = measures(ask(MIXED, mixes=True))[MIXED]
    assert (mixed["error_code"], mixed["error_at"]) == ("cuda:illegal-address", "first call")
    assert mixed["after_call_on_the_first_gpu"] == "cuda:illegal-address"


def test_memory_that_others_take_meanwhile_spoils_the_measure(ask: Ask) -> None:
    reply = ask(TOUCHED, elsewhere=16 * MIB)
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")
    (control,) = reply.of("control")
    assert "bytes taken on a GPU that is not visible" in control["detail"]


def test_a_process_that_looks_on_and_is_gone_is_no_condition(
    two_gpus: TwoGpus, asker: Asker, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    from probes import device_conditions

    two_gpus.prepare()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # of which it makes no sense
    sizes = {"visible": 2, "shared_bytes": 0, "functions": 1}
    device_conditions.touched(_session(asker), sizes)
    record = _record(capfd.readouterr().err)
    assert record.created is False
    assert record.how.startswith("it ended: ")
    assert not record.outcomes


def test_a_neighbour_that_could_not_come_is_no_condition(
    two_gpus: TwoGpus, asker: Asker, capfd: Any
) -> None:
    from probes import device_conditions

    two_gpus.prepare()
    asked = {"visible": 2, "shared_bytes": 0, "spin_s": 1, "how": "no such work", "on": 1}
    device_conditions.crowded(_session(asker), asked)
    record = _record(capfd.readouterr().err)
    assert record.created is False
    assert "no such work" in record.how
    assert {outcome.code for outcome in record.outcomes} == {"none"}


@pytest.mark.parametrize(
    ("shown", "number", "name"),
    [(None, 1, "1"), ("4,6", 1, "6"), ("GPU-aa, GPU-bb", 1, "GPU-bb"), ("4,6", 0, "4")],
)
def test_one_of_the_gpus_that_are_shown(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, number: int, name: str
) -> None:
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert only(number) == {"CUDA_VISIBLE_DEVICES": name}


def test_conditions_have_names_of_their_own_and_functions_that_are_there(asker: Asker) -> None:
    for setting, parameters in mechanism_devices.PROBE["parameters"].items():  # type: ignore[attr-defined]
        probe = _session(asker, setting=setting, **parameters)
        listed = [*mechanism_devices.alone(probe), *mechanism_devices.beside(probe)]
        assert len({condition.name for condition in listed}) == len(listed)
        assert all(hasattr(mechanism_devices, condition.function) for condition in listed)
        for condition in listed:
            assert json.dumps(condition.arguments) != json.dumps(condition.without)


def _session(asker: Asker, **parameters: Any) -> Session:
    given = {"device": "cpu", "model": "tiny", "rows": 256, **parameters}
    return Session(
        asker.request("mechanism-devices", given), Answer(os.open(os.devnull, os.O_WRONLY))
    )


def _record(log: str) -> Record:
    return read(Ended("returned", Verdict("pass"), None, None, {}, 0, log))


# Upstream's functions, in this process: real torch has one device here, which stands for both.


SUBJECTS = ("attention indices", "compaction", "indexer scores", "indexer top-k", "sparse backward")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_upstreams_functions_are_called_and_compared(
    two_gpus: TwoGpus, asker: Asker, capfd: Any, subject: str
) -> None:
    pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")
    two_gpus.prepare(with_torch=False)
    from probes import device_subjects

    asked = {"subject": subject, "tensors": 0, "current": 0}
    device_subjects.upstream_elsewhere(_session(asker), asked)
    record = _record(capfd.readouterr().err)
    assert record.created is False
    assert [(outcome.action, outcome.code) for outcome in record.outcomes] == [
        ("first call", "none"),
        ("second call", "none"),
        ("call on the first GPU", "none"),
        ("answers of both", "none"),
    ]


@pytest.mark.parametrize(
    "case",
    [
        ("none", "none", None),
        ("raises", "cuda:invalid-resource-handle", "first call"),
        ("writes nothing", "WrongAnswer", "answers of both"),
        ("wrong the second time", "WrongAnswer", "answers of both"),
    ],
)
def test_what_upstream_may_do_with_tensors_of_another_gpu(
    two_gpus: TwoGpus,
    asker: Asker,
    capfd: Any,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, str, str | None],
) -> None:
    fault, *found = case
    torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")
    two_gpus.prepare(with_torch=False)
    from probes import device_subjects, stream_subjects

    places: dict[int, int] = {}
    currents: list[int] = []
    calls: list[int] = []

    class Two(device_subjects.Devices):
        def __init__(self, probe: Session) -> None:
            super().__init__(probe)
            self.count = 2

        def current(self, number: int) -> Any:
            currents.append(number)
            return super().current(number)

        def put(self, tensors: Any, number: int) -> Any:
            made = {name: tensor.clone() for name, tensor in tensors.items()}
            places.update({id(tensor): number for tensor in made.values()})
            return made

    def call(tensors: Any) -> Any:
        wrong = places[id(tensors["x"])] != currents[-1]
        calls.append(1)
        if wrong and fault == "raises":
            raise RuntimeError("CUDA Error: cudaErrorInvalidResourceHandle")
        spoilt = wrong and (
            fault == "writes nothing" or (fault == "wrong the second time" and len(calls) == 2)
        )
        return {"out": tensors["x"] * (0 if spoilt else 2)}

    monkeypatch.setattr(device_subjects, "Devices", Two)
    ones = {"x": torch.ones(4, 4)}
    subject = stream_subjects.Subject(ones, ones, call)
    monkeypatch.setattr(stream_subjects.Maker, "makers", lambda maker: {"it": lambda: subject})
    asked = {"subject": "it", "tensors": 1, "current": 0}
    device_subjects.upstream_elsewhere(_session(asker), asked)
    record = _record(capfd.readouterr().err)
    assert record.created is True
    assert currents == [0, 0, 0]
    error = record.error
    assert (error.code if error else "none", error.action if error else None) == tuple(found)


def test_a_process_leaves_nothing_behind_it(two_gpus: TwoGpus) -> None:
    """The stand-in's own ledger: what the tests above rest on."""
    two_gpus.prepare()
    folder = Path(two_gpus.folder)
    (folder / "cuda" / "bindings" / "ledger.json").write_text('{"4194305": {"1": 99}}')
    from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]

    assert driver.free(1) == 3 << 30
