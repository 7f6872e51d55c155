"""Packed-THD batches in a contiguous context-parallel partition: the one place that makes them.

A batch is `n` sequences laid one after the other in `cp_size * local_rows` rows; rank `r` owns rows
`[r * local_rows, (r + 1) * local_rows)`. Rows after the last sequence belong to none. Lengths come
from `random.Random(seed)`, so every machine makes the same batch, with or without a GPU.

The named layouts are those that break index arithmetic: each name says what it has, and the
properties of `Layout` say whether it has it.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Final


@dataclass(frozen=True)
class Model:
    """What a model fixes about the attention. Sizes are numbers of elements."""

    name: str
    hidden: int
    heads: int
    head_dim: int
    window: int
    top_k: int
    indexer_heads: int
    indexer_dim: int

    @property
    def softmax_scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim)


MODELS: Final = {
    model.name: model
    for model in (
        Model("dsv4-flash", 4096, 64, 512, 128, 512, 64, 128),
        Model("tiny", 32, 4, 64, 16, 8, 2, 8),
    )
}


@dataclass(frozen=True)
class Layout:
    """One packed batch over all ranks."""

    name: str
    cp_size: int
    local_rows: int
    lengths: tuple[int, ...]
    """Rows of each sequence, padding to the alignment included; zero is allowed."""

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 0 or sum(self.lengths) > self.total_rows:
            raise ValueError(f"{self.name}: {len(self.lengths)} sequences do not fit")

    @property
    def total_rows(self) -> int:
        return self.cp_size * self.local_rows

    @cached_property
    def cu_seqlens(self) -> tuple[int, ...]:
        """Prefix sums of the lengths: `n + 1` numbers, the first of them 0."""
        return (0, *accumulate(self.lengths))

    @property
    def covered_rows(self) -> int:
        """Rows that belong to a sequence; the rest is padding after the last one."""
        return self.cu_seqlens[-1]

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    def rank_rows(self, rank: int) -> range:
        return range(rank * self.local_rows, (rank + 1) * self.local_rows)

    def sequence_of(self, row: int) -> int | None:
        """The sequence that a row belongs to, or None."""
        if not 0 <= row < self.covered_rows:
            return None
        return bisect_right(self.cu_seqlens, row) - 1

    def is_padding_rank(self, rank: int) -> bool:
        return self.rank_rows(rank).start >= self.covered_rows

    def starts_inside_sequence(self, rank: int) -> bool:
        """Whether a rank's first row continues a sequence of the rank before it."""
        start = self.rank_rows(rank).start
        sequence = self.sequence_of(start)
        return sequence is not None and self.cu_seqlens[sequence] < start

    def has_whole_sequence(self, rank: int) -> bool:
        """Whether some non-empty sequence lies entirely in a rank's rows."""
        rows = self.rank_rows(rank)
        return any(
            length and rows.start <= start and start + length <= rows.stop
            for start, length in zip(self.cu_seqlens, self.lengths, strict=False)
        )

    def telling_ranks(self) -> dict[int, str]:
        """A few ranks that differ in kind, each with what it is there for."""
        found: dict[int, str] = {0: "first"}
        kinds: list[tuple[str, Callable[[int], bool]]] = [
            ("starts inside a sequence", self.starts_inside_sequence),
            ("no whole sequence", lambda rank: not self.has_whole_sequence(rank)),
            ("only padding", self.is_padding_rank),
            (
                "padding begins",
                lambda rank: (
                    self.covered_rows in self.rank_rows(rank) and not self.is_padding_rank(rank)
                ),
            ),
        ]
        for why, holds in kinds:
            for rank in range(self.cp_size):
                if holds(rank) and rank not in found:
                    found[rank] = why
                    break
        found.setdefault(self.cp_size // 2, "middle")
        found.setdefault(self.cp_size - 1, "last")
        return dict(sorted(found.items()))


def make(name: str, *, seed: int, cp_size: int, local_rows: int, alignment: int = 1) -> Layout:
    """A named layout.

    Args:
        name: one of `NAMES`.
        seed: of the lengths; the name is mixed in, so two layouts of one seed differ.
        cp_size: number of ranks.
        local_rows: rows a rank owns; at least 128 for a real boundary exchange.
        alignment: every length is a multiple of this, except where a layout is about lengths
            that are not, and except the last length that fills the rows up.

    Raises:
        KeyError: no such layout.
        ValueError: there is too little room for it.
    """
    if cp_size < 4 or local_rows < 16:
        raise ValueError("the layouts need four ranks or more, of 16 rows or more")
    shape = _Shape(random.Random(f"{name}/{seed}"), cp_size, local_rows, alignment)  # noqa: S311
    return Layout(name, cp_size, local_rows, tuple(BUILDERS[name](shape)))


@dataclass
class _Shape:
    """What a builder has to work with."""

    rng: random.Random
    cp_size: int
    local_rows: int
    alignment: int
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.cp_size * self.local_rows

    def aligned(self, length: int) -> int:
        return -(-length // self.alignment) * self.alignment

    def fill(self, rows: int, count: int, *, exact: bool = True) -> list[int]:
        """About `count` lengths of mixed size that sum up to `rows`, or to no more than that."""
        lengths: list[int] = []
        left = rows
        mean, most = max(1.0, rows / count), max(1, rows // 4)
        while left > 0:
            # Log-normal, as lengths of documents are: most are short, a few are very long.
            drawn = int(mean * self.rng.lognormvariate(-0.5, 1.0))
            drawn = self.aligned(min(max(1, drawn), most))
            if drawn >= left:
                if exact:
                    lengths.append(left)
                break
            lengths.append(drawn)
            left -= drawn
        return lengths or [self.aligned(1)]


def _ordinary(shape: _Shape) -> list[int]:
    return shape.fill(shape.total, 2 * shape.cp_size)


def _one_sequence(shape: _Shape) -> list[int]:
    return [shape.total]


def _many_sequences(shape: _Shape) -> list[int]:
    return shape.fill(shape.total, min(400, shape.total // 8))


def _short_sequences(shape: _Shape) -> list[int]:
    # Some hundred at most: the kernels look every row up by walking along all sequences.
    tiny = [shape.rng.randint(1, 3) for _ in range(min(200, shape.total // 32))]
    small = [shape.rng.randint(5, 127) for _ in range(min(60, shape.total // 512))]
    rest = shape.total - sum(tiny) - sum(small)
    lengths = [*tiny, *small, *shape.fill(rest, 6)]
    shape.rng.shuffle(lengths)
    return lengths


def _zero_lengths(shape: _Shape) -> list[int]:
    lengths = [0]
    for length in shape.fill(shape.total, shape.cp_size):
        lengths += [length, *[0] * shape.rng.choice((0, 0, 1, 2))]
    return [*lengths, 0, 0]


def _spanning(shape: _Shape) -> list[int]:
    rows = shape.local_rows
    head = shape.rng.randint(1, rows - 1)
    long = 2 * rows + shape.rng.randint(rows // 2, rows - 1)
    return [head, long, *shape.fill(shape.total - head - long, shape.cp_size)]


def _no_whole_sequence(shape: _Shape) -> list[int]:
    # Every sequence begins in one rank and ends in a later one.
    cuts = [
        rank * shape.local_rows + shape.rng.randint(1, shape.local_rows - 1)
        for rank in range(1, shape.cp_size - 1)
    ]
    ends = [*cuts, shape.total]
    return [end - start for start, end in zip([0, *cuts], ends, strict=True)]


def _padding_rank(shape: _Shape) -> list[int]:
    rows = (shape.cp_size - 2) * shape.local_rows + shape.rng.randint(1, shape.local_rows - 1)
    return shape.fill(rows, shape.cp_size)


def _padding_tail(shape: _Shape) -> list[int]:
    rows = shape.total - shape.rng.randint(1, shape.local_rows - 1)
    return shape.fill(rows, 2 * shape.cp_size)


def _only_short(shape: _Shape) -> list[int]:
    # No sequence fills a group of 128 rows, so at that ratio there is nothing compressed at all.
    lengths = [shape.rng.randint(4, min(127, shape.local_rows))]
    while len(lengths) < 200:
        drawn = shape.rng.choice((shape.rng.randint(1, 3), shape.rng.randint(4, 127)))
        if sum(lengths) + drawn > shape.local_rows:
            break
        lengths.append(drawn)
    return lengths


def _odd_lengths(shape: _Shape) -> list[int]:
    # An odd number is a multiple of neither 4 nor 128, nor of any other ratio.
    lengths = [length | 1 for length in shape.fill(shape.total, 2 * shape.cp_size)]
    while sum(lengths) > shape.total:
        lengths.pop()
    return lengths or [1]


BUILDERS: Final[dict[str, Callable[[_Shape], list[int]]]] = {
    "ordinary": _ordinary,
    "one-sequence": _one_sequence,
    "many-sequences": _many_sequences,
    "short-sequences": _short_sequences,
    "zero-lengths": _zero_lengths,
    "spanning": _spanning,
    "no-whole-sequence": _no_whole_sequence,
    "padding-rank": _padding_rank,
    "padding-tail": _padding_tail,
    "odd-lengths": _odd_lengths,
    "only-short": _only_short,
}
NAMES: Final = tuple(BUILDERS)


@dataclass(frozen=True)
class Compressed:
    """Where the compressed rows of a layout lie, for one compression ratio.

    Group `c` of a sequence stands for its tokens `c * ratio` to `c * ratio + ratio - 1`; only full
    groups exist. A group belongs to the rank that holds its last token.
    """

    ratio: int
    overlap: int
    """Rows left of a rank's first one from which a group may begin that the rank still lists."""
    capacity: int
    """Slots per rank in the gathered buffer."""
    cu_seqlens: tuple[int, ...]
    """Prefix sums of the sequences' numbers of groups, `n + 1` numbers."""
    seq_to_rank_row: tuple[int, ...]
    """For each group in the order of sequences, its row in the gathered buffer; -1 in the tail.
    As long as there are groups in all rows together, `total_rows // ratio`."""
    rank_groups: tuple[tuple[tuple[int, int], ...], ...]
    """For each rank the groups it lists, as (sequence, group), in order: slot 0, 1, 2, …"""


@lru_cache(maxsize=8)
def compress(layout: Layout, ratio: int) -> Compressed:
    """The rank-major compressed layout.

    A rank lists, in the order of sequences and groups, every group that starts at or after its
    first row less the overlap, ends in its rows, and is of a sequence that reaches into its rows.
    A group's slot is its place in its owner's list. (A rank thus lists up to `overlap / ratio`
    groups that its left neighbour owns; they take a slot and are not pointed at.)

    Raises:
        ValueError: the ratio is 1 or less, or a rank has fewer rows than the overlap.
    """
    if ratio <= 1:
        raise ValueError("there is nothing to compress")
    overlap = 8 if ratio == 4 else ratio
    rows = layout.local_rows
    if rows < overlap:
        raise ValueError(f"a rank of {rows} rows is shorter than the overlap of {overlap}")
    listed: list[list[tuple[int, int]]] = [[] for _ in range(layout.cp_size)]
    step = 32 // math.gcd(32, ratio)
    capacity = -(-max(1, (rows + overlap) // ratio) // step) * step
    mapping: list[int] = []
    counts: list[int] = []
    for sequence, length in enumerate(layout.lengths):
        start, end = layout.cu_seqlens[sequence : sequence + 2]
        counts.append(length // ratio)
        for group in range(length // ratio):
            first = start + group * ratio
            owner = (first + ratio - 1) // rows
            mapping.append(owner * capacity + len(listed[owner]))
            listed[owner].append((sequence, group))
            border = (owner + 1) * rows
            if first >= border - overlap and end > border:
                listed[owner + 1].append((sequence, group))
    tail = layout.total_rows // ratio - len(mapping)
    return Compressed(
        ratio=ratio,
        overlap=overlap,
        capacity=capacity,
        cu_seqlens=(0, *accumulate(counts)),
        seq_to_rank_row=(*mapping, *[-1] * tail),
        rank_groups=tuple(tuple(groups) for groups in listed),
    )


@dataclass(frozen=True)
class IndexerSegments:
    """How one rank's rows meet the indexer: its own queries against whole sequences' keys.

    A segment per sequence, empty ones included, and a last one for the rank's rows that belong to
    no sequence, which has no keys.
    """

    cu_queries: tuple[int, ...]
    """Prefix sums of the rank's rows in each segment, `n + 2` numbers."""
    cu_keys: tuple[int, ...]
    """Prefix sums of the groups of each segment's sequence, `n + 2` numbers."""
    offsets: tuple[int, ...]
    """Place in its sequence of each segment's first row, `n + 1` numbers; 0 where there is none."""


def indexer_segments(layout: Layout, ratio: int, rank: int) -> IndexerSegments:
    """The segments of one rank's slice.

    Raises:
        ValueError: the ratio is 1 or less.
    """
    if ratio <= 1:
        raise ValueError("there is nothing to compress")
    rows = layout.rank_rows(rank)
    counts: list[int] = []
    offsets: list[int] = []
    for start, length in zip(layout.cu_seqlens, layout.lengths, strict=False):
        first = max(start, rows.start)
        counts.append(max(0, min(start + length, rows.stop) - first))
        offsets.append(first - start if counts[-1] else 0)
    groups = [length // ratio for length in layout.lengths]
    return IndexerSegments(
        cu_queries=(0, *accumulate((*counts, len(rows) - sum(counts)))),
        cu_keys=(0, *accumulate((*groups, 0))),
        offsets=(*offsets, 0),
    )


@dataclass(frozen=True)
class ReportedStep:
    """What the report says of a training step that failed."""

    samples: int
    """Sequences of the global batch. The means that the report gives with two decimals are sums
    over this many."""
    tokens: int
    """Of all samples together, before padding: the mean times the number of samples."""
    shortest: int
    longest: int
    microbatches: int


REPORTED_STEPS: Final = {
    "step-396": ReportedStep(32, 1_585_167, 25_834, 114_663, 7),
    "step-567": ReportedStep(32, 2_088_739, 25_193, 164_544, 10),
}
REPORT_CP_SIZE: Final = 32
REPORT_LOCAL_ROWS: Final = 8192
REPORT_ALIGNMENT: Final = 64
"""Rows that each sample is padded to a multiple of: two for each rank."""


def report_lengths(seed: int, step: str) -> tuple[int, ...]:
    """Lengths of the samples of one step, before padding, in the order in which they are packed.

    Their number, sum, minimum and maximum are those of the report. Packed one after the other, a
    new microbatch being begun when the next sample does not fit into the budget, they make as many
    microbatches as the report had.

    Args:
        seed: of the draw.
        step: a name in `REPORTED_STEPS`.

    Raises:
        KeyError: no such step.
    """
    stated = REPORTED_STEPS[step]
    rng = random.Random(f"{step}/{seed}")  # noqa: S311
    while True:
        lengths = _lengths_of(stated, rng)
        # Some draws can't be packed into that many, in whichever order; then another is made.
        for _ in range(200):
            rng.shuffle(lengths)
            if len(_pack(lengths)) == stated.microbatches:
                return tuple(lengths)


def report_microbatches(seed: int) -> dict[str, tuple[Layout, ...]]:
    """The microbatches of each reported step, every sample padded to `REPORT_ALIGNMENT` rows.

    A microbatch has no rows but those of its samples, so the ranks' number of rows differs from
    microbatch to microbatch, as it does in training without a fixed packed length.
    """
    return {
        step: tuple(
            Layout(f"{step} microbatch {number}", REPORT_CP_SIZE, sum(packed) // REPORT_CP_SIZE,
                   tuple(packed))
            for number, packed in enumerate(_pack(report_lengths(seed, step)))
        )
        for step in REPORTED_STEPS
    }  # fmt: skip


def _lengths_of(stated: ReportedStep, rng: random.Random) -> list[int]:
    """Random lengths with the stated statistics."""
    count = stated.samples - 2
    left = stated.tokens - stated.shortest - stated.longest
    weights = [rng.lognormvariate(0.0, 0.6) for _ in range(count)]

    def scaled(factor: float) -> list[int]:
        return [
            min(stated.longest, stated.shortest + int(factor * weight * stated.shortest))
            for weight in weights
        ]

    # The sum grows with the factor: come as near from below as the halving goes.
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(scaled(middle)) <= left else (low, middle)
    lengths = scaled(low)
    # What rounding left out, a row at a time, to those that have room.
    while sum(lengths) < left:
        for index in range(count):
            if sum(lengths) < left and lengths[index] < stated.longest:
                lengths[index] += 1
    return [stated.shortest, stated.longest, *lengths]


def _pack(lengths: Sequence[int]) -> list[list[int]]:
    """Padded lengths by microbatch, in order, none with more rows than the budget."""
    packed: list[list[int]] = [[]]
    for length in lengths:
        padded = -(-length // REPORT_ALIGNMENT) * REPORT_ALIGNMENT
        if sum(packed[-1]) + padded > REPORT_CP_SIZE * REPORT_LOCAL_ROWS:
            packed.append([])
        packed[-1].append(padded)
    return packed
