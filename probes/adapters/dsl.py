"""CUTLASS DSL: compiling for an architecture that need not be here, and reading what came out."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import cubin
from probes.cubin import Resources
from probes.session import OurFault, Session

ARCH = "sm_90a"


class UnknownArtifact(OurFault):
    """The DSL compiled, and left something that this adapter can't read."""


def keep_artifacts(scratch: Path) -> None:
    """Make the DSL keep cubin and MLIR of everything it compiles. Call before it is imported."""
    os.environ["CUTE_DSL_KEEP"] = "ptx,cubin,ir"
    os.environ["CUTE_DSL_DUMP_DIR"] = str(scratch / "dsl")
    (scratch / "dsl").mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class Compiled:
    """A compiled launch function: how long it took, and what its one kernel needs."""

    seconds: float
    resources: Resources
    dynamic_shared_bytes: int | None

    def measure(self) -> dict[str, float | int | None]:
        """Numbers of a part, with units in their names."""
        return {
            "compile_s": round(self.seconds, 3),
            "registers": self.resources.registers,
            "stack_frame_bytes": self.resources.stack_frame_bytes,
            "static_shared_bytes": self.resources.static_shared_bytes,
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
        }


class Dsl:
    """The few things that compiling without data needs.

    Tensors are described, not made: every extent and stride is symbolic but the last stride, which
    is 1. This is what upstreams' own calls come to (a dynamic layout with a leading dimension),
    in global memory. A tensor of the CPU would be in no memory space at all, which the copies of
    the sparse backward's main kernel refuse.
    """

    def __init__(self, probe: Session) -> None:
        self.cutlass: Any = probe.load("nvidia-cutlass-dsl", "cutlass")
        self.cute: Any = probe.load("nvidia-cutlass-dsl", "cutlass.cute")
        self._runtime: Any = probe.load("nvidia-cutlass-dsl", "cutlass.cute.runtime")

    def tensor(self, dtype: Any, dimensions: int, *, align: int = 16) -> Any:
        """A described tensor: DSL dtype, number of dimensions, alignment in bytes."""
        shape = tuple(self.cute.sym_int() for _ in range(dimensions))
        outer = tuple(self.cute.sym_int64() for _ in range(dimensions - 1))
        return self._runtime.make_fake_tensor(dtype, shape, (*outer, 1), assumed_align=align)

    def stream(self) -> Any:
        """A described stream, handed over as an argument."""
        return self._runtime.make_fake_stream(use_tvm_ffi_env_stream=False)

    def compile(self, function: Any, *arguments: Any, arch: str = ARCH) -> Compiled:
        """Compile one launch function with one kernel.

        Raises:
            Exception: whatever the DSL raises when it refuses.
            UnknownArtifact: it left no cubin with exactly one kernel.
        """
        started = time.perf_counter()
        compiled = self.cute.compile(
            function, *arguments, options=f"--enable-tvm-ffi --gpu-arch {arch}"
        )
        seconds = time.perf_counter() - started
        artifacts = compiled.artifacts
        if not artifacts.CUBIN:
            raise UnknownArtifact("the DSL kept no cubin")
        found = cubin.kernels(artifacts.CUBIN)
        if len(found) != 1:
            raise UnknownArtifact(f"expected one kernel, found {[kernel.name for kernel in found]}")
        return Compiled(seconds, found[0], cubin.dynamic_shared_bytes(artifacts.MLIR or ""))
