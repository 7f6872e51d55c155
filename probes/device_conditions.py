"""What a compiled function of ours does where a process sees several GPUs, in children.

The first GPU is the current one unless a word says otherwise. Where only one is visible, the same
calls are made with the first in the place of the second: that is what controls do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from probes.adapters.dsl import ARCH
from probes.conditions import Diary, Workbench, WrongCount
from probes.gpu_driver import NUMBERS, Gpu
from probes.gpu_pair import NthGpu, count, has_context, only
from probes.mechanism_exhaustion import BLOCK, Filling
from probes.neighbours import neighbour
from probes.session import Session

ME: Final = "mechanism-devices"
FIRST: Final = "first call"
SECOND: Final = "second call"
ANOTHER: Final = "first call of another function"
THERE: Final = "same function on the other GPU"
ANOTHER_THERE: Final = "first call of another function there"
BACK: Final = "that one on this GPU"
AGAIN: Final = "first function again"
LATER: Final = "first call of a function later"
ACTIONS: Final = (FIRST, SECOND, ANOTHER, THERE, ANOTHER_THERE, BACK, AGAIN, LATER)
"""All that may hang, and so have a limit of their own."""


@dataclass
class Caller:
    """A compiled function of ours as it is called: on a buffer for each GPU."""

    compiled: Any
    _buffers: dict[int, int] = field(default_factory=dict)
    _calls: dict[int, int] = field(default_factory=dict)

    def prepare(self, gpu: NthGpu) -> int:
        """Have a buffer on a GPU ready; its address."""
        if gpu.number not in self._buffers:
            self._buffers[gpu.number] = gpu.allocate()
            self._calls[gpu.number] = 0
        return self._buffers[gpu.number]

    def launch(self, gpu: NthGpu, *, stream: Any = 0) -> None:
        """Call it for a GPU's buffer, whichever GPU is current, and wait for nothing."""
        address = self.prepare(gpu)
        self.compiled(address, gpu.cuda.CUstream(int(stream)))
        self._calls[gpu.number] += 1

    def check(self, gpu: NthGpu) -> None:
        """Wait for a GPU, and make sure that all launches for its buffer did what they should.

        Raises:
            WrongCount: one did not.
        """
        found = gpu.read(self.prepare(gpu))
        if found != [self._calls[gpu.number]] * NUMBERS:
            raise WrongCount(f"{found[0]} instead of {self._calls[gpu.number]}")

    def call(self, gpu: NthGpu) -> None:
        """Call it on a GPU that is made current for it, wait, and make sure of what it did."""
        with gpu.current():
            self.launch(gpu)
            self.check(gpu)


def see(number: int) -> None:
    """Let this process see that many GPUs. Call before anything has touched one."""
    if number == 1:
        os.environ.update(only(0))


def other(bench: Workbench, number: int) -> NthGpu:
    """The GPU of a number, or the first where this process sees but one."""
    return NthGpu(bench.gpu, min(number, count(bench.gpu) - 1))


def compile_function(bench: Workbench, shared_bytes: int) -> Caller:
    """A fresh compiled function, which was never called."""
    return Caller(bench.function(shared_bytes=shared_bytes).compiled)


def count_gpus(probe: Session, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How many GPUs a process sees, and whether the first reaches the second's memory."""
    del arguments
    gpu = Gpu(probe)
    found = count(gpu)
    reaches = None
    if found > 1:
        devices = [gpu("cuDeviceGet", number) for number in (0, 1)]
        reaches = bool(gpu("cuDeviceCanAccessPeer", *devices))
    return {"gpus_count": found, "first_reaches_second": reaches}


def first_calls(probe: Session, arguments: Mapping[str, Any]) -> None:
    """First calls on one of the GPUs that are visible, then on the other.

    The first GPU has a context before any call, because the bench makes one; the second has none.
    """
    see(int(arguments["visible"]))
    diary, bench = Diary(probe), Workbench(probe)
    shared, place = int(arguments["shared_bytes"]), int(arguments["on"])
    one, another = (compile_function(bench, shared) for _ in range(2))
    visible = count(bench.gpu)
    here, elsewhere = other(bench, place), min(1 - place, visible - 1)
    diary.created(visible > 1, f"{visible} GPUs are visible; first called on number {place}")
    diary.number(other_context_before=has_context(bench.gpu, elsewhere))
    diary.attempt(FIRST, lambda: one.call(here))
    diary.number(other_context_after=has_context(bench.gpu, elsewhere))
    there = other(bench, 1 - place)
    diary.attempt(THERE, lambda: one.call(there))
    diary.attempt(ANOTHER_THERE, lambda: another.call(there))
    diary.attempt(BACK, lambda: another.call(here))
    diary.attempt(AGAIN, lambda: one.call(here))


def crowded(probe: Session, arguments: Mapping[str, Any]) -> None:
    """First calls on the first GPU while it or the second one is crowded, and calls after that."""
    see(int(arguments["visible"]))
    diary, bench = Diary(probe), Workbench(probe)
    shared = int(arguments["shared_bytes"])
    one, another, late = (compile_function(bench, shared) for _ in range(3))
    here = NthGpu(bench.gpu, 0)
    for function in (one, another, late):
        function.prepare(here)
    took: dict[str, float] = {}

    def timed() -> None:
        started = time.perf_counter()
        try:
            one.call(here)
        finally:
            took["first_call_s"] = round(time.perf_counter() - started, 4)

    with _crowd(probe, diary, bench, arguments):
        if not diary.attempt(FIRST, timed):
            diary.attempt(SECOND, lambda: one.call(here))
        diary.number(**took)
        diary.attempt(ANOTHER, lambda: another.call(here))
    diary.attempt(AGAIN, lambda: one.call(here))
    # What was not loaded there while it was crowded is missing now, or is not.
    there = other(bench, 1)
    diary.attempt(THERE, lambda: one.call(there))
    diary.attempt(ANOTHER_THERE, lambda: late.call(there))
    diary.attempt(LATER, lambda: late.call(here))


@contextmanager
def _crowd(
    probe: Session, diary: Diary, bench: Workbench, arguments: Mapping[str, Any]
) -> Iterator[None]:
    """A block in which a GPU is crowded in one of several ways, or not at all."""
    how, place = str(arguments["how"]), int(arguments["on"])
    if how == "not":
        diary.created(False, "nothing crowds any GPU")
        yield
    elif how == "busy":
        with _busy(probe, diary, bench, place, float(arguments["spin_s"])):
            yield
    elif how == "full":
        gpu = NthGpu(bench.gpu, place)
        probe.step("fill the device's memory")
        filling = Filling(gpu)
        try:
            with gpu.current():
                words = filling.fill()
            left = gpu.left_bytes()
            diary.number(taken_bytes=filling.taken_bytes, free_bytes=left)
            diary.created(filling.taken_bytes > 0, f"{left} bytes are free, in no block: {words}")
            yield
        finally:
            with gpu.current():
                filling.empty()
    else:
        probe.step("wait for another process")
        with neighbour(probe, ME, how, environment=only(place)) as beside:
            facts = dict(beside.facts)
            trouble, words = facts.pop("trouble", None), facts.pop("how", "")
            diary.number(**facts)
            said = f"another process there: {how} {words}".strip()
            diary.created(trouble is None, trouble or said)
            yield


@contextmanager
def _busy(
    probe: Session, diary: Diary, bench: Workbench, place: int, seconds: float
) -> Iterator[None]:
    """A block at whose beginning a kernel spins on a GPU, for so many seconds."""
    from probes import device_kernels

    with probe.tested("compile", "a spinning kernel of ours"):
        spin = bench.dsl.cute.compile(
            device_kernels.spin,
            bench.dsl.cutlass.Int64(1),
            bench.dsl.cutlass.Int32(1),
            bench.dsl.stream(),
            options=f"--enable-tvm-ffi --gpu-arch {ARCH}",
        )
    probe.step("measure how long it spins")
    gpu = NthGpu(bench.gpu, place)
    with gpu.current(), probe.tested("call", "a spinning kernel of ours"):
        address, stream = gpu.buffer(), gpu.stream()
        rounds, took = 1000, 0.0
        spin(address, rounds, stream)  # the first call also loads it
        gpu.wait()
        # Longer and longer, until a clock can tell.
        while took < 0.02 and rounds < 1 << 26:
            rounds *= 4
            started = time.perf_counter()
            spin(address, rounds, stream)
            gpu.wait()
            took = time.perf_counter() - started
        spin(address, min(int(rounds * seconds / took), (1 << 31) - 1), stream)
    started = time.perf_counter()
    busy = gpu.is_busy(stream)
    diary.created(busy, "a kernel spins there" if busy else "the kernel ended at once")
    try:
        yield
    finally:
        # Whether a call waited for it: then it has ended, and the call took as long.
        diary.number(still_busy=gpu.is_busy(stream))
        gpu.settle()
        diary.number(spun_s=round(time.perf_counter() - started, 4))


def touched(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Which GPUs have a context and less memory after first calls on the first one.

    Raises:
        OurFault: the process that measures does not answer.
    """
    diary = Diary(probe)
    shared, further = int(arguments["shared_bytes"]), int(arguments["functions"])
    probe.step("wait for the process that looks on")
    with neighbour(probe, ME, "watch", environment={}) as onlooker:
        if "trouble" in onlooker.facts:
            diary.created(False, str(onlooker.facts["trouble"]))
            return
        before = onlooker.free_bytes()
        see(int(arguments["visible"]))
        bench = Workbench(probe)
        visible = count(bench.gpu)
        diary.created(visible > 1 and len(before) > 1, f"{visible} GPUs are visible")

        def taken() -> list[int]:
            return [was - now for was, now in zip(before, onlooker.free_bytes(), strict=True)]

        def note(when: str, since: list[int], per: int = 1) -> list[int]:
            now = taken()
            for name, was, amount in zip(("first", "second"), since, now, strict=False):
                diary.number(**{f"{name}_gpu_bytes_{when}": (amount - was) / per})
            diary.number(**{f"contexts_count_{when}": contexts()})
            return now

        def contexts() -> int:
            return sum(has_context(bench.gpu, number) for number in range(visible))

        here = NthGpu(bench.gpu, 0)
        small, large = (compile_function(bench, size) for size in (0, shared))
        more = [compile_function(bench, shared) for _ in range(further)]
        for function in (small, large, *more):
            function.prepare(here)
        last = note("before_calls", [0] * len(before))
        diary.attempt(FIRST, lambda: small.call(here))
        last = note("of_first_call", last)
        diary.attempt(ANOTHER, lambda: large.call(here))
        last = note("of_much_shared_memory", last)

        def call_all() -> None:
            for function in more:
                function.call(here)

        diary.attempt(LATER, call_all)
        note("per_further_function", last, further)
        total = note("in_all", [0] * len(before))
        if visible == 1:
            diary.attempt("nothing is taken elsewhere", lambda: _expect_none(total[1:]))


def _expect_none(taken: list[int]) -> None:
    if max(taken, default=0) > BLOCK:
        raise WrongCount(f"{max(taken)} bytes taken on a GPU that is not visible")


def strange_launch(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Call a function of ours with a stream, an address or both of the second GPU."""
    diary, bench = Diary(probe), Workbench(probe)
    known, fresh = (compile_function(bench, 0) for _ in range(2))
    gpus = [NthGpu(bench.gpu, 0), other(bench, 1)]
    diary.attempt("ordinary call", lambda: known.call(gpus[0]))
    memory, lane = gpus[int(arguments["memory"])], gpus[int(arguments["stream"])]
    with lane.current():
        stream = lane.stream()
    strange = count(bench.gpu) > 1 and (memory is gpus[1] or lane is gpus[1])
    how = f"memory of GPU {memory.number}, a stream of GPU {lane.number}, GPU 0 is current"
    diary.created(strange, how)
    for function, name in ((known, "known function"), (fresh, FIRST)):
        diary.attempt(f"{name}, strange", partial(function.launch, memory, stream=stream))
        for gpu in gpus:
            diary.attempt(f"wait after the {name}", gpu.settle)
        diary.attempt(f"what the {name} did", partial(function.check, memory))
    again: Callable[[], None] = partial(known.call, gpus[0])
    diary.attempt("ordinary call again", again)
