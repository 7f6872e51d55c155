"""The CUDA driver by way of `cuda.bindings`, for child processes that need no torch."""

from __future__ import annotations

import ctypes
from typing import Any

from probes.reasons import Verdict
from probes.session import Concluded, Session

NUMBERS = 32
"""int32 numbers of a buffer: what the kernel of ours adds to."""


class DriverError(Exception):
    """A driver call failed: its name, the error's name and the driver's words for it."""


class Gpu:
    """The first GPU that is visible, with its primary context made current.

    That context is the one that CUDA's runtime uses, in whichever library it is linked.

    Raises:
        Concluded: the bindings did not import, or there is no GPU.
    """

    def __init__(self, probe: Session) -> None:
        self.cuda = probe.load("nvidia-cutlass-dsl", "cuda.bindings.driver")
        try:
            self("cuInit", 0)
            self.device = self("cuDeviceGet", 0)
        except Exception as error:
            # Without a driver the bindings raise an error of their own.
            gone = Verdict("miss", "machine:no-gpu", f"no GPU: {error}")
            raise Concluded(gone) from error
        self.context = self("cuDevicePrimaryCtxRetain", self.device)
        self("cuCtxSetCurrent", self.context)

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver by name.

        Returns:
            What it gives besides the status: nothing, one thing or a tuple.

        Raises:
            DriverError: it did not succeed.
        """
        status, *given = getattr(self.cuda, name)(*arguments)
        if int(status) != 0:
            raise DriverError(f"{name}: {self._error(status)}")
        return tuple(given) if len(given) > 1 else (given[0] if given else None)

    def _error(self, status: Any) -> str:
        name = getattr(status, "name", str(status))
        _, words = self.cuda.cuGetErrorString(status)
        return f"{name} {words.decode() if isinstance(words, bytes) else words}".strip()

    def buffer(self) -> int:
        """Address of a zeroed buffer of `NUMBERS` int32 numbers."""
        address = int(self("cuMemAlloc", 4 * NUMBERS))
        self("cuMemsetD32", address, 0, NUMBERS)
        return address

    def numbers(self, address: int) -> list[int]:
        """Wait for the device, and read a buffer back."""
        self.wait()
        target = (ctypes.c_int32 * NUMBERS)()
        self("cuMemcpyDtoH", ctypes.addressof(target), address, ctypes.sizeof(target))
        return list(target)

    def wait(self) -> None:
        """Wait for all work of the context."""
        self("cuCtxSynchronize")

    def free_bytes(self) -> int:
        """Device memory that is left."""
        return int(self("cuMemGetInfo")[0])

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name."""
        names = self.cuda.CUdevice_attribute
        attribute = getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self("cuDeviceGetAttribute", attribute, self.device))

    def new_context(self) -> Any:
        """Another context on the same device, made current."""
        try:
            return self("cuCtxCreate", None, 0, self.device)
        except TypeError:  # the bindings before CUDA 13 take no parameters besides
            return self("cuCtxCreate", 0, self.device)

    def stream(self) -> Any:
        """A stream of the current context that does not wait for the default one."""
        return self("cuStreamCreate", self.cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def load(self, cubin: bytes, kernel: str) -> Any:
        """A kernel of a cubin."""
        module = self("cuModuleLoadData", cubin + b"\0")
        return self("cuModuleGetFunction", module, kernel.encode())

    def launch(self, kernel: Any, address: int, *, shared_bytes: int) -> None:
        """Launch one block of 32 threads on the default stream, with an address as argument."""
        arguments = ((address,), (ctypes.c_void_p,))
        self(
            "cuLaunchKernel", kernel, 1, 1, 1, NUMBERS, 1, 1, shared_bytes, 0, arguments, 0
        )  # fmt: skip
