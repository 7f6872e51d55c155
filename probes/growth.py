"""What does a process keep of each compilation and of each step, and when is a limit reached?

Two series of looks at this process, of one rank's rows of microbatches through Megatron Core's
`build_attention_indices` and `CompressorInputCompact` and, where the parameters name it, cuDNN
Frontend's `DSA.sparse_attention_backward_wrapper` (int32 tables, bfloat16 rows of the model's
sizes). In the first, one microbatch is repeated, so that nothing new is compiled: what grows is
kept of each step. In the second, each microbatch has a shape of its own: what grows is kept of each
compilation, which are counted. A look is resident host memory, memory mappings, open files, and
device memory in use; rubbish is collected before it. What grows in a series is the slope of a
straight line by least squares, and its spread is the standard error of that slope.

From the slopes follows the step at which this machine's limits would be reached (the system's
`vm.max_map_count`, open files, host memory still to be had), when each microbatch has new shapes,
with the compilations that a microbatch needs as counted here and as many microbatches in a step as
reported. A part fails with `growth` if that is before the step that the parameters name. No more
growth than the spread explains counts as none. The first looks of a series are left out: caches and
pools fill then.

Control: mappings, files and memory that we keep on purpose must come out of the same arithmetic.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from probes import layouts, process_facts
from probes.adapters.dsl import Dsl
from probes.counting import Counter, counted
from probes.devices import use_device
from probes.layouts import Layout
from probes.process_facts import Holdings
from probes.replay import Replay, Share
from probes.session import Check, Session

PROBE: Final = {
    "id": "growth",
    "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "soak",
    "alone": True,
    "time_limit_s": 900,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": 512,
            "cases": ["indices:2:4", "indices:1:128", "compaction:4"],
            "same_steps": 40,
            "new_shapes": 8,
            "left_out": 2,
            "microbatches_per_step": [7, 10],
            "steps_wanted": 10000,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": 2048,
            "cases": [
                "indices:0:4",
                "indices:2:4",
                "indices:1:0",
                "compaction:4",
                "compaction:128",
                "backward:128",
            ],
            "same_steps": 200,
            "new_shapes": 24,
            "left_out": 3,
            "microbatches_per_step": [7, 10],
            "steps_wanted": 10000,
        },
    },
}

KINDS: Final = {
    "resident_bytes": "host_bytes",
    "mappings": "mappings",
    "descriptors": "files",
    "device_bytes": "device_bytes",
}
"""Field of a look, and what it is called in a measure's name."""


@dataclass(frozen=True)
class Slope:
    """A straight line's slope and its standard error."""

    value: float
    spread: float

    @property
    def certain(self) -> float:
        """What is left of it when the spread is taken off twice; never below nothing."""
        return max(0.0, self.value - 2 * self.spread)


@dataclass(frozen=True)
class Look:
    """What was held when so many things had been done."""

    done: int
    held: Holdings


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Least squares through points (x, y).

    Raises:
        ValueError: fewer than three points, or all at one place.
    """
    if len(points) < 3:
        raise ValueError(f"{len(points)} points are too few for a slope with a spread")
    count = len(points)
    middle_x = sum(x for x, _ in points) / count
    middle_y = sum(y for _, y in points) / count
    square = sum((x - middle_x) ** 2 for x, _ in points)
    if not square:
        raise ValueError("all points are at one place")
    value = sum((x - middle_x) * (y - middle_y) for x, y in points) / square
    rest = sum((y - middle_y - value * (x - middle_x)) ** 2 for x, y in points)
    return Slope(value, math.sqrt(rest / (count - 2) / square))


def slopes(looks: Sequence[Look]) -> dict[str, Slope]:
    """The slope of each kind that was looked at."""
    found = {}
    for kind in KINDS:
        points = [(look.done, getattr(look.held, kind)) for look in looks]
        if all(held is not None for _, held in points):
            found[kind] = slope(points)
    return found


@dataclass(frozen=True)
class Room:
    """What is left of each kind before a limit of this machine; None where there is none."""

    left: dict[str, float | None]

    def steps(self, kind: str, per_step: float) -> float | None:
        """Steps until the limit, or None for never."""
        left = self.left.get(kind)
        if left is None or per_step <= 0:
            return None
        return left / per_step

    def first(self, per_step: dict[str, float]) -> tuple[str, float] | None:
        """The kind whose limit comes first, and after how many steps."""
        found = [(kind, self.steps(kind, each)) for kind, each in per_step.items()]
        known = [(kind, steps) for kind, steps in found if steps is not None]
        return min(known, key=lambda pair: pair[1], default=None)


def room_of(held: Holdings, *, device_left: int | None = None) -> Room:
    """What this machine leaves a process that holds this much."""
    maps = process_facts.mapping_limit()
    return Room(
        {
            "resident_bytes": process_facts.memory_left(),
            "mappings": None if maps is None else maps - held.mappings,
            "descriptors": process_facts.descriptor_limit() - held.descriptors,
            "device_bytes": device_left,
        }
    )


@dataclass(frozen=True)
class _Watch:
    """What both series work with."""

    probe: Session
    replay: Replay
    cases: Sequence[str]
    counter: Counter
    look: Callable[[], Holdings]
    device_left: Callable[[], int | None]

    def once(self, number: int) -> int:
        """Run the batch of a number; how often that compiled something."""
        before = self.counter.total
        share = Share(_layout(self.probe, number), 1)
        for case in self.cases:
            for kernel in self.replay.kernels(share, case):
                with self.counter.during(kernel[0]):
                    self.replay.run(kernel, share)
        return self.counter.total - before


def run(probe: Session) -> None:
    """Nothing new, then only new shapes, then the control."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    dsl = Dsl(probe)
    cases = [str(case) for case in probe.parameters["cases"]]
    model = layouts.MODELS[probe.parameters["model"]]
    replay = Replay(probe, torch, device, model, cases)

    def look() -> Holdings:
        # What waits for the collector is not kept; torch's own pool is kept, and rightly counted.
        gc.collect()
        return process_facts.look(torch, device)

    def device_left() -> int | None:
        return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None

    with counted(dsl.cute) as counter:
        watch = _Watch(probe, replay, cases, counter, look, device_left)
        probe.step("warm up")
        watch.once(0)
        # The device's memory is everybody's: what others take would look kept.
        with probe.alone():
            with probe.check("kept of a step without new shapes") as check:
                _same_shapes(watch, check)
            with probe.check("kept of a compilation") as check:
                _new_shapes(watch, check)
    _control(probe, look)


def _same_shapes(watch: _Watch, check: Check) -> None:
    parameters = watch.probe.parameters
    looks = []
    for number in range(int(parameters["same_steps"])):
        compiled = watch.once(0)
        check.expect(not compiled, "recompiles", f"step {number} compiled {compiled} kernels anew")
        looks.append(Look(number, watch.look()))
    found = _measure(check, looks[int(parameters["left_out"]) :], "step")
    room = room_of(looks[-1].held, device_left=watch.device_left())
    first = room.first({kind: each.certain for kind, each in found.items()})
    _judge(check, first, float(parameters["steps_wanted"]), "without new shapes")


def _new_shapes(watch: _Watch, check: Check) -> None:
    parameters = watch.probe.parameters
    looks, counts = [], []
    for number in range(1, int(parameters["new_shapes"]) + 1):
        watch.probe.step(f"new shapes {number}")
        counts.append(watch.once(number))
        looks.append(Look(watch.counter.total, watch.look()))
    looks = looks[int(parameters["left_out"]) :]
    usual = sorted(counts)[len(counts) // 2]
    check.measure["compiles_per_microbatch_count"] = usual
    watch.probe.measure(
        map_limit_count=process_facts.mapping_limit(),
        open_file_limit_count=process_facts.descriptor_limit(),
        host_memory_left_bytes=process_facts.memory_left(),
        mappings_count=looks[-1].held.mappings,
        resident_bytes=looks[-1].held.resident_bytes,
    )
    if looks[0].done == looks[-1].done:
        # New shapes make nothing compile, so nothing is kept of it: that is the answer.
        check.expect(usual == 0, "probe:Unexpected", f"compiled {counts}", status="error")
        return
    found = _measure(check, looks, "compile")
    room = room_of(looks[-1].held, device_left=watch.device_left())
    for microbatches in parameters["microbatches_per_step"]:
        rate = usual * int(microbatches)
        for kind, each in found.items():
            steps = room.steps(kind, each.value * rate)
            name = f"{KINDS[kind]}_limit_at_{microbatches}_microbatches_step"
            check.measure[name] = None if steps is None else round(steps)
        first = room.first({kind: each.certain * rate for kind, each in found.items()})
        when = f"with new shapes in each of {microbatches} microbatches a step"
        _judge(check, first, float(parameters["steps_wanted"]), when)


def _layout(probe: Session, number: int) -> Layout:
    """A batch with shapes of its own for each number."""
    rows = int(probe.parameters["local_rows"]) + 64 * number
    return layouts.make(
        "ordinary",
        seed=probe.seed + number,
        cp_size=int(probe.parameters["cp_size"]),
        local_rows=rows,
        alignment=64,
    )


def _measure(check: Check, looks: Sequence[Look], what: str) -> dict[str, Slope]:
    found = slopes(looks)
    for kind, each in found.items():
        check.measure[f"{KINDS[kind]}_per_{what}"] = round(each.value, 4)
        check.measure[f"{KINDS[kind]}_per_{what}_spread"] = round(each.spread, 4)
    check.measure["looks_count"] = len(looks)
    return found


def _judge(check: Check, first: tuple[str, float] | None, wanted: float, when: str) -> None:
    kind, steps = first or ("", math.inf)
    check.expect(
        steps >= wanted, "growth", f"{when}: no more {KINDS.get(kind)} after {steps:.0f} steps"
    )


def _control(probe: Session, look: Callable[[], Holdings]) -> None:
    """Keep three mappings, one file and a megabyte each time, and find that out."""
    probe.step("control: kept on purpose")
    kept: list[mmap.mmap] = []
    files: list[int] = []
    looks = []
    size = 1 << 20
    try:
        for number in range(8):
            # A shared mapping never grows together with its neighbour, as private ones do.
            kept.extend(mmap.mmap(-1, size) for _ in range(3))
            kept[-1].write(b"\1" * size)
            files.append(os.open(os.devnull, os.O_RDONLY))
            looks.append(Look(number, look()))
        found = slopes(looks)
    finally:
        for held in kept:
            held.close()
        for file in files:
            os.close(file)
    right = (
        abs(found["mappings"].value - 3) < 0.5
        and abs(found["descriptors"].value - 1) < 0.2
        and abs(found["resident_bytes"].value / size - 1) < 0.5
    )
    each = {KINDS[kind]: round(value.value, 2) for kind, value in found.items()}
    early = Room({"mappings": 65_530.0}).first({"mappings": found["mappings"].certain})
    probe.control(
        "kept on purpose",
        failed=right and early is not None and early[1] < 30_000,
        detail=", ".join(f"{kind} {value}" for kind, value in each.items()),
    )
