"""Several GPUs of one process: whose context is current, and which have one at all.

A context is made only where it is asked for, because who has one where is itself a question.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from probes.gpu_driver import Gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"


class NthGpu(Gpu):
    """A visible GPU by its number, with its primary context retained, but not made current.

    Everything that a `Gpu` can do, this one does within `current()`.

    Args:
        first: the first GPU, which has initialised the driver.
        number: from 0, among those that this process sees.

    Raises:
        DriverError: there is no such GPU, or its context could not be made.
    """

    def __init__(self, first: Gpu, number: int) -> None:
        self.cuda = first.cuda
        self.number = number
        self.device = self("cuDeviceGet", number)
        self.context = self("cuDevicePrimaryCtxRetain", self.device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """A block in which this GPU's context is the thread's current one."""
        before = self("cuCtxGetCurrent")
        self("cuCtxSetCurrent", self.context)
        try:
            yield
        finally:
            self("cuCtxSetCurrent", before)

    def allocate(self) -> int:
        """Address of a zeroed buffer of `NUMBERS` int32 numbers on this GPU."""
        with self.current():
            return self.buffer()

    def read(self, address: int) -> list[int]:
        """Wait for this GPU, and read a buffer back."""
        with self.current():
            return self.numbers(address)

    def settle(self) -> None:
        """Wait for all work of this GPU's context."""
        with self.current():
            self.wait()

    def left_bytes(self) -> int:
        """Memory of this GPU that nobody has taken."""
        with self.current():
            return self.free_bytes()

    def is_busy(self, stream: Any) -> bool:
        """Whether work that was queued on one of its streams has not ended yet."""
        with self.current():
            (status,) = self.cuda.cuStreamQuery(stream)
        return int(status) == int(self.cuda.CUresult.CUDA_ERROR_NOT_READY)


def count(gpu: Gpu) -> int:
    """How many GPUs this process sees. Makes no context."""
    return int(gpu("cuDeviceGetCount"))


def has_context(gpu: Gpu, number: int) -> bool:
    """Whether this process has the primary context of the GPU of that number. Makes none."""
    _flags, active = gpu("cuDevicePrimaryCtxGetState", gpu("cuDeviceGet", number))
    return bool(active)


def only(number: int) -> dict[str, str]:
    """Environment variables that show a process one GPU of those that this one sees."""
    shown = os.environ.get(VISIBLE)
    names = [] if shown is None else shown.split(",")
    return {VISIBLE: names[number].strip() if number < len(names) else str(number)}
