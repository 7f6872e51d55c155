"""How often are kernels compiled again when only the lengths of the microbatch change?

Runs microbatches of different total lengths, numbers of sequences and longest sequences, one
rank's rows of each, through Megatron Core's `build_attention_indices` and `CompressorInputCompact`
(forward and backward), and through cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` on the
index tables of the layers that list all visible groups; `thorough` adds the frontend's indexer and
its selection. Shapes and dtypes are those of training: int32 tables (rows, window + width),
bfloat16 rows of the model's hidden size and heads. Widths follow the longest sequence, as they do
in Megatron Core up to the revisions known here; a caller that rounds them up asks the frontend for
fewer.

Counted are calls of the DSL's `cute.compile` during each kernel's calls, by a stand-in that passes
them on; the growth of the caches that are known by name is measured beside it. A part is one
kernel. It fails with `recompiles` when it is still compiled in the second half of the microbatches:
a kernel with a few variants has met them by then, one that is compiled for each shape has not. The
setting `quick` lets each kernel be compiled for real in the first microbatch, and hands out a
function that does nothing for all that is asked for later: what upstream asks for is the question,
and its answers do not matter. `thorough` compiles and runs everything.

Controls: a kernel compiled for a second time must be counted, and a kernel that is compiled in each
microbatch must be judged to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward
from probes.adapters.dsl import ARCH, Dsl
from probes.counting import Counter, counted
from probes.devices import use_device
from probes.layouts import Layout
from probes.replay import Kernel, Replay, Share
from probes.session import Concluded, Session

PROBE: Final = {
    "id": "recompiles",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "functional",
    "time_limit_s": 900,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": [512, 1536],
            "microbatches": 12,
            "compile_again": False,
            "cases": ["indices:0:4", "indices:2:4", "compaction:4", "backward:128"],
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "cp_size": 32,
            "local_rows": [2048, 8192],
            "microbatches": 12,
            "compile_again": True,
            "cases": [
                "indices:0:4",
                "indices:2:4",
                "indices:1:0",
                "compaction:4",
                "compaction:128",
                "backward:128",
                "backward:0",
                "indexer:4",
            ],
        },
    },
}


@dataclass
class Series:
    """One kernel over the microbatches."""

    compiles: list[int] = field(default_factory=list)
    """In each microbatch."""

    @property
    def later(self) -> int:
        """After the first microbatch."""
        return sum(self.compiles[1:])

    @property
    def grows(self) -> bool:
        """Whether the second half of the microbatches still made it compile."""
        return any(self.compiles[max(1, len(self.compiles) // 2) :])


def run(probe: Session) -> None:
    """All microbatches in turn, then a part for each kernel, then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    dsl = Dsl(probe)
    cases = [str(case) for case in probe.parameters["cases"]]
    model = layouts.MODELS[probe.parameters["model"]]
    replay = Replay(probe, torch, device, model, cases)
    found: dict[str, Series] = {}
    with counted(dsl.cute) as counter:
        before = caches(replay.layout_module)
        for number, layout in enumerate(microbatches(probe)):
            share = Share(layout, number % layout.cp_size)
            for case in list(cases):
                probe.step(f"microbatch {number} {case} {layout.name}")
                for kernel in _kernels(probe, replay, share, case, cases):
                    # A case shares its index table with another, and the first call of a
                    # microbatch leaves nothing to compile for the second.
                    series = found.setdefault(kernel[0], Series())
                    series.compiles += [0] * (number + 1 - len(series.compiles))
                    already = counter.of(kernel[0]).count
                    with counter.during(kernel[0]):
                        outputs = replay.run(kernel, share)
                    series.compiles[number] += counter.of(kernel[0]).count - already
                    if counter.replacement is not None:
                        _make_harmless(outputs)
            if not probe.parameters["compile_again"]:
                counter.replacement = _nothing
        after = caches(replay.layout_module)
        grown = {name: size - before.get(name, 0) for name, size in after.items()}
        count = int(probe.parameters["microbatches"])
        for name, series in found.items():
            series.compiles += [0] * (count - len(series.compiles))
            _part(probe, name, series, counter)
        later = sum(series.later for series in found.values())
        probe.measure(
            microbatches_count=count,
            compiles_after_first_count=later,
            compiles_count=counter.total,
            **{f"{name}_growth_count": size for name, size in grown.items()},
        )
        counter.replacement = None
        _controls(probe, dsl, counter)


def _kernels(
    probe: Session, replay: Replay, share: Share, case: str, cases: list[str]
) -> Iterator[Kernel]:
    """A case's kernels. What this stack lacks, it lacks for that case alone: it is said once."""
    try:
        yield from replay.kernels(share, case)
    except Concluded as concluded:
        if concluded.verdict.status != "skip":
            raise
        cases.remove(case)
        with probe.check(case, step=False):
            raise


def _part(probe: Session, name: str, series: Series, counter: Counter) -> None:
    with probe.check(name) as check:
        noted = counter.of(name)
        check.measure["first_microbatch_compiles_count"] = series.compiles[0]
        check.measure["later_compiles_count"] = series.later
        check.measure["later_microbatches_with_a_compile_count"] = sum(
            map(bool, series.compiles[1:])
        )
        check.measure["compile_s"] = round(noted.seconds, 3)
        check.measure["compiled"] = ", ".join(noted.names)
        # A kernel that compiled nothing at all was not seen compiling: the count is blind to it.
        check.expect(
            noted.count, "probe:NothingCounted", "no compilation was counted", status="error"
        )
        each = ", ".join(str(number) for number in series.compiles)
        check.expect(not series.grows, "recompiles", f"compilations by microbatch: {each}")


def microbatches(probe: Session) -> list[Layout]:
    """Packed batches whose ranks differ in their number of rows, sequences and longest length."""
    least, most = (int(rows) for rows in probe.parameters["local_rows"])
    count = int(probe.parameters["microbatches"])
    made = []
    for number in range(count):
        # Multiples of 64, as padding to a multiple for each rank makes them; none comes twice.
        rows = (least + (most - least) * number // max(1, count - 1)) // 64 * 64
        kind = ("ordinary", "many-sequences", "spanning")[number % 3]
        made.append(
            layouts.make(
                kind,
                seed=probe.seed + number,
                cp_size=int(probe.parameters["cp_size"]),
                local_rows=rows,
                alignment=64,
            )
        )
    return made


def caches(layout_module: Any) -> dict[str, int]:
    """Entries of the caches that are known by name and there."""
    found = {}
    launches = getattr(layout_module, "_COMPILED_LAUNCH_CACHE", None)
    if launches is not None:
        found["layout_cache"] = len(launches)
    for name, cache in fe_backward.compile_caches().items():
        found[f"backward_{name}"] = len(cache)
    return found


def _make_harmless(outputs: dict[str, Any]) -> None:
    """Give index tables that nothing may have written a content that every kernel can read."""
    if "indices" in outputs:
        outputs["indices"].zero_()
    if "lengths" in outputs:
        outputs["lengths"].fill_(1)


def _nothing(*arguments: Any, **options: Any) -> None:
    """In place of a compiled function."""
    del arguments, options


def _controls(probe: Session, dsl: Dsl, counter: Counter) -> None:
    probe.step("controls")
    from probes import own_kernels

    values = (dsl.tensor(dsl.cutlass.Int32, 1), dsl.stream())
    options = f"--enable-tvm-ffi --gpu-arch {ARCH}"
    with counter.during("planted"):
        for _ in range(2):
            with probe.tested("compile", "a kernel of ours"):
                dsl.cute.compile(own_kernels.add_one, *values, options=options)
    count = counter.of("planted").count
    probe.control("a second compilation", failed=count == 2, detail=f"counted {count}")
    judged = {name: Series(list(numbers)).grows for name, numbers in _PLANTED.items()}
    right = judged == {"each": True, "first": False, "few": False}
    probe.control("compiled in each microbatch", failed=right, detail=str(judged))


_PLANTED: Final[dict[str, Sequence[int]]] = {
    "each": (3, *[1] * 11),
    "first": (3, *[0] * 11),
    "few": (3, 1, 0, 1, *[0] * 8),
}
