"""Lanes: one for each GPU, and what a process on it is shown."""

from __future__ import annotations

import fcntl
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from matrix.building.machine import Gpu, alike
from matrix.rooms import Rooms


@dataclass(eq=False)
class Lane:
    """One GPU with the probes on it, several for a probe that needs them, or none."""

    gpus: tuple[Gpu, ...] = ()
    broken: bool = False
    """A GPU failed its health check: nothing more is put on it."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that show a process these GPUs alone."""
        devices = [gpu.device for gpu in self.gpus if gpu.device is not None]
        return {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {}

    @property
    def label(self) -> str:
        """What people call it."""
        devices = [gpu.device for gpu in self.gpus if gpu.device is not None]
        if not self.gpus:
            return "CPU"
        return f"GPU {' and '.join(devices)}" if devices else "GPU"

    def turn(self, rooms: Rooms) -> Path | None:
        """The lock that probes on this GPU take turns by.

        None for several: who uses them holds the turn of each.
        """
        return None if len(self.gpus) > 1 else self._turns(rooms)[0]

    @contextmanager
    def alone(self, rooms: Rooms) -> Iterator[None]:
        """A block in which no other campaign's probes use these GPUs."""
        with ExitStack() as stack:
            # In the same order everywhere, or two campaigns would wait for each other.
            for path in sorted(self._turns(rooms)):
                fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
            yield

    def _turns(self, rooms: Rooms) -> list[Path]:
        # Some GPU or none: then whoever wants to be alone is so on this node.
        unnamed = f"gpu-{quote(platform.node(), safe='')}"
        named = [gpu.uuid or f"{unnamed}-{gpu.device or 0}" for gpu in self.gpus]
        return [rooms.gpu_turn(name) for name in named or [unnamed]]


def lanes_for(gpus: Sequence[Gpu]) -> list[Lane]:
    """A lane for each GPU that is like the first; one without, where there is no GPU."""
    return [Lane((gpu,)) for gpu in alike(gpus)] or [Lane()]
