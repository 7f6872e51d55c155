"""The arithmetic of slopes against known lines; the probe against stand-ins that keep things."""

from __future__ import annotations

import random
from typing import Any

import pytest

from probes import process_facts
from probes.growth import Look, Room, slope, slopes
from probes.process_facts import Holdings
from tests.probes.asking import Reply
from tests.probes.stand_ins import stand_ins

__all__ = ["stand_ins"]


def test_a_line_has_its_slope_and_no_spread() -> None:
    found = slope([(x, 5 + 3 * x) for x in range(7)])
    assert found.value == pytest.approx(3)
    assert found.spread == pytest.approx(0, abs=1e-9)
    assert found.certain == pytest.approx(3)


def test_the_spread_is_that_of_repeated_draws() -> None:
    rng = random.Random(5)  # noqa: S311
    found = [slope([(x, 2 * x + rng.gauss(0, 1)) for x in range(10)]) for _ in range(2000)]
    mean = sum(each.value for each in found) / len(found)
    deviation = (sum((each.value - mean) ** 2 for each in found) / len(found)) ** 0.5
    assert mean == pytest.approx(2, abs=0.02)
    spread = sum(each.spread**2 for each in found) / len(found)
    assert spread**0.5 == pytest.approx(deviation, rel=0.1)
    assert sum(abs(each.value - 2) < 3 * each.spread for each in found) > 1900


def test_noise_without_a_slope_is_no_certain_growth() -> None:
    assert slope([(0, 1), (1, 4), (2, 2), (3, 3), (4, 2)]).certain == 0
    assert slope([(0, 5), (1, 4), (2, 3), (3, 2)]).certain == 0


@pytest.mark.parametrize("points", [[], [(0, 1), (1, 2)], [(1, 1), (1, 2), (1, 3)]])
def test_too_little_for_a_slope(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="point"):
        slope(points)


def test_the_first_limit_counts() -> None:
    room = Room({"mappings": 60_000.0, "resident_bytes": 1e9, "descriptors": None})
    per_step = {"mappings": 120.0, "resident_bytes": 1e6, "descriptors": 5.0, "device_bytes": 9.0}
    assert room.first(per_step) == ("mappings", 500)
    assert room.first({"mappings": 0.0, "descriptors": 1.0}) is None


def test_a_kind_that_nobody_can_look_at_is_left_out() -> None:
    looks = [Look(done, Holdings(100 * done, 7, 3, None)) for done in range(4)]
    assert set(slopes(looks)) == {"resident_bytes", "mappings", "descriptors"}


def test_what_a_process_holds() -> None:
    import mmap
    import os

    before = process_facts.look()
    held = [mmap.mmap(-1, 4096) for _ in range(20)]
    file = os.open(os.devnull, os.O_RDONLY)
    after = process_facts.look()
    os.close(file)
    for each in held:
        each.close()
    assert after.mappings - before.mappings >= 20
    assert after.descriptors - before.descriptors == 1
    assert before.resident_bytes > 1 << 20
    assert before.device_bytes is None
    limit = process_facts.mapping_limit()
    assert limit is None or limit > before.mappings
    left = process_facts.memory_left()
    assert left is None or left > 0


def ask(stand_ins: Any, options: dict[str, Any], **parameters: Any) -> Reply:
    pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")
    few = {
        "cp_size": 4,
        "local_rows": 128,
        "cases": ["indices:1:0", "compaction:4"],
        "same_steps": 5,
        "new_shapes": 5,
        "left_out": 1,
    }
    reply: Reply = stand_ins("growth", options, **{**few, **parameters})
    return reply


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    # With torch loaded, each collection takes half a second, and stand-ins leave no rubbish.
    monkeypatch.setattr("gc.collect", lambda: 0)


STEP, COMPILATION = "kept of a step without new shapes", "kept of a compilation"


def test_software_that_keeps_little_passes(stand_ins: Any) -> None:
    reply = ask(stand_ins, {}, steps_wanted=10)
    assert reply.end["status"] == "pass", reply.end
    assert reply.parts[COMPILATION]["measure"].keys() == {"compiles_per_microbatch_count", "part_s"}
    assert reply.parts[COMPILATION]["measure"]["compiles_per_microbatch_count"] == 0
    assert set(reply.controls.values()) == {True}
    assert reply.measure["mappings_count"] > 0
    assert reply.parts[STEP]["measure"]["looks_count"] == 4


def test_mappings_kept_of_each_compilation_are_found(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "mapping_limit", lambda: 65_530)
    reply = ask(stand_ins, {"by_shape": True, "keeps": 5})
    assert (reply.end["status"], reply.end["reason"]) == ("fail", "growth")
    measure = reply.parts[COMPILATION]["measure"]
    assert measure["compiles_per_microbatch_count"] == 3
    assert 4.5 < measure["mappings_per_compile"] < 6
    # Some 65,000 mappings are left, and a step of 7 microbatches keeps 3 x 5 x 7 = 105.
    assert 400 < measure["mappings_limit_at_7_microbatches_step"] < 700
    assert reply.parts[COMPILATION]["detail"].startswith("with new shapes in each of 7")
    assert reply.parts[STEP]["status"] == "pass"


def test_what_is_found_is_no_failure_when_the_training_is_over_by_then(
    stand_ins: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_facts, "mapping_limit", lambda: 65_530)
    reply = ask(stand_ins, {"by_shape": True, "keeps": 5}, steps_wanted=50)
    assert reply.end["status"] == "pass", reply.end


def test_a_compilation_in_a_repeated_step_is_found(stand_ins: Any) -> None:
    reply = ask(stand_ins, {"always": True}, steps_wanted=10)
    assert reply.parts[STEP]["reason"] == "recompiles"
    assert "step 0 compiled" in reply.parts[STEP]["detail"]
