"""One tiny kernel of our own, for the probes that create trouble: its address is an argument.

It needs no tensor, so it can be called without torch, and on an address where nothing lies. In a
file of its own because the DSL reads the source of what it compiles, and because importing this
imports the DSL. No postponed annotations here: the DSL looks at the annotations themselves.
"""

import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute


@cute.kernel  # type: ignore[untyped-decorator]
def _count_kernel(address: cutlass.Int64) -> None:
    thread, _, _ = cute.arch.thread_idx()
    pointer = cute.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=4)
    values = cute.make_tensor(pointer, cute.make_layout(32))
    values[thread] = values[thread] + cutlass.Int32(1)


@cute.jit  # type: ignore[untyped-decorator]
def count(address: cutlass.Int64, shared_bytes: cutlass.Constexpr, stream: cuda.CUstream) -> None:
    """Add 1 to each of the 32 int32 numbers at an address of device memory.

    Args:
        address: of 128 bytes.
        shared_bytes: dynamic shared memory that the launch asks for and the kernel does not use.
        stream: to launch on.
    """
    _count_kernel(address).launch(
        grid=(1, 1, 1), block=(32, 1, 1), smem=shared_bytes, stream=stream
    )
