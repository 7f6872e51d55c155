"""What this machine is: its GPU, driver, processor, and a stable name."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml


@dataclass(frozen=True)
class Gpu:
    """The GPU that probes use: the first of those they are shown."""

    name: str
    sm: str
    """Compute capability as upstreams write it, such as `sm90`."""
    driver: str
    cuda: str


def find_gpu() -> Gpu | None:
    """The GPU that probes will use, asked of the driver's library; None where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = _first_visible(os.environ.get("CUDA_VISIBLE_DEVICES"))
        if handle is None:
            return None
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return Gpu(
            name=str(pynvml.nvmlDeviceGetName(handle)),
            sm=f"sm{major}{minor}",
            driver=str(pynvml.nvmlSystemGetDriverVersion()),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _first_visible(visible: str | None) -> Any:
    """The management library's handle of the GPU that a probe will see first.

    Probes count GPUs in the order of their place on the bus, as this library does.
    """
    if visible is None:
        return pynvml.nvmlDeviceGetHandleByIndex(0) if pynvml.nvmlDeviceGetCount() else None
    first = visible.split(",")[0].strip()
    if first.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(first))
    if first.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(first)
    return None


def processor() -> str:
    """The processor's model name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def default_name(gpu: Gpu | None) -> str:
    """A stable name that tells machines apart and nothing else: no host name, no address."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        identity = ""
    identity = identity or platform.node()
    digest = hashlib.sha256(f"csa-dsa-matrix {identity}".encode()).hexdigest()[:6]
    kind = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower().replace("nvidia", "")) if gpu else "cpu"
    return f"{kind.strip('-')}-{digest}"
