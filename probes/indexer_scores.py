"""Are the indexer's scores of every context-parallel rank right, and minus infinity where unseen?

Drives cuDNN Frontend's `DSA.indexer_forward_wrapper` on SM90 by keyword, as Megatron Core's CSA
layers do (packed THD): the rank's queries (local rows, heads, 128), one key per compressed group of
all sequences (groups, 1, 128) and per-head weights (local rows, heads) in bfloat16, ratio 4, int32
prefix sums of the rank's rows in each sequence and of the sequences' groups, with a last segment
for rows of no sequence, and `q_causal_offsets`, the place in its sequence of each segment's first
row. Scores are (local rows, groups of the longest sequence) in float32.

The reference is float32 from the same bfloat16 inputs. Products of bfloat16 numbers are exact in
float32; sums over 128 elements and 64 heads are float32 in both, in unknown order, in the kernel by
tensor cores that cut bits off. Tolerance: 2^-18 of the sum over heads of |w| |q| |k| (Euclidean
norms), which no partial sum exceeds: 32 units in the last place of a number of that size. Random
signs keep true errors near one such unit. A head left out, a weight of another head, or dot
products or scores rounded to bfloat16 are off by more. Where a row may not look, the score must be
minus infinity exactly, in every column; elsewhere it must be finite.

Each layout is asked for twice. On a stream of its own, with the buffer poisoned by torch's own
switch, the kernel itself is judged. On the current stream, as in training and with nothing
poisoned, the frontend's own preparation of the buffer counts as well: releases that prepare it on
another stream by mistake race against their own kernel.

A frontend without `q_causal_offsets` is asked for whole sequences of whole groups alone: it takes
the end of a segment's rows for the end of its sequence, and says so. The rest is skipped.

Controls: one group too many, lost offsets, the keys' neighbours, a lost head and scores in bfloat16
must each be noticed by the same comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_indexer
from probes.adapters.fe_indexer import Forward
from probes.devices import own_stream, poison_works, poisoned_memory, use_device, wait
from probes.layouts import Layout
from probes.session import Check, Session, absent

PROBE: Final = {
    "id": "indexer-scores",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 420,
    "parameters": {
        "quick": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 2048,
            "model": "dsv4-flash",
            "alignment": 1,
            "heads": [64],
            "layouts": [
                "ordinary",
                "one-sequence",
                "short-sequences",
                "zero-lengths",
                "no-whole-sequence",
                "padding-rank",
                "only-short",
            ],
        },
        "thorough": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 8192,
            "model": "dsv4-flash",
            "alignment": 1,
            "heads": [64, 32],
            "layouts": [
                "ordinary",
                "one-sequence",
                "many-sequences",
                "short-sequences",
                "zero-lengths",
                "spanning",
                "no-whole-sequence",
                "padding-rank",
                "padding-tail",
                "odd-lengths",
                "only-short",
            ],
        },
    },
}

RATIO: Final = 4
TOLERANCE: Final = 2.0**-18
STREAMS: Final = ("own stream", "current stream")
_CHUNK_ROWS: Final = 512


@dataclass(frozen=True)
class Inputs:
    """bfloat16; the same for every rank and layout."""

    q: Any
    """(rows, heads, dim)"""
    k: Any
    """(groups, dim), as many as all rows together have"""
    w: Any
    """(rows, heads)"""


@dataclass(frozen=True)
class Comparison:
    """How scores compare with the reference; numbers of elements."""

    off: int
    """Seen, finite, and too far from the right score; or NaN."""
    missing: int
    """Seen, and minus infinity instead of a score."""
    extra: int
    """Not seen, and something else than minus infinity."""
    worst: float
    """Largest error of a seen score by what it is measured with; the tolerance is `TOLERANCE`."""
    form: str = ""
    """What is wrong with dtype or shape, if anything; then the numbers mean nothing."""

    @property
    def mismatches(self) -> int:
        return self.off + self.missing + self.extra + bool(self.form)

    def __str__(self) -> str:
        return self.form or (
            f"{self.off} scores are off, the worst by {self.worst:.3g}; {self.missing} are minus "
            f"infinity and should not be; {self.extra} should be minus infinity and are not"
        )


def run(probe: Session) -> None:
    """Every number of heads, layout and stream over the ranks that tell most; then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    forward = fe_indexer.forward(probe)
    probe.measure(
        poison_reaches_buffers=poison_works(torch, device),
        takes_causal_offsets=forward.takes_offsets,
    )
    inputs = make_inputs(probe, torch, device)
    for heads in probe.parameters["heads"]:
        few = Inputs(
            inputs.q[:, : int(heads)].contiguous(),
            inputs.k,
            inputs.w[:, : int(heads)].contiguous(),
        )
        if forward.takes_offsets:
            first, held = _layout(probe, "ordinary"), "first rank"
        else:
            first, held = _whole_sequences(probe), "whole sequences"
        with probe.check(f"heads {heads} {held}, no offsets") as check:
            for stream in STREAMS:
                _rank(
                    probe, torch, device=device, forward=forward, layout=first, rank=0,
                    inputs=few, stream=stream, offsets=False, check=check,
                )  # fmt: skip
        if not forward.takes_offsets:
            with probe.check(f"heads {heads} with offsets"):
                raise absent("this frontend's indexer takes no q_causal_offsets")
        for name in probe.parameters["layouts"] if forward.takes_offsets else ():
            layout = _layout(probe, str(name))
            for stream in STREAMS:
                with probe.check(f"heads {heads} {layout.name}, {stream}") as check:
                    for rank in layout.telling_ranks():
                        _rank(
                            probe, torch, device=device, forward=forward, layout=layout, rank=rank,
                            inputs=few, stream=stream, offsets=True, check=check,
                        )  # fmt: skip
                    check.measure["sequences_count"] = len(layout.lengths)
                    check.measure["columns_count"] = layout.max_seqlen // RATIO
    _controls(probe, torch, inputs)


def _layout(probe: Session, name: str) -> Layout:
    return layouts.make(
        name,
        seed=probe.seed,
        cp_size=int(probe.parameters["cp_size"]),
        local_rows=int(probe.parameters["local_rows"]),
        alignment=int(probe.parameters["alignment"]),
    )


def _whole_sequences(probe: Session) -> Layout:
    """Sequences that no rank cuts, of whole groups.

    A frontend without offsets aligns the last query of a segment with the end of the last group,
    and says so. Only here does that mean the same.
    """
    batch = _layout(probe, "ordinary")
    shares = (length // batch.cp_size // RATIO * RATIO for length in batch.lengths)
    return replace(batch, name="whole sequences", cp_size=1, lengths=tuple(shares))


def make_inputs(probe: Session, torch: Any, device: Any) -> Inputs:
    """Random inputs of the sizes that trained ones have; drawn on the CPU."""
    model = layouts.MODELS[probe.parameters["model"]]
    rows = int(probe.parameters["local_rows"])
    groups = rows * int(probe.parameters["cp_size"]) // RATIO
    random = torch.Generator().manual_seed(probe.seed)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return (torch.randn(shape, generator=random) * scale).to(torch.bfloat16).to(device)

    return Inputs(
        normal(rows, model.indexer_heads, model.indexer_dim),
        normal(groups, model.indexer_dim),
        normal(
            rows,
            model.indexer_heads,
            scale=model.indexer_heads**-0.5 * model.indexer_dim**-0.5,
        ),
    )


def _rank(
    probe: Session,
    torch: Any,
    *,
    device: Any,
    forward: Forward,
    layout: Layout,
    rank: int,
    inputs: Inputs,
    stream: str,
    offsets: bool,
    check: Check,
) -> None:
    """One rank's scores, compared."""
    if layout.max_seqlen < RATIO:
        raise ValueError(f"{layout.name} has nothing to score; callers do not ask then")
    what = f"{layout.name}, {stream}, rank {rank}"
    probe.step(f"indexer_forward_wrapper {what}")
    arguments = _arguments(torch, device, layout, rank, inputs)
    if not offsets:
        del arguments[fe_indexer.OFFSETS_KEYWORD]
    wait(torch, device)
    with (
        probe.tested("call", f"indexer_forward_wrapper, {what}"),
        _stream(torch, device, own=stream == STREAMS[0]),
    ):
        found = forward.function(**arguments)["scores"]
        wait(torch, device)
    probe.step(f"compare {what}")
    compared = compare(torch, found, reference(layout, rank, inputs))
    measure = check.measure
    for name, value in (
        ("scores_off_count", compared.off),
        ("scores_missing_count", compared.missing),
        ("scores_extra_count", compared.extra),
        ("elements_compared_count", found.numel()),
    ):
        measure[name] = measure.get(name, 0) + value
    measure["worst_error_share"] = max(
        measure.get("worst_error_share", 0.0), compared.worst / TOLERANCE
    )
    check.expect(not compared.mismatches, "numerics", f"{what}: {compared}")


@contextmanager
def _stream(torch: Any, device: Any, *, own: bool) -> Iterator[None]:
    """A stream of its own and poisoned memory; or the current stream and memory as it comes."""
    if not own:
        yield
        return
    with own_stream(torch, device), poisoned_memory(torch):
        yield


def _arguments(
    torch: Any, device: Any, layout: Layout, rank: int, inputs: Inputs, /
) -> dict[str, Any]:
    segments = layouts.indexer_segments(layout, RATIO, rank)

    def whole(numbers: tuple[int, ...]) -> Any:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    return {
        "q": inputs.q,
        "k": inputs.k[:, None],
        "w": inputs.w,
        "ratio": RATIO,
        "cu_seqlens_q": whole(segments.cu_queries),
        "cu_seqlens_k": whole(segments.cu_keys),
        "max_seqlen_q": layout.max_seqlen,
        "max_seqlen_k": layout.max_seqlen // RATIO,
        fe_indexer.OFFSETS_KEYWORD: whole(segments.offsets),
    }


def question_of(layout: Layout, rank: int) -> Any:
    """The reference's question for one rank."""
    from probes.references.indexer import Question

    return Question(
        cu_seqlens=layout.cu_seqlens,
        cu_groups=layouts.compress(layout, RATIO).cu_seqlens,
        first_row=layout.rank_rows(rank).start,
        rows=layout.local_rows,
        ratio=RATIO,
        columns=layout.max_seqlen // RATIO,
    )


def reference(layout: Layout, rank: int, inputs: Inputs) -> Any:
    """Right scores of one rank."""
    from probes.references.indexer import scores

    return scores(question_of(layout, rank), inputs.q, inputs.k, inputs.w)


def compare(torch: Any, found: Any, expected: Any) -> Comparison:
    """Compare scores with `references.indexer.Scores`, some rows at a time."""
    wanted = expected.values
    if found.dtype != torch.float32 or found.shape != wanted.shape:
        return Comparison(0, 0, 0, 0.0, f"scores are {found.dtype} {tuple(found.shape)}")
    off = missing = extra = 0
    worst = 0.0
    nothing = float("-inf")
    for start in range(0, len(wanted), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        seen = wanted[rows] != nothing
        empty = found[rows] == nothing
        extra += int((~seen & ~empty).sum().item())
        missing += int((seen & empty).sum().item())
        judged = seen & ~empty
        error = (found[rows] - wanted[rows]).abs() / expected.scale[rows]
        error = torch.where(judged, error, 0.0).nan_to_num(nan=float("inf"))
        off += int((error > TOLERANCE).sum().item())
        worst = max(worst, error.max().item())
    return Comparison(off, missing, extra, min(worst, 1e9))


def _controls(probe: Session, torch: Any, inputs: Inputs) -> None:
    """Give wrong scores, made by the reference, to the comparison."""
    from probes.references.indexer import Scores, limits, scores

    probe.step("controls")
    layout = _layout(probe, "no-whole-sequence")
    rank = layout.cp_size // 2
    question = question_of(layout, rank)
    right = reference(layout, rank, inputs)
    limit = limits(question, inputs.q.device)
    local = torch.arange(question.rows, device=limit.device)
    lost = torch.minimum(limit, (local + 1) // RATIO)
    fewer = inputs.w.clone()
    fewer[:, 0] = 0
    wrong: dict[str, Scores] = {
        "one group too many": scores(question, inputs.q, inputs.k, inputs.w, limit=limit + 1),
        "offsets lost": scores(question, inputs.q, inputs.k, inputs.w, limit=lost),
        "the keys' neighbours": scores(question, inputs.q, inputs.k.roll(1, dims=0), inputs.w),
        "a head lost": scores(question, inputs.q, inputs.k, fewer),
        "scores in bfloat16": Scores(right.values.to(torch.bfloat16).float(), right.scale),
    }
    fine = not compare(torch, right.values, right).mismatches
    for name, answer in wrong.items():
        noticed = compare(torch, answer.values, right)
        # A check that also refuses the right answer has caught nothing.
        probe.control(name, failed=noticed.mismatches and fine, detail=f"rank {rank}: {noticed}")
