"""The counts of bytes and operations against counts by hand, and the probe against stand-ins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probes import layouts, timing
from probes.layouts import Layout
from probes.replay import Share
from probes.timing import Limits, Work, spread, work_of
from tests.probes.asking import Reply
from tests.probes.stand_ins import stand_ins

torch = pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

__all__ = ["stand_ins"]

CASES = ["indices:0:4", "indices:2:4", "compaction:4", "backward:128", "backward:4", "indexer:4"]


def ask(stand_ins: Any, options: dict[str, Any], **parameters: Any) -> Reply:
    few = {
        "cp_size": 4,
        "local_rows": 256,
        "rank": 1,
        "cases": CASES,
        "repeats": 5,
        "copy_megabytes": 2,
        "matrix": 64,
        "flush_megabytes": 1,
    }
    reply: Reply = stand_ins("timing", options, **{**few, **parameters})
    return reply


def test_every_kernel_is_timed_once(stand_ins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A stand-in does less than its kernel, so a clock and limits of our own.
    def clock(self: Any, call: Any) -> float:
        return 1e-3 if call() is not None else 1e-7

    monkeypatch.setattr(timing.Stopwatch, "_by_clock", clock)
    monkeypatch.setattr(timing, "measure_limits", lambda *arguments: Limits(1e9, 1e12))
    reply = ask(stand_ins, {})
    assert reply.end["status"] == "pass", reply.end
    assert list(reply.parts) == [
        "indices mode 0 ratio 4",
        "indices mode 2 ratio 4",
        "compaction forward ratio 4",
        "compaction backward ratio 4",
        "indices mode 1 ratio 128",
        "sparse backward ratio 128",
        "sparse backward ratio 4",
        "indexer scores ratio 4",
        "indexer top-k ratio 4",
    ]
    for part in reply.parts.values():
        measure = part["measure"]
        assert measure["median_s"] == 1e-3
        assert measure["spread_s"] == 0
        assert measure["repeats_count"] == 5
        least = max(measure["moved_bytes"] / 1e9, measure["flops_count"] / 1e12)
        assert measure["share_of_limit"] == pytest.approx(least / 1e-3, abs=1e-4)
    assert reply.parts["sparse backward ratio 4"]["measure"]["flops_count"] > 0
    assert reply.controls == {"a call that does nothing": True}


def test_the_limits_are_measured(stand_ins: Any) -> None:
    reply = ask(stand_ins, {}, cases=["compaction:4"])
    assert reply.measure["copy_bytes_per_s"] > 1e6
    assert reply.measure["matrix_bf16_flops_per_s"] > 1e5
    assert "share_of_limit" in reply.parts["compaction forward ratio 4"]["measure"]


def test_what_a_stack_lacks_is_skipped_for_itself(stand_ins: Any) -> None:
    reply = ask(stand_ins, {"old": True}, cases=["indexer:4", "compaction:4"])
    parts = {name: (part["status"], part["reason"]) for name, part in reply.parts.items()}
    assert parts["indexer:4"] == ("skip", "upstream:absent")
    assert "compaction backward ratio 4" in parts


def test_a_time_that_cannot_be_is_our_error(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Limits(1.0, 1.0)
    monkeypatch.setattr(timing, "measure_limits", lambda *arguments: slow)
    reply = ask(stand_ins, {}, cases=["indices:2:4"])
    assert (reply.end["status"], reply.end["reason"]) == ("error", "probe:ImpossibleTime")


def test_a_launch_error_is_the_upstreams(stand_ins: Any) -> None:
    reply = ask(stand_ins, {"raises": "indices"}, cases=["indices:2:4"])
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "cuda:unknown")


def test_the_least_time_is_the_longer_one() -> None:
    limits = Limits(copy_bytes_per_s=100.0, matrix_flops_per_s=1000.0)
    assert limits.least_s(Work(200, 1000)) == 2
    assert limits.least_s(Work(100, 5000)) == 5


def test_work_by_hand() -> None:
    layout = Layout("by hand", 4, 128, (300, 212))
    share = Share(layout, 2)
    model = layouts.MODELS["tiny"]
    replay: Any = SimpleNamespace(
        model=model, listed=(1000, 18), buffer_rows=lambda share, ratio: 150
    )
    table = torch.zeros((128, 24), dtype=torch.int32)
    lengths = torch.zeros(128, dtype=torch.int32)

    # 128 rows of 24 indices and one length are written; 8 chosen groups a row and twice three
    # prefix sums are read; four bytes each.
    found = work_of(replay, share, "indices mode 0 ratio 4", {"indices": table, "lengths": lengths})
    assert found == Work(4 * (128 * 24 + 128 + 128 * 8 + 6), 0)
    found = work_of(
        replay, share, "indices mode 1 ratio 128", {"indices": table, "lengths": lengths}
    )
    assert found == Work(4 * (128 * 24 + 128 + 6), 0)

    # Rank 2 owns rows 256 to 383. It lists the groups of 4 that start at 248 or later, of both
    # sequences: 62 to 74 of the first (tokens 248 to 299), and 0 to 20 of the second.
    compact = torch.zeros((136, 32), dtype=torch.bfloat16)
    found = work_of(replay, share, "compaction forward ratio 4", {"compact": compact})
    assert found == Work(2 * 136 * 32 + 2 * (13 + 21) * 4 * 32, 0)

    # 4 x 128 rows of 4 heads of 64, twice 150 rows of 64, two bytes each; 4 sums, 18 indices and a
    # length a row, four bytes each. Five products of 64 elements for 1000 pairs and 4 heads.
    found = work_of(replay, share, "sparse backward ratio 128", {})
    assert found == Work(
        2 * (4 * 128 * 4 * 64 + 2 * 150 * 64) + 4 * 128 * (4 + 18 + 1), 5 * 2 * 64 * 1000 * 4
    )
    # 128 rows of 2 heads of 8 and a weight each, and 128 keys of 8, two bytes each; four bytes a
    # score. For 700 pairs and two heads 8 products and sums, a weight and a sum.
    replay.visible = lambda share, ratio: torch.tensor([300, 400])
    scores = {"scores": torch.zeros((128, 75))}
    found = work_of(replay, share, "indexer scores ratio 4", scores)
    assert found == Work(4 * 128 * 75 + 2 * (128 * 2 * 9 + 128 * 8), 2 * 18 * 700)
    selected = {"selected": torch.zeros((128, 8), dtype=torch.int32)}
    found = work_of(replay, share, "indexer top-k ratio 4", selected)
    assert found == Work(4 * (128 * 8 + 700 + 128), 0)
    with pytest.raises(ValueError, match="no formula"):
        work_of(replay, share, "something ratio 4", {})


def test_the_spread_is_the_middle_half() -> None:
    assert spread([1, 2, 3, 4, 5, 6, 7]) == 4
