from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes import layouts
from probes.layouts import (
    NAMES,
    REPORTED_STEPS,
    Layout,
    compress,
    indexer_segments,
    make,
    report_lengths,
    report_microbatches,
)

sizes = {
    "seed": st.integers(0, 2**31),
    "cp_size": st.integers(4, 32),
    "local_rows": st.sampled_from([16, 100, 160, 257]),
}


@pytest.mark.parametrize("name", NAMES)
@given(**sizes, alignment=st.sampled_from([1, 4, 64]))
def test_every_layout_fits_and_repeats(
    name: str, seed: int, cp_size: int, local_rows: int, alignment: int
) -> None:
    if alignment > local_rows:
        return
    layout = make(name, seed=seed, cp_size=cp_size, local_rows=local_rows, alignment=alignment)
    again = make(name, seed=seed, cp_size=cp_size, local_rows=local_rows, alignment=alignment)
    assert layout == again
    assert layout.cu_seqlens[0] == 0
    assert len(layout.cu_seqlens) == len(layout.lengths) + 1
    assert 0 < layout.covered_rows <= layout.total_rows
    for rank in layout.telling_ranks():
        assert 0 <= rank < cp_size


@given(**sizes)
def test_each_name_says_what_a_layout_has(seed: int, cp_size: int, local_rows: int) -> None:
    def of(name: str) -> Layout:
        return make(name, seed=seed, cp_size=cp_size, local_rows=local_rows)

    last = cp_size - 1
    assert of("one-sequence").lengths == (cp_size * local_rows,)
    assert 0 in of("zero-lengths").lengths
    assert of("zero-lengths").lengths[0] == 0
    assert of("zero-lengths").lengths[-1] == 0
    assert of("spanning").max_seqlen > 2 * local_rows
    assert not any(of("no-whole-sequence").has_whole_sequence(rank) for rank in range(cp_size))
    assert all(of("no-whole-sequence").starts_inside_sequence(r) for r in range(1, cp_size))
    assert of("padding-rank").is_padding_rank(last)
    assert not of("padding-rank").is_padding_rank(0)
    tail = of("padding-tail")
    assert tail.covered_rows < tail.total_rows
    assert all(length % 2 for length in of("odd-lengths").lengths)
    assert any(0 < length < 4 for length in of("short-sequences").lengths)


def test_the_seed_and_the_name_both_count() -> None:
    one = make("ordinary", seed=1, cp_size=8, local_rows=256)
    assert make("ordinary", seed=2, cp_size=8, local_rows=256) != one
    assert make("padding-tail", seed=1, cp_size=8, local_rows=256).lengths != one.lengths


def test_lengths_of_a_seed_never_change() -> None:
    # Evidence names a seed; if this fails, the same seed has come to mean another batch.
    assert make("ordinary", seed=1, cp_size=4, local_rows=64).lengths[:5] == (
        3, 64, 7, 22, 3,
    )  # fmt: skip


def test_hundreds_of_sequences_at_the_real_size() -> None:
    layout = make("many-sequences", seed=3, cp_size=32, local_rows=8192)
    assert len(layout.lengths) > 200
    short = make("short-sequences", seed=3, cp_size=32, local_rows=8192)
    assert sum(length < 4 for length in short.lengths) >= 100
    assert len(short.lengths) < 500


def test_alignment_holds_for_all_but_the_last() -> None:
    layout = make("many-sequences", seed=3, cp_size=8, local_rows=1024, alignment=64)
    assert all(length % 64 == 0 for length in layout.lengths[:-1])


def test_telling_ranks_of_a_batch_with_padding() -> None:
    layout = make("padding-rank", seed=5, cp_size=16, local_rows=128)
    kinds = layout.telling_ranks()
    assert kinds[0] == "first"
    assert "only padding" in kinds.values()
    assert "padding begins" in kinds.values()
    assert 15 in kinds


def test_a_layout_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Layout("x", 4, 16, (65,))
    with pytest.raises(ValueError, match="four ranks"):
        make("ordinary", seed=1, cp_size=2, local_rows=64)


@pytest.mark.parametrize("name", NAMES)
@given(**sizes, ratio=st.sampled_from([4, 128]))
def test_the_compressed_layout_is_the_arithmetic_one(
    name: str, seed: int, cp_size: int, local_rows: int, ratio: int
) -> None:
    """The same map by closed formulas instead of by listing."""
    layout = make(name, seed=seed, cp_size=cp_size, local_rows=local_rows)
    overlap = 8 if ratio == 4 else ratio
    if local_rows < overlap:
        with pytest.raises(ValueError, match="shorter than the overlap"):
            compress(layout, ratio)
        return
    made = compress(layout, ratio)
    cu, rows = layout.cu_seqlens, local_rows
    step = 32 // math.gcd(32, ratio)
    assert made.capacity == math.ceil(max(1, (rows + overlap) // ratio) / step) * step
    assert len(made.seq_to_rank_row) == layout.total_rows // ratio

    def first_logical(rank: int) -> int:
        sequence = next(s for s in range(len(layout.lengths)) if cu[s + 1] > rank * rows)
        skipped = max(0, rank * rows - overlap - cu[sequence])
        return made.cu_seqlens[sequence] + -(-skipped // ratio)

    firsts: dict[int, int] = {}
    for sequence, length in enumerate(layout.lengths):
        assert made.cu_seqlens[sequence + 1] - made.cu_seqlens[sequence] == length // ratio
        for group in range(length // ratio):
            owner = (cu[sequence] + (group + 1) * ratio - 1) // rows
            if owner not in firsts:
                firsts[owner] = first_logical(owner)
            logical = made.cu_seqlens[sequence] + group
            slot = logical - firsts[owner]
            assert 0 <= slot < made.capacity
            assert made.seq_to_rank_row[logical] == owner * made.capacity + slot
            assert made.rank_groups[owner][slot] == (sequence, group)
    assert set(made.seq_to_rank_row[made.cu_seqlens[-1] :]) <= {-1}
    assert all(len(groups) <= made.capacity for groups in made.rank_groups)


def test_an_example_by_hand() -> None:
    # Two ranks' worth of eight rows: A has 6 rows and one group, B has 9 rows and two groups, the
    # first of which ends in rank 1 (rows 6-9), so all three ranks' rows are easy to see.
    layout = Layout("by hand", 4, 8, (6, 9, 0, 1))
    made = compress(layout, 4)
    assert made.capacity == 8
    assert made.cu_seqlens == (0, 1, 3, 3, 3)
    assert made.seq_to_rank_row == (0, 8, 9, -1, -1, -1, -1, -1)
    assert made.rank_groups[:2] == (((0, 0),), ((1, 0), (1, 1)))


def test_real_size_capacities() -> None:
    layout = make("ordinary", seed=1, cp_size=32, local_rows=8192)
    assert compress(layout, 4).capacity == 2056
    assert compress(layout, 128).capacity == 65


def test_no_ratio_is_no_compressed_layout() -> None:
    with pytest.raises(ValueError, match="nothing to compress"):
        compress(make("ordinary", seed=1, cp_size=4, local_rows=64), 1)


def test_models() -> None:
    flash = layouts.MODELS["dsv4-flash"]
    assert (flash.heads, flash.head_dim, flash.window, flash.top_k) == (64, 512, 128, 512)
    assert flash.softmax_scale == pytest.approx(512**-0.5)


@given(**sizes)
def test_only_short_sequences_leave_the_long_ratio_nothing(
    seed: int, cp_size: int, local_rows: int
) -> None:
    layout = make("only-short", seed=seed, cp_size=cp_size, local_rows=local_rows)
    assert 4 <= layout.max_seqlen < 128
    assert layout.covered_rows <= local_rows
    assert layout.is_padding_rank(1)
    if local_rows >= 128:
        assert compress(layout, 128).cu_seqlens[-1] == 0


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(**sizes, ratio=st.sampled_from([4, 128]))
def test_indexer_segments_put_every_row_where_it_is(
    name: str, seed: int, cp_size: int, local_rows: int, ratio: int
) -> None:
    """Each row of a rank, found through its segment, is at its place in its own sequence."""
    layout = make(name, seed=seed, cp_size=cp_size, local_rows=local_rows)
    for rank in layout.telling_ranks():
        segments = indexer_segments(layout, ratio, rank)
        count = len(layout.lengths)
        assert len(segments.offsets) == count + 1
        assert len(segments.cu_queries) == len(segments.cu_keys) == count + 2
        assert segments.cu_queries[0] == 0
        assert segments.cu_queries[-1] == local_rows
        assert segments.cu_keys[-1] == segments.cu_keys[-2]
        for sequence, length in enumerate(layout.lengths):
            keys = segments.cu_keys[sequence + 1] - segments.cu_keys[sequence]
            assert keys == length // ratio
        for local, row in enumerate(layout.rank_rows(rank)):
            segment = next(
                index for index in range(count + 1)
                if segments.cu_queries[index] <= local < segments.cu_queries[index + 1]
            )  # fmt: skip
            own = layout.sequence_of(row)
            assert segment == (count if own is None else own)
            if own is not None:
                place = segments.offsets[segment] + local - segments.cu_queries[segment]
                assert place == row - layout.cu_seqlens[own]


def test_segments_of_a_rank_by_hand() -> None:
    # Sequences of 6, 9, 0 and 1 rows over ranks of 8: rank 1 has the last 7 of B, and D.
    segments = indexer_segments(Layout("by hand", 4, 8, (6, 9, 0, 1)), 4, 1)
    assert segments.cu_queries == (0, 0, 7, 7, 8, 8)
    assert segments.cu_keys == (0, 1, 3, 3, 3, 3)
    assert segments.offsets == (0, 2, 0, 0, 0)


@pytest.mark.parametrize("step", REPORTED_STEPS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**31))
def test_reported_statistics_are_met_exactly(step: str, seed: int) -> None:
    stated, lengths = REPORTED_STEPS[step], report_lengths(seed, step)
    assert len(lengths) == stated.samples
    assert (sum(lengths), min(lengths), max(lengths)) == (
        stated.tokens, stated.shortest, stated.longest,
    )  # fmt: skip
    packs = report_microbatches(seed)[step]
    assert len(packs) == stated.microbatches
    padded = [length for layout in packs for length in layout.lengths]
    assert padded == [math.ceil(length / 64) * 64 for length in lengths]
    for layout, following in zip(packs, [*packs[1:], None], strict=True):
        assert layout.cp_size == 32
        assert layout.local_rows <= 8192
        assert layout.covered_rows == layout.total_rows
        if following is not None:  # it was begun because its first sample did not fit
            assert layout.total_rows + following.lengths[0] > 262_144


def test_reported_means_are_those_of_the_report() -> None:
    means = {step: round(told.tokens / told.samples, 2) for step, told in REPORTED_STEPS.items()}
    assert means == {"step-396": 49_536.47, "step-567": 65_273.09}


def test_reported_microbatches_repeat_and_differ_by_seed() -> None:
    assert report_microbatches(5) == report_microbatches(5)
    assert report_microbatches(5) != report_microbatches(6)
    # Rows per rank and the longest sequence are what compile caches are keyed on.
    packs = [layout for packs in report_microbatches(5).values() for layout in packs]
    assert len({layout.local_rows for layout in packs}) > 10
    assert len({layout.max_seqlen for layout in packs}) > 10
