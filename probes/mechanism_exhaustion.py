"""Which errors come out of first calls when device memory or the process's mappings have run out?

Loading a compiled function takes device memory and host mappings, and when a process keeps every
function it ever compiled, one of these may run out at a call like any other. Each part creates one
condition in a child process of its own and records the text and code of the first call that fails:

* device memory: the GPU is filled until no block of 2 MiB can be had, then several fresh functions
  of ours are called for the first time, with `CUDA_MODULE_LOADING` LAZY and EAGER; and Megatron
  Core's `build_attention_indices` is called on a shape that it has not compiled for, with its
  tensors in memory that torch had before;
* mappings: protections of alternate pages of one large mapping are changed until the system allows
  no more mappings (`vm.max_map_count`), and so many are given back; then a known function, the
  first call of a compiled one, and another compilation are tried, and the first calls again when
  there is room again. Nothing but this one process is affected;
* what is kept: memory mappings, host memory and device memory for each function that is compiled,
  and for each that is called for the first time, with both ways of loading. What a driver maps for
  each loaded function decides after how many the limit comes. This part's condition is that
  functions were compiled and loaded.

A part passes when the condition was there and something was recorded. What comes out is compared
with nothing. The control of each is the same calls without the condition: all must succeed.

What one GPU can't show: that a load which fails on one of several devices passes in silence; and
how much memory each process takes on a device that it does not use. `mechanism-devices` asks that.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from probes import layouts, process_facts
from probes.adapters import mcore_layout
from probes.adapters.shapes import member
from probes.conditions import Condition, Diary, Function, Workbench, examine
from probes.devices import use_device, wait
from probes.gpu_driver import DriverError, Gpu
from probes.gpu_turn import WAITING, Turn
from probes.session import OurFault, Session

PROBE: Final = {
    "id": "mechanism-exhaustion",
    "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "mechanism",
    "alone": "children",
    "time_limit_s": 900,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "functions": 4,
            "kept_functions": 16,
            "mappings_left": [50, 10],
            "loading": ["LAZY", "EAGER"],
            "upstream": False,
            "at_once": 6,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "functions": 24,
            "kept_functions": 200,
            "mappings_left": [200, 50, 20, 10, 4],
            "loading": ["LAZY", "EAGER"],
            "upstream": True,
            "at_once": 6,
        },
    },
}

ME: Final = "mechanism-exhaustion"
BLOCK: Final = 2 << 20
"""Bytes: a device's memory is handed to processes in blocks of this size."""
MAPPING_BYTES: Final = 300
"""Of the system's memory, at most, for the bookkeeping of one mapping."""
MEMORY_SHARE: Final = 0.25
"""Of the system's memory that is left, at most, for the bookkeeping of all children's mappings."""


def run(probe: Session) -> None:
    """All side by side, but who fills the device's memory waits until nobody else is there."""
    parameters = probe.parameters
    functions = int(parameters["functions"])
    loading = [str(way) for way in parameters["loading"]]
    conditions = [
        Condition(
            f"no device memory, {way} loading",
            "device_memory",
            {"fill": True, "functions": functions},
            {"fill": False, "functions": functions},
            {"CUDA_MODULE_LOADING": way},
            limit_s=120,
        )
        for way in loading
    ]
    if parameters["upstream"]:
        conditions.append(
            Condition(
                "no device memory for Megatron Core's next shape",
                "device_memory_upstream",
                {"fill": True},
                {"fill": False},
                limit_s=120,
            )
        )
    conditions += [
        Condition(
            f"{left} mappings left",
            "host_mappings",
            {"left": left, "children": len(parameters["mappings_left"])},
            {"left": None},
            limit_s=120,
        )
        for left in parameters["mappings_left"]
    ]
    kept = int(parameters["kept_functions"])
    conditions += [
        Condition(
            f"kept of each function, {way} loading",
            "kept_of_functions",
            {"functions": kept, "load": True},
            {"functions": min(kept, 4), "load": False},
            {"CUDA_MODULE_LOADING": way},
            limit_s=300,
        )
        for way in loading
    ]
    examine(probe, ME, conditions, at_once=int(parameters["at_once"]))


class Filling:
    """Device memory that is taken until nothing is left, and kept."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.blocks: list[Any] = []
        self.taken_bytes = 0

    def fill(self) -> str:
        """Take blocks of falling size, down to `BLOCK`; the driver's words when it was the last.

        Raises:
            OurFault: memory never ran out.
        """
        words = ""
        size = 1 << 30
        while size >= BLOCK:
            if len(self.blocks) > 100_000:
                raise OurFault("device memory has no end")
            try:
                self.blocks.append(self._gpu("cuMemAlloc", size))
            except DriverError as error:
                words = str(error)
                size //= 8
            else:
                self.taken_bytes += size
        return words

    def empty(self) -> None:
        """Give all of it back."""
        for block in self.blocks:
            self._gpu("cuMemFree", block)
        self.blocks.clear()


def _beside_others(probe: Session) -> Turn:
    """Let a child use the GPU beside others: whoever measures alone must not meet it there."""
    probe.step(WAITING)
    turn = Turn(probe.gpu_turn)
    turn.share()
    probe.step("prepare")
    return turn


@contextmanager
def _fill(probe: Session, diary: Diary, gpu: Gpu, *, wanted: bool) -> Iterator[None]:
    """A block in which the device has no memory left, if wanted; nobody else is on it then."""
    if not wanted:
        diary.created(False, f"{gpu.free_bytes()} bytes are free")
        yield
        return
    with probe.alone():
        probe.step("fill the device's memory")
        filling = Filling(gpu)
        try:
            words = filling.fill()
            diary.number(taken_bytes=filling.taken_bytes, free_bytes=gpu.free_bytes())
            diary.created(
                filling.taken_bytes > 0, f"{gpu.free_bytes()} bytes are free, in no block: {words}"
            )
            yield
        finally:
            filling.empty()


def device_memory(probe: Session, arguments: Mapping[str, Any]) -> None:
    """First calls of functions of ours on a GPU without memory."""
    beside = _beside_others(probe)
    diary, bench = Diary(probe), Workbench(probe)
    known = bench.function()
    known.call()
    fresh = [bench.function() for _ in range(int(arguments["functions"]))]
    late = bench.function()
    for function in (*fresh, late):
        function.prepare()
    beside.give_back()
    with _fill(probe, diary, bench.gpu, wanted=bool(arguments["fill"])):
        diary.attempt("known function", known.call)
        for number, function in enumerate(fresh, 1):
            if not diary.attempt(f"first call of function {number}", function.call):
                diary.attempt(f"second call of function {number}", function.call)
                break
        diary.attempt("known function again", known.call)
    diary.attempt("first call with memory again", late.call)


def device_memory_upstream(probe: Session, arguments: Mapping[str, Any]) -> None:
    """A shape that Megatron Core has not compiled for, on a GPU without memory."""
    beside, diary = _beside_others(probe), Diary(probe)
    torch = probe.load("torch")
    device = use_device(probe, torch)
    build = member(mcore_layout.load(probe), "build_attention_indices")
    window = layouts.MODELS[probe.parameters["model"]].window
    gpu = Gpu(probe)

    def sums(count: int) -> Any:
        numbers = [512 * place // count for place in range(count + 1)]
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    def call(prefix_sums: Any) -> None:
        build(prefix_sums, 128, 256, window, window, 0, 0)
        wait(torch, device)

    known, fresh, late = sums(3), sums(5), sums(7)
    diary.attempt("known shape", lambda: call(known))  # its memory stays in torch's hands
    beside.give_back()
    with _fill(probe, diary, gpu, wanted=bool(arguments["fill"])):
        diary.attempt("known shape again", lambda: call(known))
        diary.attempt("first call for a new shape", lambda: call(fresh))
        diary.attempt("second call for the new shape", lambda: call(fresh))
        diary.attempt("known shape at last", lambda: call(known))
    diary.attempt("first call with memory again", lambda: call(late))


class Mappings:
    """This process's mappings, taken up to the system's limit and given back one pair at a time.

    Every second page of one private mapping gets another protection: each such change cuts a
    mapping in three. Nothing is ever written, so no memory is used for the pages.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._protect = libc.mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._map = libc.mmap
        self._map.restype = ctypes.c_void_p
        self._map.argtypes = [
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        ]  # fmt: skip
        self._page = mmap.PAGESIZE
        self._base = 0
        self.cut = 0
        """Pages whose protection differs from their neighbours'."""

    def take_all(self, most: int) -> bool:
        """Cut until the system refuses; whether it did before `most` mappings."""
        no_access, private, no_reserve = 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0x4000
        # Two mappings for each pair of pages, and room for what this process has anyway.
        size = (most + 2) * self._page
        base = self._map(None, size, no_access, private | no_reserve, -1, 0)
        if base in (None, ctypes.c_void_p(-1).value):
            return False
        self._base = base
        while 2 * self.cut < most:
            if self._protect(self._place(self.cut), self._page, mmap.PROT_READ):
                return True
            self.cut += 1
        return False

    def give_back(self, count: int) -> int:
        """Join pages with their neighbours again, for so many mappings.

        Returns:
            How many mappings were given back.
        """
        given = 0
        while given < count and self.cut:
            if self._protect(self._place(self.cut - 1), self._page, 0):
                break
            self.cut -= 1
            given += 2
        return given

    def _place(self, number: int) -> int:
        return self._base + (2 * number + 1) * self._page


def _most_mappings(limit: int | None, children: int) -> int:
    """How many mappings a child may try to take, where so many children do."""
    memory = process_facts.memory_left() or 0
    affordable = int(MEMORY_SHARE * memory / MAPPING_BYTES / children)
    return affordable if limit is None else min(limit + 1000, affordable)


def host_mappings(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Calls of functions of ours with so many mappings left."""
    beside = _beside_others(probe)
    diary, bench = Diary(probe), Workbench(probe)
    known, fresh, second = (bench.function() for _ in range(3))
    known.call()
    for function in (fresh, second):
        function.prepare()
    left = arguments["left"]
    mappings = Mappings()
    limit = process_facts.mapping_limit()
    diary.number(map_limit_count=limit, mappings_before_count=process_facts.count_mappings())
    if left is None:
        diary.created(False, "mappings are left")
    else:
        probe.step("take all mappings")
        most = _most_mappings(limit, int(arguments["children"]))
        # What waits to be collected must not make room at a moment of its own.
        gc.collect()
        gc.disable()
        refused = mappings.take_all(most)
        given = mappings.give_back(int(left)) if refused else 0
        if not refused:
            mappings.give_back(most)
        how = f"{given} given back" if refused else f"none was refused, of {2 * mappings.cut}"
        diary.created(refused and given >= int(left), how)
    fine = diary.attempt("known function", known.call)
    fine &= diary.attempt("first call of a compiled function", fresh.call)
    fine &= diary.attempt("compile and call another", lambda: bench.function().call())
    diary.attempt("known function again", known.call)
    mappings.give_back(2 * mappings.cut)
    gc.enable()
    if not fine:
        diary.attempt("the compiled function with room again", fresh.call)
    diary.attempt("first call with room again", second.call)
    diary.attempt("compile and call with room again", lambda: bench.function().call())
    beside.give_back()


def kept_of_functions(probe: Session, arguments: Mapping[str, Any]) -> None:
    """What is kept of functions that are compiled, and of their first calls."""
    beside = _beside_others(probe)
    diary, bench = Diary(probe), Workbench(probe)
    bench.function().call()
    count = int(arguments["functions"])
    address = bench.gpu.buffer()

    def look() -> dict[str, float]:
        gc.collect()
        held = process_facts.look()
        return {"mappings": held.mappings, "host_bytes": held.resident_bytes}

    def look_alone() -> dict[str, float]:
        return {**look(), "device_bytes": -bench.gpu.free_bytes()}

    def note(what: str, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        diary.number(
            **{f"{kind}_per_{what}": (after[kind] - before[kind]) / count for kind in after}
        )

    functions: list[Function] = []
    before = look()
    probe.step(f"compile {count} functions")
    functions.extend(bench.function() for _ in range(count))
    note("compiled_function", before, look())

    def call_all() -> None:
        for function in functions:
            function.launch(address=address)
        bench.gpu.wait()

    diary.created(arguments["load"], f"{count} functions were compiled")
    beside.give_back()
    # The device's memory is everybody's: what others take would look kept.
    with probe.alone():
        if arguments["load"]:
            before = look_alone()
            diary.attempt("first calls", call_all)
            note("first_call", before, look_alone())
        else:
            functions = functions[:1]
            diary.attempt("first call", call_all)
        before = look_alone()
        diary.attempt("second calls", call_all)
        note("second_call", before, look_alone())
