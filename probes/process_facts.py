"""What this process holds of the machine's limited things, and where the limits are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc/self")
_MAP_LIMIT = Path("/proc/sys/vm/max_map_count")


@dataclass(frozen=True)
class Holdings:
    """One look at the process."""

    resident_bytes: int
    """Host memory in use."""
    mappings: int
    """Lines of `/proc/self/maps`; the kernel's limit counts the same things, one or two less."""
    descriptors: int
    """Open files."""
    device_bytes: int | None
    """Memory in use on the device, by whichever process; None where there is no such device."""


def look(torch: Any | None = None, device: Any | None = None) -> Holdings:
    """See what is held now. Device memory is read by `torch`, where `device` is a GPU."""
    used = None
    if torch is not None and device is not None and device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        used = total - free
    return Holdings(
        resident_bytes=_status("VmRSS"),
        mappings=count_mappings(),
        # The listing itself needs one more for as long as it takes.
        descriptors=sum(1 for _ in (_PROC / "fd").iterdir()) - 1,
        device_bytes=used,
    )


def count_mappings() -> int:
    """Memory mappings of this process."""
    with (_PROC / "maps").open("rb") as lines:
        return sum(1 for _ in lines)


def mapping_limit() -> int | None:
    """`vm.max_map_count`: mappings that a process may have; None where the system tells none."""
    try:
        return int(_MAP_LIMIT.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def descriptor_limit() -> int:
    """Open files that this process may have."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def memory_left() -> int | None:
    """Bytes of host memory that can still be had: of the machine, or of the control group."""
    left = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                left.append(int(rest.split()[0]) * 1024)
    except (OSError, ValueError):
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):  # fmt: skip
        try:
            most = int(Path(limit).read_text(encoding="ascii"))
            left.append(most - int(Path(used).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such control group, or one without a limit ("max")
            continue
    return min(left, default=None)


def _status(name: str) -> int:
    """A size in bytes from `/proc/self/status`."""
    for line in (_PROC / "status").read_text(encoding="ascii", errors="replace").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    raise OSError(f"the system tells no {name}")
