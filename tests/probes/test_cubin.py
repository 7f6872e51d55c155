"""The ELF reader, on files written here from the format's description."""

from __future__ import annotations

import pytest

from probes import cubin
from tests.probes.elf import make_cubin

MLIR = """
!smem = !cute.memref<i8, smem, align<4>, "12:1">
!smem1 = !cute.memref<i8, smem, align<16>, "1024:1">
!regs = !cute.memref<i8, rmem, align<32>, "1:0">
  %a = cute.memref.alloca() {smem.partition_id = 1 : i32} : !smem
  %b = cute.memref.alloca() : !regs
  %1 = cute.kernel_smem_size @kernels::@k : i64
  %2 = cuda.launch_cfg.create<max_attrs = 3 : i32> (blockDim = (%c), dynamicSmemBytes = %1, x)
"""


def test_resources_of_a_kernel() -> None:
    data = make_cubin("kernel_a", registers=157, frame=16, shared=1024)
    (kernel,) = cubin.kernels(data)
    assert kernel == cubin.Resources("kernel_a", 157, 16, 1024)


def test_a_device_function_is_no_kernel() -> None:
    data = make_cubin("kernel_a", registers=40, frame=0, shared=0, device_function="helper")
    assert [kernel.name for kernel in cubin.kernels(data)] == ["kernel_a"]


@pytest.mark.parametrize("size", [0, 10, 64, 150])
def test_what_is_no_cubin_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="ELF"):
        cubin.kernels(make_cubin("k", registers=1, frame=0, shared=0)[:size])


def test_dynamic_shared_memory_as_a_constant() -> None:
    text = "cuda.launch_cfg.create (dynamicSmemBytes = %c214016_i64, gridDim = (%0))"
    assert cubin.dynamic_shared_bytes(text) == 214016
    assert cubin.dynamic_shared_bytes(text.replace("_i64", "_i64_7")) == 214016


def test_dynamic_shared_memory_as_the_sum_of_allocations() -> None:
    assert cubin.dynamic_shared_bytes(MLIR) == 12
    more = MLIR + "  %d = cute.memref.alloca() {smem.partition_id = 2 : i32} : !smem1\n"
    assert cubin.dynamic_shared_bytes(more) == 1036


def test_dynamic_shared_memory_that_can_not_be_told() -> None:
    assert cubin.dynamic_shared_bytes("") is None
    assert cubin.dynamic_shared_bytes("dynamicSmemBytes = %arg3") is None
    assert cubin.dynamic_shared_bytes(MLIR.replace("!smem =", "!unknown =")) is None
