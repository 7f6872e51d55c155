"""Whether chance alone explains where a failure that comes and goes was seen."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.judging.chance import all_among


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_it_is_the_share_of_all_ways_to_deal_the_failures_out(
    failures: int, clean: int, others: int
) -> None:
    runs = failures + clean
    everyone = range(runs + others)
    dealt = list(combinations(everyone, failures))

    within = sum(all(one < runs for one in ones) for ones in dealt)

    assert all_among(failures, runs, others) == pytest.approx(within / len(dealt))


@pytest.mark.parametrize("counts", [(3, 2, 1), (-1, 2, 1), (1, 2, -1)])
def test_impossible_counts_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="are impossible"):
        all_among(*counts)


def test_many_runs_are_no_trouble() -> None:
    assert all_among(20_000, 40_000, 60_000) == 0.0
    assert all_among(0, 10_000, 10_000) == 1.0
