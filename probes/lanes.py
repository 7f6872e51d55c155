"""CUDA streams as a probe sees them: queues that can be kept busy.

A fault of ordering shows only when something is late. `occupy` makes it so: whatever is queued on
that stream afterwards starts no sooner, and everything else may overtake it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

POOL_STREAMS: Final = 32
"""Streams of one priority that torch hands out in turn; asking for one more gives the first again.
A stream that some code gets from torch by mistake is one of these."""


class Lanes:
    """The streams of one GPU.

    Args:
        torch: the module.
        device: a CUDA device.
    """

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self.default: Any = torch.cuda.default_stream(device)
        self.pool: list[Any] = [torch.cuda.Stream(device) for _ in range(POOL_STREAMS)]
        self.side: Any = self.pool[0]
        self._cycles_per_s = self._measure_clock()

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Within this, work is queued on a stream."""
        context: AbstractContextManager[Any] = self._torch.cuda.stream(stream)
        return context

    def another(self) -> Any:
        """A stream that is neither the default one nor `side`."""
        return self.pool[1]

    def submit(self, work: Callable[[], Any]) -> Any:
        """Queue work of ours, torch operations, on the current stream."""
        return work()

    def occupy(self, stream: Any, seconds: float) -> None:
        """Keep a stream busy: one thread of the GPU spins."""
        with self.use(stream):
            self._torch.cuda._sleep(int(seconds * self._cycles_per_s))

    def is_busy(self, stream: Any) -> bool:
        """Whether queued work has not ended yet."""
        return not stream.query()

    def wait(self) -> None:
        """Wait for all streams."""
        self._torch.cuda.synchronize(self._device)

    def _measure_clock(self) -> float:
        cycles = 20_000_000
        self._torch.cuda._sleep(1000)  # the first call also loads the kernel
        self.wait()
        started = time.perf_counter()
        self._torch.cuda._sleep(cycles)
        self.wait()
        return cycles / (time.perf_counter() - started)
