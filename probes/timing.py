"""How long does each kernel take at the model's size, and how near is that to what the GPU can do?

Times, alone on the GPU, Megatron Core's `build_attention_indices` and `CompressorInputCompact`
(forward and backward) and cuDNN Frontend's `DSA.sparse_attention_backward_wrapper`,
`DSA.indexer_forward_wrapper` and `DSA.indexer_top_k_wrapper`, called as in training with one rank's
rows of a batch at the preset's size: int32 tables (rows, window + width), bfloat16 data. CUDA
events are recorded around each call, so a call's own small kernels (zeroing, conversion) count.
Before each call a buffer much larger than the L2 cache is written: it leaves nothing of the inputs
in the cache, and keeps the GPU busy while the host prepares the launches. The median of many
repeats is given, with the distance between quartiles as its spread.

Two limits are measured in the same run: bytes per second of a large copy (read and written), and
floating-point operations per second of a large bfloat16 product. A kernel's least time is the
longer of its compulsory bytes at the first and its operations at the second; the share of the limit
is that time by the measured one. Bytes count every input and output once; what a kernel gathers
twice, or adds up in between, is its own affair. The formulas stand in `work_of`.

There is no right answer to a time, but an impossible one: a part is our own error when a kernel is
found to be more than twice as fast as its limits allow. (Up to that, small outputs may still lie in
the cache when the clock stops.)

Control: a call that does nothing must be found impossible by the same arithmetic.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from probes import layouts
from probes.adapters.dsl import Dsl
from probes.devices import use_device, wait
from probes.replay import Outputs, Replay, Share
from probes.session import Concluded, Session

PROBE: Final = {
    "id": "timing",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "timing",
    "alone": True,
    "time_limit_s": 600,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": 8192,
            "layout": "ordinary",
            "rank": 5,
            "cases": ["indices:0:4", "indices:2:4", "compaction:4", "backward:128", "indexer:4"],
            "repeats": 30,
            "copy_megabytes": 2048,
            "matrix": 8192,
            "flush_megabytes": 4096,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": 8192,
            "layout": "ordinary",
            "rank": 5,
            "cases": [
                "indices:0:4",
                "indices:2:4",
                "indices:1:0",
                "compaction:4",
                "compaction:128",
                "backward:4",
                "backward:128",
                "backward:0",
                "indexer:4",
            ],
            "repeats": 200,
            "copy_megabytes": 4096,
            "matrix": 16384,
            "flush_megabytes": 4096,
        },
    },
}

IMPOSSIBLE_SHARE: Final = 2.0
WARM_UP: Final = 3


@dataclass(frozen=True)
class Work:
    """What a call can't do without."""

    moved_bytes: int
    flops: int


@dataclass(frozen=True)
class Limits:
    """What this GPU does, measured here."""

    copy_bytes_per_s: float
    matrix_flops_per_s: float

    def least_s(self, work: Work) -> float:
        return max(work.moved_bytes / self.copy_bytes_per_s, work.flops / self.matrix_flops_per_s)


class Stopwatch:
    """Times calls on the device; on the CPU, where tests run, by the clock."""

    def __init__(self, torch: Any, device: Any, flush_megabytes: int) -> None:
        self._torch = torch
        self._device = device
        self._flush = torch.zeros(flush_megabytes << 18, dtype=torch.int32, device=device)

    def seconds(self, call: Callable[[], Any], repeats: int) -> list[float]:
        """One time for each repeat."""
        for _ in range(WARM_UP):
            call()
        wait(self._torch, self._device)
        if self._device.type != "cuda":
            return [self._by_clock(call) for _ in range(repeats)]
        pairs = []
        for _ in range(repeats):
            self._flush.add_(1)
            start, stop = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            pairs.append((start, stop))
        wait(self._torch, self._device)
        return [start.elapsed_time(stop) / 1000 for start, stop in pairs]

    def _by_clock(self, call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started


def run(probe: Session) -> None:
    """The limits, every kernel, then the control."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    Dsl(probe)
    cases = [str(case) for case in probe.parameters["cases"]]
    model = layouts.MODELS[probe.parameters["model"]]
    replay = Replay(probe, torch, device, model, cases)
    layout = layouts.make(
        str(probe.parameters["layout"]),
        seed=probe.seed,
        cp_size=int(probe.parameters["cp_size"]),
        local_rows=int(probe.parameters["local_rows"]),
    )
    share = Share(layout, int(probe.parameters["rank"]))
    watch = Stopwatch(torch, device, int(probe.parameters["flush_megabytes"]))
    for case in cases:
        probe.step(f"compile {case}")
        with contextlib.suppress(Concluded):  # the case's own part will say it
            for kernel in replay.kernels(share, case):
                replay.run(kernel, share)
    with probe.alone():
        probe.step("measure the limits")
        limits = measure_limits(probe, torch, device, watch)
        done: dict[str, Work] = {}
        for case in cases:
            probe.step(f"inputs of {case}")
            try:
                _case(probe, replay, share, case, watch=watch, limits=limits, done=done)
            except Concluded as concluded:
                if concluded.reported:
                    raise
                with probe.check(case):  # what this stack lacks, it lacks for this case alone
                    raise
        _control(probe, watch, limits, done)


def _case(
    probe: Session,
    replay: Replay,
    share: Share,
    case: str,
    *,
    watch: Stopwatch,
    limits: Limits,
    done: dict[str, Work],
) -> None:
    """Time the kernels of one case that were not timed yet."""
    for name, call in replay.kernels(share, case):
        if name in done:
            replay.run((name, call), share)  # the next kernel wants its outputs
            continue
        with probe.check(name) as check:
            outputs = replay.run((name, call), share)  # compiles
            work = done[name] = work_of(replay, share, name, outputs)
            del outputs
            with probe.tested("call", f"{name}, repeated"):
                seconds = watch.seconds(call, int(probe.parameters["repeats"]))
            median = statistics.median(seconds)
            share_of_limit = limits.least_s(work) / median
            check.measure.update(
                median_s=median,
                spread_s=spread(seconds),
                moved_bytes=work.moved_bytes,
                flops_count=work.flops,
                share_of_limit=round(share_of_limit, 4),
                limited_by="flops" if _by_flops(limits, work) else "bytes",
                repeats_count=len(seconds),
            )
            check.expect(
                share_of_limit <= IMPOSSIBLE_SHARE,
                "probe:ImpossibleTime",
                f"{share_of_limit:.1f} times as fast as the limits allow",
                status="error",
            )
        if name not in done:
            return  # it did not run, so there is nothing for the next kernel


def measure_limits(probe: Session, torch: Any, device: Any, watch: Stopwatch) -> Limits:
    """Copy bandwidth and bfloat16 matrix rate, both as medians."""
    repeats = int(probe.parameters["repeats"])
    size = int(probe.parameters["copy_megabytes"])
    n = int(probe.parameters["matrix"])
    limits = Limits(
        copy_bytes_per_s=_copy_rate(torch, device, watch, size, repeats),
        matrix_flops_per_s=_matrix_rate(torch, device, watch, n, repeats),
    )
    probe.measure(
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matrix_bf16_flops_per_s=limits.matrix_flops_per_s,
    )
    return limits


def _copy_rate(torch: Any, device: Any, watch: Stopwatch, megabytes: int, repeats: int) -> float:
    source = torch.ones(megabytes << 18, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    # A copy reads each byte once and writes it once.
    moved = 2 * int(source.numel()) * int(source.element_size())
    return moved / statistics.median(watch.seconds(lambda: target.copy_(source), repeats))


def _matrix_rate(torch: Any, device: Any, watch: Stopwatch, n: int, repeats: int) -> float:
    random = torch.Generator(device).manual_seed(1)
    one, other = (
        (torch.rand((n, n), generator=random, device=device) - 0.5).to(torch.bfloat16)
        for _ in range(2)
    )
    product = torch.empty_like(one)
    seconds = watch.seconds(lambda: torch.matmul(one, other, out=product), repeats)
    # Each of n x n results takes n products and n sums.
    return 2 * n**3 / statistics.median(seconds)


def work_of(replay: Replay, share: Share, name: str, outputs: Outputs) -> Work:
    """Compulsory bytes and operations of one call.

    Raises:
        ValueError: no formula for a kernel of that name.
    """
    model, words = replay.model, name.split()
    ratio = int(words[-1])
    written = sum(tensor.numel() * tensor.element_size() for tensor in outputs.values())
    if words[0] == "indices":
        # Written: the tables. Read: the chosen groups (in modes 0 and 2), 4 bytes each; the map of
        # groups, 4 bytes each, of which a rank sees some; prefix sums.
        chosen = 0
        if words[2] != "1":
            chosen = share.rows * share.width(ratio, model.top_k)
        sums = 2 * (len(share.layout.lengths) + 1)
        return Work(written + 4 * (chosen + sums), 0)
    if words[0] == "compaction":
        # Forward, read: the rows of the groups that the rank lists, 2 bytes an element; written:
        # all compact rows and their groups' numbers. Backward: the same rows of the gradient read,
        # all rows of both gradients written.
        listed = len(layouts.compress(share.layout, ratio).rank_groups[share.rank])
        return Work(written + 2 * listed * ratio * model.hidden, 0)
    if words[0] == "sparse":
        rows, heads, dim = share.rows, model.heads, model.head_dim
        listed, width = replay.listed
        # q, out and dout are read, dq is written, 2 bytes an element; kv is read and dkv written,
        # likewise; 4 bytes for each sum of exponentials, index and length.
        buffer = replay.buffer_rows(share, ratio)
        moved = 2 * (4 * rows * heads * dim + 2 * buffer * dim) + 4 * rows * (heads + width + 1)
        # Five products of a row with a listed one, for each head, of 2 operations an element:
        # scores, gradient of the weights, and what dq and twice dkv gain.
        return Work(moved, 5 * 2 * dim * heads * listed)
    if words[0] == "indexer":
        seen = int(replay.visible(share, ratio).sum().item())
        if words[1] == "top-k":
            # Read: the scores that a row may see. Written: the chosen places. 4 bytes each.
            return Work(written + 4 * (seen + share.rows), 0)
        # q and the weights of all heads are read, and every group's key, 2 bytes an element; all
        # scores are written. For each head and each group that a row may see: a dot product of 2
        # operations an element, a weight and a sum.
        rows, heads, dim = share.rows, model.indexer_heads, model.indexer_dim
        read = 2 * (rows * heads * (dim + 1) + share.layout.total_rows // ratio * dim)
        return Work(written + read, heads * (2 * dim + 2) * seen)
    raise ValueError(f"no formula for {name}")


def spread(seconds: list[float]) -> float:
    """Distance between the quartiles."""
    first, _, third = statistics.quantiles(seconds, n=4)
    return third - first


def _by_flops(limits: Limits, work: Work) -> bool:
    by_bytes = work.moved_bytes / limits.copy_bytes_per_s
    return work.flops / limits.matrix_flops_per_s > by_bytes


def _control(probe: Session, watch: Stopwatch, limits: Limits, done: dict[str, Work]) -> None:
    probe.step("control: a call that does nothing")
    if not done:
        return
    most = max(done.values(), key=limits.least_s)
    nothing = statistics.median(watch.seconds(lambda: None, 20))
    share = limits.least_s(most) / max(nothing, 1e-9)
    probe.control(
        "a call that does nothing",
        failed=share > IMPOSSIBLE_SHARE,
        detail=f"{share:.0f} times as fast as the limits allow",
    )
