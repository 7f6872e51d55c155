"""May several threads compile and first call a kernel at the same time?

Drives CUTLASS DSL as cuDNN Frontend and Megatron Core do: `cute.compile` with TVM-FFI, then calls
of what it returns with a torch tensor and the current stream. The kernels are ours
(`probes/own_kernels.py`: add a fixed number to 32 int32 numbers), a fresh one for every use, since
only the first call of a function loads it. Autograd runs backward in threads of its own, so first
calls from several threads are what training does.

Each case is a process of its own and has some rounds. `first calls` lets all threads first call one
compiled function from behind a barrier; `different functions` lets each first call its own;
`compile` lets each compile the same kernel and call it. After every round another fresh function is
compiled and called from one thread: where a lock was left behind, that call never comes back. Every
step has `limit_s` seconds, and takes less than one where it works.

A case passes when every call of every thread did its work exactly once and no step hung. One that
hangs is a `timeout` that names its step.

Controls: a function that forgets the work of all threads but the first, one that does the work of
the first twice, and a child that waits for a lock which is never released must each be noticed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from probes import children
from probes.adapters.dsl import ARCH, Dsl
from probes.children import Call
from probes.devices import use_device, wait
from probes.session import Session

PROBE: Final = {
    "id": "threads",
    "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl"],
    "required": False,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {
            "device": "cuda",
            "cases": ["first calls", "different functions", "compile"],
            "threads": 8,
            "rounds": 6,
            "limit_s": 25,
            "at_once": 3,
        },
        "thorough": {
            "device": "cuda",
            "cases": ["first calls", "different functions", "compile"],
            "threads": 16,
            "rounds": 100,
            "limit_s": 25,
            "at_once": 1,
        },
    },
}

PREPARING_S: Final = 120.0
"""Longest time for importing, where several processes do so at once."""
PREPARE: Final = "prepare"
LOCKED: Final = "a lock that is never released"

Adding = Callable[[Any], None]
"""Queues the addition to an int32 tensor of 32 numbers on the current stream."""


def run(probe: Session) -> None:
    """Every case in a child, then the controls."""
    probe.require("nvidia-cutlass-dsl")
    parameters = probe.parameters
    names = [str(case) for case in parameters["cases"]]
    calls = [
        Call(
            "threads",
            "one_case",
            {"case": name},
            name=name,
            limit_s=float(parameters["limit_s"]),
            step_limits_s={PREPARE: PREPARING_S},
        )
        for name in names
    ]
    calls.append(Call("threads", "wrong_functions", {}, name="controls", limit_s=PREPARING_S))
    calls.append(Call("threads", "hung", {}, name="control", step_limits_s={LOCKED: 2.0}))
    *found, wrong, hung = children.run_all(probe, calls, at_once=int(parameters["at_once"]))
    for name, ended in zip(names, found, strict=True):
        with probe.check(name, step=False) as check:
            facts = ended.result_for(check)
            if facts is None:
                continue
            check.measure["calls_count"] = facts["calls"]
            check.measure["wrong_calls_count"] = len(facts["wrong"])
            check.expect(not facts["wrong"], "numerics", "; ".join(facts["wrong"][:4]))
    judged = wrong.value if wrong.how == "returned" else {}
    if not judged:
        with probe.check("controls", step=False) as check:
            wrong.result_for(check)
    # A check that also refuses a right function has caught nothing.
    fine = judged.pop("right", ["missing"]) == []
    for name, texts in judged.items():
        probe.control(name, failed=texts and fine, detail="; ".join(texts[:4]))
    probe.control(LOCKED, failed=hung.how == "timeout", detail=hung.verdict.detail)


class Adders:
    """Makes fresh functions."""

    def __init__(self, probe: Session, torch: Any) -> None:
        self._dsl = Dsl(probe)
        from cuda.bindings import driver

        from probes import own_kernels

        self._torch = torch
        self._driver = driver
        self._kernels = own_kernels

    def compile(self, number: int) -> Adding:
        """A function that nobody has called yet."""
        dsl, torch, driver = self._dsl, self._torch, self._driver
        compiled = dsl.cute.compile(
            self._kernels.Adder(number),
            dsl.tensor(dsl.cutlass.Int32, 1),
            dsl.stream(),
            options=f"--enable-tvm-ffi --gpu-arch {ARCH}",
        )

        def call(values: Any) -> None:
            compiled(values, driver.CUstream(torch.cuda.current_stream().cuda_stream))

        return call


def one_case(probe: Session, arguments: dict[str, Any]) -> dict[str, Any]:
    """In a child: all rounds of one case."""
    # The first step holds imports; it has no name before the case's own limit must count.
    probe.step(PREPARE)
    torch = probe.load("torch")
    device = use_device(probe, torch)
    adders = Adders(probe, torch)
    count = int(probe.parameters["threads"])
    wrong: list[str] = []
    calls = 0
    for round_ in range(int(probe.parameters["rounds"])):
        # Numbers tell fresh kernels from one another, and wrong sums from right ones.
        numbers = [1000 * (round_ + 1) + (place if "different" in arguments["case"] else 0)
                   for place in range(count)]  # fmt: skip
        name = f"round {round_}: {count} threads, {arguments['case']}"
        adding = _prepared(probe, adders, arguments["case"], numbers, round_)
        probe.step(name)
        with probe.tested("compile" if arguments["case"] == "compile" else "call", name):
            found = race(torch, device, adding)
        wrong += [f"{name}: {text}" for text in unlike(found, numbers)]
        name = f"round {round_}: first call of another function"
        probe.step(name)
        number = 1000 * (round_ + 1) + 500
        with probe.tested("call", name):
            found = race(torch, device, [adders.compile(number)])
        wrong += [f"{name}: {text}" for text in unlike(found, [number])]
        calls += count + 1
    return {"wrong": wrong, "calls": calls}


def _prepared(
    probe: Session, adders: Adders, case: str, numbers: list[int], round_: int
) -> list[Adding]:
    """What each thread does in one round."""
    if case == "compile":

        def compile_and_call(values: Any) -> None:
            adders.compile(numbers[0])(values)

        return [compile_and_call] * len(numbers)
    name = f"round {round_}: compile"
    probe.step(name)
    with probe.tested("compile", name):
        if case == "first calls":
            return [adders.compile(numbers[0])] * len(numbers)
        if case == "different functions":
            return [adders.compile(number) for number in numbers]
    raise ValueError(f"no such case: {case}")


def race(torch: Any, device: Any, adding: list[Adding]) -> list[list[int]]:
    """Let each thread call its function on numbers of its own, all at the same time.

    Args:
        torch: the module.
        device: of the numbers.
        adding: a function for each thread; two may share one.

    Returns:
        What became of each thread's 32 numbers, which were 0 to 31.

    Raises:
        BaseException: the first that a thread raised.
    """
    tensors = [torch.arange(32, dtype=torch.int32, device=device) for _ in adding]
    wait(torch, device)
    barrier = threading.Barrier(len(adding))
    errors: list[BaseException] = []

    def work(add: Adding, values: Any) -> None:
        try:
            barrier.wait()
            add(values)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=pair, daemon=True)
        for pair in zip(adding, tensors, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    wait(torch, device)
    return [tensor.tolist() for tensor in tensors]


def unlike(found: list[list[int]], numbers: list[int]) -> list[str]:
    """For each thread whose numbers are not what adding makes of 0 to 31, what they are."""
    texts = []
    for place, (values, number) in enumerate(zip(found, numbers, strict=True)):
        bad = [value - at for at, value in enumerate(values) if value - at != number]
        if bad:
            texts.append(f"thread {place}: {len(bad)} numbers, {bad[0]} added instead of {number}")
    return texts


def wrong_functions(probe: Session, arguments: dict[str, Any]) -> dict[str, list[str]]:
    """In a child: what the comparison makes of functions of ours, right and wrong."""
    del arguments
    torch = probe.load("torch")
    device = use_device(probe, torch)
    count = int(probe.parameters["threads"])

    def right(values: Any) -> None:
        values.add_(7)

    def once(values: Any) -> None:
        # Who comes while another one loads takes the function for loaded, and for done.
        if not loaded.acquire(blocking=False):
            return
        values.add_(7)

    def twice(values: Any) -> None:
        values.add_(7)
        if loaded.acquire(blocking=False):
            values.add_(7)

    found = {}
    for name, function in (
        ("right", right),
        ("work of all threads but the first forgotten", once),
        ("work of the first thread done twice", twice),
    ):
        loaded = threading.Lock()
        found[name] = unlike(race(torch, device, [function] * count), [7] * count)
    return found


def hung(probe: Session, arguments: dict[str, Any]) -> None:
    """In a child: never comes back."""
    del arguments
    lock = threading.Lock()
    lock.acquire()
    probe.step(LOCKED)
    lock.acquire()
