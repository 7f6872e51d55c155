"""How the share of a campaign in which a probe ran is read from its events."""

from __future__ import annotations

import datetime as dt

import pytest

from matrix.reporting.events import CampaignBegan, CampaignEnded, Event, RunBegan, RunEnded
from tests.bench.throughput import busy_share


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 12, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def began(second: int, probe: str) -> RunBegan:
    return RunBegan(time=at(second), stack_id="0" * 12, stack_name="one", probe=probe, gpu="GPU 0")


def ended(second: int, probe: str) -> RunEnded:
    return RunEnded(
        time=at(second),
        stack_id="0" * 12,
        stack_name="one",
        probe=probe,
        status="pass",
        reason=None,
        detail=None,
        seconds=1.0,
        gpu="GPU 0",
        run="run",
        path="path",
    )


START = CampaignBegan(
    time=at(0), campaign="default", machine="one", gpu="GPU", to_run=2, done=0, not_here=0
)
END = CampaignEnded(time=at(10), runs=2, unfinished=[], interrupted=False)


def test_runs_beside_each_other_count_once() -> None:
    runs: list[Event] = [began(1, "a"), began(2, "b"), ended(4, "a"), ended(5, "b")]

    assert busy_share([START, *runs, END]) == pytest.approx(0.4)


def test_what_was_kept_without_a_process_took_no_time() -> None:
    runs: list[Event] = [ended(3, "gate"), began(4, "a"), ended(9, "a")]

    assert busy_share([START, *runs, END]) == pytest.approx(0.5)


def test_a_campaign_without_an_end() -> None:
    with pytest.raises(ValueError, match="no end"):
        busy_share([START, began(1, "a")])
