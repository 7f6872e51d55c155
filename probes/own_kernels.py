"""Two tiny kernels of our own, for the probe `compile`: one is right, one has a type error.

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
