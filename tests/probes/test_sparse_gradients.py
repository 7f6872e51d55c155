"""What the comparison of gradients notices that no planted kernel fault shows alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

from probes.sparse_gradients import ROW_TOLERANCE, closeness  # noqa: E402 - it needs torch


def test_one_wrong_element_is_noticed_though_its_row_is_close() -> None:
    expected = torch.randn((4, 8, 512), generator=torch.Generator().manual_seed(1)).double()
    found = expected.clone()
    found[2, 3, 100] += 0.6

    judged = closeness(torch, found, expected)

    assert judged.worst_row <= ROW_TOLERANCE
    assert not judged.within


def test_rounding_to_bfloat16_is_within() -> None:
    expected = torch.randn((4, 8, 512), generator=torch.Generator().manual_seed(2)).double()

    assert closeness(torch, expected.to(torch.bfloat16), expected).within


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_none_is_noticed(bad: float) -> None:
    expected = torch.ones((2, 2, 4)).double()
    found = expected.clone()
    found[0, 0, 0] = bad

    assert not closeness(torch, found, expected).within
