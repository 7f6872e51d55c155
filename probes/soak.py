"""Do the kernels stay right and alive over many steps of the reported microbatches?

Replays microbatches with the report's statistics (their number, lengths and padding), one rank's
rows at a time, through Megatron Core's `build_attention_indices` and `CompressorInputCompact`
(forward and backward), and through cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` on the
index tables of the layers that list all visible groups: int32 tables (rows, window + width),
bfloat16 data of the model's size. One such step is a GPU-step. Everything is compiled before the
clock starts.

Each launch is checked cheaply: every floating-point output is finite (its sum is), and when a
rank's rows of a microbatch come a second time, the checksum of every output repeats. A checksum is
exact and depends on the places of bits; only for dkv and d_sink, which are summed by atomics, is it
the norm, which may move by 2^-8. Ranks change after every second pass over the microbatches.

A failure of any launch is the part's failure; how far it came is measured all the same.

Controls: one changed bit, two rows swapped, one NaN and a gradient that is off by one part in 64
must each be noticed by the same checks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final

from probes import layouts
from probes.adapters.dsl import Dsl
from probes.devices import use_device
from probes.layouts import Layout
from probes.replay import Outputs, Replay, Share, checksum, finite, same
from probes.session import Check, Session

PROBE: Final = {
    "id": "soak",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "soak",
    "alone": True,
    "time_limit_s": 1800,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "seconds": 10,
            "microbatches": 2,
            "cases": ["indices:2:4", "compaction:4", "backward:128"],
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "seconds": 600,
            "microbatches": 17,
            "cases": [
                "indices:0:4",
                "indices:2:4",
                "compaction:4",
                "compaction:128",
                "backward:128",
                "backward:0",
            ],
        },
    },
}

ANNOUNCE_EVERY_S: Final = 5.0
"""A step's name is not worth a line each time; it is when nothing was said for so long."""


@dataclass
class Totals:
    """How far a soak came."""

    steps: int = 0
    launches: int = 0
    repeats: int = 0
    """Launches whose checksums were compared with earlier ones."""
    failures: int = 0
    seconds: float = 0.0
    launches_by_kernel: dict[str, int] = field(default_factory=dict)


def run(probe: Session) -> None:
    """Compile all, soak, then the controls on what the last launches wrote."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    Dsl(probe)
    cases = [str(case) for case in probe.parameters["cases"]]
    model = layouts.MODELS[probe.parameters["model"]]
    replay = Replay(probe, torch, device, model, cases)
    made = layouts.report_microbatches(probe.seed)
    every = list(chain.from_iterable(made.values()))[: int(probe.parameters["microbatches"])]
    soak = Soak(probe, replay, cases)
    started = time.monotonic()
    try:
        with probe.check("every launch") as check:
            for number, layout in enumerate(every):
                probe.step(f"compile for {layout.name}, {layout.local_rows} rows a rank")
                soak.step(check, Share(layout, _rank(number, 0, layout)), counted=False)
            probe.measure(first_pass_s=round(time.monotonic() - started, 3))
            with probe.alone():
                soak.go(check, every, float(probe.parameters["seconds"]))
            check.expect(
                soak.totals.repeats, "probe:NoRepeats", "no launch was repeated", status="error"
            )
            check.measure.update(
                {f"{_slug(name)}_launches_count": number
                 for name, number in soak.totals.launches_by_kernel.items()}
            )  # fmt: skip
    finally:
        totals = soak.totals
        probe.measure(
            gpu_steps_count=totals.steps,
            launches_count=totals.launches,
            repeated_launches_count=totals.repeats,
            failures_count=totals.failures,
            soak_s=round(totals.seconds, 3),
            steps_per_second=round(totals.steps / totals.seconds, 3) if totals.seconds else None,
            microbatches_count=len(every),
        )
    _controls(probe, torch, soak.last)


@dataclass
class Soak:
    """Steps with their checks."""

    probe: Session
    replay: Replay
    cases: list[str]
    totals: Totals = field(default_factory=Totals)
    last: Outputs = field(default_factory=dict)
    """The newest output of each name."""
    _sums: dict[tuple[Share, str], dict[str, int | float]] = field(default_factory=dict)
    _announced: float = -math.inf

    def go(self, check: Check, every: list[Layout], seconds: float) -> None:
        """Step for so long, and until something was repeated."""
        started = time.monotonic()
        for share in _shares(every):
            self.totals.seconds = time.monotonic() - started
            if self.totals.seconds >= seconds and self.totals.repeats:
                return
            self._announce(share)
            self.step(check, share)

    def step(self, check: Check, share: Share, *, counted: bool = True) -> None:
        """One rank's rows of one microbatch through every case."""
        replay, totals = self.replay, self.totals
        for case in self.cases:
            for kernel in replay.kernels(share, case):
                name = kernel[0]
                try:
                    outputs = replay.run(kernel, share)
                except Exception:
                    totals.failures += 1
                    raise
                problem = self._problem(share, f"{case} {name}", outputs)
                totals.failures += bool(problem)
                check.expect(not problem, *(problem or ("", "")))
                self.last.update(outputs)
                if counted:
                    totals.launches += 1
                    launches = totals.launches_by_kernel
                    launches[name] = launches.get(name, 0) + 1
        totals.steps += counted

    def _problem(self, share: Share, name: str, outputs: Outputs) -> tuple[str, str] | None:
        """What is wrong with a launch's outputs: reason and detail."""
        where = f"step {self.totals.steps}, {share.layout.name}, rank {share.rank}: {name}"
        bad = finite(self.replay.torch, outputs)
        if bad:
            return "numerics", f"{where}: not finite: {', '.join(bad)}"
        sums = checksum(self.replay.torch, outputs)
        first = self._sums.setdefault((share, name), sums)
        if first is sums:
            return None
        self.totals.repeats += 1
        differing = same(first, sums)
        if differing:
            return "nondeterministic", f"{where}: not as before: {', '.join(differing)}"
        return None

    def _announce(self, share: Share) -> None:
        if time.monotonic() - self._announced > ANNOUNCE_EVERY_S:
            self._announced = time.monotonic()
            self.probe.step(
                f"from step {self.totals.steps} on, {share.layout.name}, rank {share.rank}"
            )


def _shares(every: list[Layout]) -> Iterator[Share]:
    """All microbatches over and over. The first pass repeats what was run to compile."""
    for turn in count(1):
        for number, layout in enumerate(every):
            yield Share(layout, _rank(number, turn, layout))


def _rank(number: int, turn: int, layout: Layout) -> int:
    """Another rank for each microbatch, and for each second turn."""
    return (7 * number + turn // 2) % layout.cp_size


def _slug(name: str) -> str:
    return name.replace(" ", "_")


def _controls(probe: Session, torch: Any, last: Outputs) -> None:
    """Spoil what a kernel wrote, a little, and check it again."""
    probe.step("controls")
    names = [name for name in ("dq", "compact", "indices") if name in last]
    if not names:
        return
    exact: str = names[0]
    right = {exact: last[exact]}
    flipped, swapped = last[exact].clone(), last[exact].clone()
    whole = torch.int32 if flipped.element_size() == 4 else torch.int16
    bits = flipped.reshape(-1).view(whole)
    bits[len(bits) // 3] ^= 1
    half = len(swapped) // 2
    place = next(
        (row for row in range(half, len(swapped) - 1)
         if not torch.equal(swapped[row], swapped[row + 1])),
        0,
    )  # fmt: skip
    swapped[[place, place + 1]] = last[exact][[place + 1, place]]
    good = checksum(torch, right)
    sane = not same(good, checksum(torch, right))
    wrong = {"a changed bit": flipped, "two rows swapped": swapped}
    for name, tensor in wrong.items():
        noticed = same(good, checksum(torch, {exact: tensor}))
        probe.control(name, failed=noticed and sane, detail=f"in {exact}")
    for name in ("dkv", "dq", "compact"):
        if name in last:
            spoiled = last[name].clone()
            spoiled.view(-1)[spoiled.numel() // 2] = math.nan
            noticed = finite(torch, {name: spoiled})
            fine = not finite(torch, {name: last[name]})
            probe.control("one NaN", failed=noticed and fine, detail=f"in {name}")
            break
    if "dkv" in last:
        off = {"dkv": last["dkv"].float() * (1 + 1 / 64)}
        noticed = same(checksum(torch, {"dkv": last["dkv"].float()}), checksum(torch, off))
        probe.control("a gradient off by 1/64", failed=noticed)
