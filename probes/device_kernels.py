"""Tiny kernels of our own for the probe of two GPUs: one that takes long, one with two tensors.

In a file of their own because the DSL reads the source of what it compiles, and because importing
this imports the DSL. No postponed annotations here: the DSL looks at the annotations themselves.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute


@cute.kernel  # type: ignore[untyped-decorator]
def _spin_kernel(address: cutlass.Int64, rounds: cutlass.Int32) -> None:
    thread, _, _ = cute.arch.thread_idx()
    pointer = cute.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    values = cute.make_tensor(pointer, cute.make_layout(32))
    number = values[thread]
    for _ in cutlass.range(rounds):
        # Each step needs the one before it, and no compiler knows a shorter way to the last.
        for _ in cutlass.range_constexpr(16):
            number = (number ^ (number >> cutlass.Int32(7))) * cutlass.Int32(1664525)
            number = number + cutlass.Int32(1013904223)
    values[thread] = number


@cute.jit  # type: ignore[untyped-decorator]
def spin(address: cutlass.Int64, rounds: cutlass.Int32, stream: cuda.CUstream) -> None:
    """Keep one block of the GPU busy, and leave numbers that say nothing.

    Args:
        address: of 128 bytes of device memory.
        rounds: how often 16 steps of arithmetic are made, some 100 ns each time.
        stream: to launch on.
    """
    _spin_kernel(address, rounds).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@cute.kernel  # type: ignore[untyped-decorator]
def _add_kernel(target: cute.Tensor, source: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    target[thread] = target[thread] + source[thread]


@cute.jit  # type: ignore[untyped-decorator]
def add(target: cute.Tensor, source: cute.Tensor, stream: cuda.CUstream) -> None:
    """Add 32 numbers to 32 others; int32, 1 dimension each."""
    _add_kernel(target, source).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)
