"""What a probe's process can't do: reach a network, fill the memory, leave core files.

A candidate is somebody else's code, and any software may run wild. Each process gets no network
where the system allows that, and limits on its files; its memory and the number of its processes
are watched from outside, because a GPU's driver reserves address space by the terabyte and no limit
on address space could tell that from memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: Ways into a namespace without a network: as root, else by a namespace of one's own user.
_WITHOUT_NETWORK = (
    ("unshare", "--net", "--"),
    ("unshare", "--user", "--map-current-user", "--net", "--"),
    ("unshare", "--user", "--map-root-user", "--net", "--"),
)
FILE_LIMIT_BYTES = 16 * 2**30
"""Of one file. Artifacts of compilers are far smaller; a full disk stops more than one probe."""
MEMORY_SHARE = 0.75
"""Of the machine's memory that one probe's processes may hold together."""
PROCESSES_LIMIT = 1000
"""Processes of one probe; a test with many children has a few dozen."""


@dataclass(frozen=True)
class Network:
    """How a command is started, and what network it can reach."""

    prefix: tuple[str, ...]
    reach: Literal["none", "host"]


@functools.cache
def network() -> Network:
    """No network, where this system lets us take it away."""
    for prefix in _WITHOUT_NETWORK:
        try:
            done = subprocess.run([*prefix, "true"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return Network(prefix, "none")
    return Network((), "host")


def limit(pid: int) -> None:
    """Limit a process that was just started, and all that it will start."""
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or its limit is lower
            resource.prlimit(pid, kind, (value, value))


def memory_limit_bytes() -> int:
    """What one probe's processes may hold together."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return int(MEMORY_SHARE * total)


@dataclass(frozen=True)
class Usage:
    """What a process and all that it started use."""

    bytes: int = 0
    """Resident memory. Pages that several share count for each."""
    processes: int = 0


def usage(roots: Iterable[int]) -> dict[int, Usage]:
    """What each of some processes uses, with everything in its session or below it."""
    found: dict[int, tuple[int, int, int]] = {}
    page = os.sysconf("SC_PAGE_SIZE")
    with os.scandir("/proc") as folders:
        for folder in folders:
            if not folder.name.isdecimal():
                continue
            try:
                text = Path(folder.path, "stat").read_text()
            except OSError:
                continue  # it has ended
            fields = text.rpartition(")")[2].split()
            found[int(folder.name)] = (int(fields[1]), int(fields[3]), int(fields[21]) * page)
    wanted = set(roots)
    totals = {root: [0, 0] for root in wanted}
    for pid, (_, session, held) in found.items():
        root = session if session in wanted else _above(pid, found, wanted)
        if root is not None:
            totals[root][0] += held
            totals[root][1] += 1
    return {root: Usage(held, count) for root, (held, count) in totals.items()}


def _above(pid: int, found: dict[int, tuple[int, int, int]], wanted: set[int]) -> int | None:
    """The wanted process that a process descends from, if any."""
    seen: set[int] = set()
    while pid not in wanted:
        if pid in seen or pid not in found:
            return None
        seen.add(pid)
        pid = found[pid][0]
    return pid


def excess(used: Usage, memory_bytes: int) -> str | None:
    """What is too much about a usage, in words; None when nothing is."""
    if used.bytes > memory_bytes:
        return (
            f"its processes held {used.bytes / 2**30:.1f} GiB, "
            f"more than the {memory_bytes / 2**30:.1f} GiB that one probe may"
        )
    if used.processes > PROCESSES_LIMIT:
        return f"it had {used.processes} processes, more than {PROCESSES_LIMIT}"
    return None
