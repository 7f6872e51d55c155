"""Tiny kernels of our own: one that is right, one with a type error, and as many as are wanted.

In a file of their own because the DSL reads the source of what it compiles, and because importing
this imports the DSL. No postponed annotations here: the DSL looks at the annotations themselves.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute


@cute.kernel  # type: ignore[untyped-decorator]
def _add_one_kernel(values: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] + cutlass.Int32(1)


@cute.jit  # type: ignore[untyped-decorator]
def add_one(values: cute.Tensor, stream: cuda.CUstream) -> None:
    """Add 1 to each of 32 numbers; int32, 1 dimension."""
    _add_one_kernel(values).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@cute.kernel  # type: ignore[untyped-decorator]
def _add_text_kernel(values: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    values[thread] = values[thread] + "one"


@cute.jit  # type: ignore[untyped-decorator]
def add_text(values: cute.Tensor, stream: cuda.CUstream) -> None:
    """Add a text to a number, which no compiler may accept."""
    _add_text_kernel(values).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


class Adder:
    """Adds a number, fixed when it is compiled, to each of 32 numbers; int32, 1 dimension.

    Each number makes another kernel, so that there is always a fresh one to be had.
    """

    def __init__(self, number: int) -> None:
        self.number = number

    @cute.jit  # type: ignore[untyped-decorator]
    def __call__(self, values: cute.Tensor, stream: cuda.CUstream) -> None:
        """Launch on the stream."""
        self.kernel(values).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)

    @cute.kernel  # type: ignore[untyped-decorator]
    def kernel(self, values: cute.Tensor) -> None:
        """One block, a thread for each number."""
        thread, _, _ = cute.arch.thread_idx()
        values[thread] = values[thread] + cutlass.Int32(self.number)
