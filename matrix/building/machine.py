"""What this machine is: its GPU, driver, processor, and a stable name."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml


@dataclass(frozen=True)
class Gpu:
    """One GPU that probes are shown."""

    name: str
    sm: str
    """Compute capability as upstreams write it, such as `sm90`."""
    driver: str
    cuda: str
    device: str | None = None
    """What shows a process this GPU alone, as `CUDA_VISIBLE_DEVICES`."""
    uuid: str | None = None
    """The driver's name of it, the same however it is shown, and no other GPU's anywhere."""


def find_gpus() -> list[Gpu]:
    """The GPUs that probes may use, asked of the driver's library; none where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        found = []
        for device, handle in _visible(os.environ.get("CUDA_VISIBLE_DEVICES")):
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            found.append(
                Gpu(
                    name=str(pynvml.nvmlDeviceGetName(handle)),
                    sm=f"sm{major}{minor}",
                    driver=driver,
                    cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
                    device=device,
                    uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                )
            )
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return found


def alike(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Those that are like the first.

    A record names one kind of GPU, so another kind beside it is left to another campaign.
    """
    return tuple(gpu for gpu in gpus if (gpu.name, gpu.sm) == (gpus[0].name, gpus[0].sm))


def find_gpu() -> Gpu | None:
    """The first GPU that probes may use, or None."""
    return next(iter(find_gpus()), None)


def _visible(asked: str | None) -> Iterator[tuple[str, Any]]:
    """The management library's handles of the GPUs that a process would see, in its order.

    Probes count GPUs in the order of their place on the bus, as this library does. As in CUDA, the
    list ends at the first entry that names no GPU.
    """
    count = int(pynvml.nvmlDeviceGetCount())
    names = [str(number) for number in range(count)] if asked is None else asked.split(",")
    for name in map(str.strip, names):
        if name.isdecimal() and int(name) < count:
            yield name, pynvml.nvmlDeviceGetHandleByIndex(int(name))
        elif name.startswith(("GPU-", "MIG-")):
            yield name, pynvml.nvmlDeviceGetHandleByUUID(name)
        else:
            return


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
