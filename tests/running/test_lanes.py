"""Which lock a GPU's probes take turns by."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.building.machine import Gpu
from matrix.rooms import Rooms
from matrix.running.lanes import Lane


def gpu(device: str, uuid: str | None = None) -> Gpu:
    return Gpu("NVIDIA H200", "sm90", "580.1", "13.0", device, uuid)


def test_one_gpu_has_one_lock_however_it_is_shown(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path)

    by_number = Lane((gpu("0", "GPU-a"),)).turn(rooms)

    assert by_number == Lane((gpu("GPU-a", "GPU-a"),)).turn(rooms)
    assert by_number != Lane((gpu("0", "GPU-b"),)).turn(rooms)


def test_gpus_without_a_name_are_of_their_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane((gpu("0"),))
    monkeypatch.setattr("platform.node", lambda: "one/.node")
    here = lane.turn(Rooms(tmp_path))
    monkeypatch.setattr("platform.node", lambda: "another")

    assert here is not None
    assert here.parent == Rooms(tmp_path).cache
    assert here != lane.turn(Rooms(tmp_path))


def test_who_needs_several_holds_the_lock_of_each(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path)
    rooms.cache.mkdir()
    both = Lane((gpu("1", "GPU-b"), gpu("0", "GPU-a")))

    with both.alone(rooms):
        assert sorted(path.name for path in rooms.cache.iterdir()) == ["GPU-a.turn", "GPU-b.turn"]
    assert both.turn(rooms) is None
