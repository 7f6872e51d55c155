"""A driver with several GPUs, and a DSL that loads on all of them: over the other stand-ins.

Memory of the GPUs is shared by all processes, as it is on a machine: a file says who has how much.
Options say what goes wrong; each is named where it is read.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.probes.asking import Reply
from tests.probes.stand_ins import StandIns

DRIVER = '''
"""A driver whose GPUs are dictionaries, but for their memory, which all processes share."""
import contextlib
import ctypes
import enum
import fcntl
import json
import os
import time
from pathlib import Path

from stand_in_options import OPTIONS

TOTAL = 3 << 30
CONTEXT = 64 << 20
MODULE = 2 << 20
LEDGER = Path(__file__).with_name("ledger.json")


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_DEVICE = 101
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class CUstream_flags(enum.IntEnum):
    CU_STREAM_NON_BLOCKING = 1


class CUstream(int):
    pass


OK = CUresult.CUDA_SUCCESS
memory = {}
"""By address: the GPU, the numbers, the size."""
streams = {}
"""By handle: the GPU, and until when it is busy."""
contexts = set()
errors = {}
state = {"current": None, "next": 1 << 40}


def visible():
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    physical = list(range(OPTIONS.get("gpus", 2)))
    return physical if names is None else [physical[int(name)] for name in names.split(",")]


@contextlib.contextmanager
def ledger():
    with LEDGER.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        entries = json.loads(file.read() or "{}")
        living = {pid: taken for pid, taken in entries.items() if Path("/proc", pid).exists()}
        yield living
        file.seek(0)
        file.truncate()
        file.write(json.dumps(living))


def free(gpu):
    with ledger() as entries:
        return TOTAL - sum(taken.get(str(gpu), 0) for taken in entries.values())


def take(gpu, size):
    with ledger() as entries:
        if size > 0 and sum(taken.get(str(gpu), 0) for taken in entries.values()) + size > TOTAL:
            return False
        mine = entries.setdefault(str(os.getpid()), {})
        mine[str(gpu)] = mine.get(str(gpu), 0) + size
        return True


def cuInit(flags):
    return (OK,)


def cuDeviceGetCount():
    return OK, len(visible())


def cuDeviceGet(number):
    if number >= len(visible()):
        return CUresult.CUDA_ERROR_INVALID_DEVICE, None
    return OK, visible()[number]


def cuDeviceCanAccessPeer(one, other):
    return OK, int(one != other)


def make_context(gpu):
    if gpu not in contexts:
        if not take(gpu, CONTEXT):
            return False
        contexts.add(gpu)
    return True


def cuDevicePrimaryCtxRetain(gpu):
    return (OK, gpu) if make_context(gpu) else (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)


def cuDevicePrimaryCtxGetState(gpu):
    return OK, 0, int(gpu in contexts)


def cuCtxGetCurrent():
    return OK, state["current"]


def cuCtxSetCurrent(gpu):
    state["current"] = gpu
    return (OK,)


def wait_for(gpu):
    until = max((until for where, until in streams.values() if where == gpu), default=0)
    time.sleep(max(0, until - time.monotonic()))


def cuCtxSynchronize():
    wait_for(state["current"])
    return (errors.get(state["current"], OK),)


def cuGetErrorString(status):
    return OK, status.name.lower().encode()


def cuMemGetInfo():
    return OK, free(state["current"]), TOTAL


def cuMemAlloc(size):
    if size >= 2 << 20 and not take(state["current"], size):
        return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
    state["next"] += max(size, 4096)
    memory[state["next"]] = [state["current"], [0] * 32, size]
    return OK, state["next"]


def cuMemFree(address):
    gpu, _, size = memory.pop(address)
    if size >= 2 << 20:
        take(gpu, -size)
    return (OK,)


def cuMemsetD32(address, value, count):
    memory[address][1] = [value] * 32
    return (OK,)


def cuMemcpyDtoH(target, address, size):
    gpu, numbers, _ = memory[address]
    ctypes.memmove(target, (ctypes.c_int32 * 32)(*numbers), size)
    return (errors.get(gpu, OK),)


def cuStreamCreate(flags):
    handle = 100 + len(streams)
    streams[handle] = (state["current"], 0)
    return OK, CUstream(handle)


def cuStreamQuery(stream):
    return (CUresult.CUDA_ERROR_NOT_READY if time.monotonic() < streams[stream][1] else OK,)


def launch(kernel, gpu, arguments):
    """What a launch of a kernel of ours on a GPU does and says."""
    *arguments, stream = arguments
    if errors.get(gpu):
        raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")
    if OPTIONS.get("launch") == "fails":
        raise RuntimeError("CUDA Error: cudaErrorLaunchFailure")
    if stream and streams[stream][0] != gpu:
        raise RuntimeError("CUDA Error: cudaErrorInvalidResourceHandle")
    if OPTIONS.get("launch") == "dies":
        ctypes.string_at(0)
    if kernel == "spin":
        seconds = 0 if OPTIONS.get("spin") == "ends at once" else arguments[1] * 1e-7
        streams[stream] = (gpu, time.monotonic() + seconds)
        return
    if kernel == "add":
        target, source = arguments
        where = {target.device.index, source.device.index}
        if len(where) > 1 and not (OPTIONS.get("mixes") or OPTIONS.get("reaches")):
            raise ValueError("Mismatched Tensor on argument #1, expected to match target.device")
        numbers, more = target.numbers, source.numbers
    else:
        where, numbers, more = {memory[arguments[0]][0]}, memory[arguments[0]][1], [1] * 32
    if where != {gpu} and not OPTIONS.get("reaches"):
        errors[gpu] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return
    if where != {gpu} and OPTIONS["reaches"] == "wrongly":
        more = [2 * number for number in more]
    if OPTIONS.get("launch") != "does nothing":
        numbers[:] = [one + other for one, other in zip(numbers, more)]
'''

LAUNCHING = '''
"""What a compiled function does when it is called, and where it is loaded."""
import time

from cuda.bindings import driver
from stand_in_options import OPTIONS


class Launch:
    def __init__(self, function, arguments):
        self.function = function
        self.there = None

    def __call__(self, *arguments):
        name = getattr(self.function, "__name__", "")
        if name not in ("count", "spin", "add"):
            return self.function(*arguments)
        before = driver.state["current"]
        gpu = before or 0
        if name == "add":
            gpu = arguments[0].device.index
        if self.there is None:
            self.load(gpu)
        driver.state["current"] = gpu
        try:
            if gpu not in self.there:
                raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
            driver.launch(name, gpu, arguments)
        finally:
            driver.state["current"] = before

    def load(self, gpu):
        there = set()
        places = [gpu] if OPTIONS.get("loads") == "where it is called" else driver.visible()
        for place in places:
            if OPTIONS.get("loads") == "after all work":
                driver.wait_for(place)
            if driver.make_context(place) and driver.take(place, driver.MODULE):
                there.add(place)
        if OPTIONS.get("elsewhere"):
            driver.take(1, OPTIONS["elsewhere"])
        failed = len(there) < len(places)
        if failed and OPTIONS.get("loads") == "for ever where one fails":
            time.sleep(600)
        if not there or (failed and OPTIONS.get("loads") == "everywhere or not at all"):
            raise RuntimeError("Got Cuda Runtime Error: cudaErrorMemoryAllocation out of memory")
        self.there = there
'''

TORCH = '''
"""Of torch, what the calls with tensors of two GPUs need."""
import types

from cuda.bindings import driver

__version__ = "2"
int32 = "int32"


class device:
    def __init__(self, name, index=None):
        self.type, self.index = name, index


class Tensor:
    def __init__(self, numbers, place):
        self.numbers, self.device = list(numbers), place

    def to(self, place):
        return Tensor(self.numbers, place)

    def cpu(self):
        if self.device.type == "cuda" and driver.errors.get(self.device.index):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return Tensor(self.numbers, device("cpu"))

    def tolist(self):
        return self.numbers


def ones(count, dtype):
    return Tensor([1] * count, device("cpu"))


def synchronize(place):
    if driver.errors.get(place.index):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def Stream(place):
    before = driver.state["current"]
    driver.make_context(place.index)
    driver.state["current"] = place.index
    _, handle = driver.cuStreamCreate(1)
    driver.state["current"] = before
    return types.SimpleNamespace(cuda_stream=int(handle))


cuda = types.SimpleNamespace(
    is_available=lambda: True,
    device_count=lambda: len(driver.visible()),
    synchronize=synchronize,
    Stream=Stream,
)


def set_float32_matmul_precision(precision):
    pass
'''

MORE_OF_CUTLASS = """
Int32 = Int64 = int
Constexpr = object
"""


class TwoGpus:
    """Writes these over the other stand-ins, and asks the probe on them."""

    def __init__(self, others: StandIns) -> None:
        self._others = others
        self.folder = others.folder

    def prepare(self, *, with_torch: bool = True, **options: Any) -> None:
        """Write them with these options, for a process that has imported none of them."""
        self._others.prepare(options)
        files = {
            "cuda/bindings/driver.py": DRIVER,
            "cutlass/launching.py": LAUNCHING,
            "cutlass/__init__.py": MORE_OF_CUTLASS,
        }
        if with_torch:
            files["torch/__init__.py"] = TORCH
        for name, text in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text, encoding="utf-8")

    def __call__(self, *, options: dict[str, Any] | None = None, **parameters: Any) -> Reply:
        """Run the probe: its children are processes, as on a machine."""
        self.prepare(**(options or {}))
        small = {"loading": ["LAZY"], "functions": 3, "spin_s": 3.0, "hang_s": 20, "subjects": []}
        given = {"device": "cuda", "model": "tiny", "at_once": 2, **small, **parameters}
        return self._others._asker.here("mechanism-devices", **given)


@pytest.fixture
def two_gpus(stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> TwoGpus:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    return TwoGpus(stand_ins)
