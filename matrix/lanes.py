"""Lanes: one for each GPU, and what a process on it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from matrix.machine import Gpu
from matrix.rooms import Rooms


@dataclass(eq=False)
class Lane:
    """One GPU with the probes on it, or the machine's processors where there is no GPU."""

    gpu: Gpu | None = None
    broken: bool = False
    """The GPU failed its health check: nothing more is put on it."""
    variables: dict[str, str] = field(init=False)
    """Environment variables that show a process this GPU alone."""

    def __post_init__(self) -> None:
        device = None if self.gpu is None else self.gpu.device
        self.variables = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}

    @property
    def label(self) -> str:
        """What people call it."""
        if self.gpu is None:
            return "CPU"
        return "GPU" if self.gpu.device is None else f"GPU {self.gpu.device}"

    def turn(self, rooms: Rooms) -> Path:
        """The lock that probes on this GPU take turns by."""
        return rooms.gpu_turn("0" if self.gpu is None else self.gpu.device or "0")


def lanes_for(gpus: list[Gpu]) -> list[Lane]:
    """A lane for each GPU that is like the first; one without, where there is no GPU.

    A record names one kind of GPU, so another kind beside it is left to another campaign.
    """
    alike = [gpu for gpu in gpus if (gpu.name, gpu.sm) == (gpus[0].name, gpus[0].sm)]
    return [Lane(gpu) for gpu in alike] or [Lane()]
