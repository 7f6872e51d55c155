"""The project's probe of two GPUs, as it is planned on machines that have fewer and as many."""

from __future__ import annotations

from typing import Any, cast

import pytest

from matrix.building.machine import Gpu
from matrix.commands.cli import ROOT
from matrix.components import load_components
from matrix.planning.campaigns import load_campaign
from matrix.planning.plan import blocked
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.stacks import Stack

REPORTED = Stack(
    {
        "torch": "2.11.0",
        "nvidia-cudnn-frontend": "1.26.0",
        "nvidia-cutlass-dsl": "4.5.2",
        "megatron-core": "0e6ac576fba8995fca541ceb6af5f35eb0e4f16e",
    }
)


def gpus(*devices: str, name: str = "NVIDIA H200") -> list[Gpu]:
    return [Gpu(name, "sm90", "580.1", "13.0", device) for device in devices]


@pytest.mark.parametrize(
    ("here", "reason"),
    [
        ([], "machine:no-gpu"),
        (gpus("0"), "machine:too-few-gpus"),
        # A record names one kind of GPU.
        ([*gpus("0"), *gpus("1", name="NVIDIA H100")], "machine:too-few-gpus"),
        (gpus("0", "1"), None),
    ],
)
@pytest.mark.parametrize("probe", ["mechanism-devices", "cp-group"])
def test_it_is_run_where_two_gpus_are(here: list[Gpu], reason: str | None, probe: str) -> None:
    specs = load_probe_specs(Rooms(ROOT))
    setup = cast("Any", object())  # of a stack that can be built, whatever that takes

    found = blocked(REPORTED, specs[probe], setup, here, {})
    assert (None if found is None else found[0]) == reason
    # What it stands beside needs one.
    other = blocked(REPORTED, specs["mechanism-first-call"], setup, here, {})
    assert (other is None) == bool(here)


def test_campaigns_that_ask_how_errors_arise_ask_it() -> None:
    rooms = Rooms(ROOT)
    components, specs = load_components(rooms), load_probe_specs(rooms)
    for file in rooms.campaigns.glob("*.toml"):
        probes = load_campaign(rooms, file.stem, components, specs).probes
        assert ("mechanism-devices" in probes) == ("mechanism-exhaustion" in probes), file.stem
    assert not specs["mechanism-devices"].required


@pytest.mark.parametrize("name", ["default", "around-reported", "candidates", "upstreams"])
def test_campaigns_about_versions_ask_for_a_group_of_gpus(name: str) -> None:
    rooms = Rooms(ROOT)
    components, specs = load_components(rooms), load_probe_specs(rooms)
    assert "cp-group" in load_campaign(rooms, name, components, specs).probes
    assert not specs["cp-group"].required
    assert specs["cp-group"].all_gpus
