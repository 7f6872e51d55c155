"""Several nodes for one task: who gets them, and that the campaign itself runs on the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from matrix.commands.cli import ROOT
from matrix.probe_specs import ProbeSpec, load_probe_specs
from matrix.rooms import Rooms
from matrix.running import nodes
from matrix.running.isolation import network
from matrix.running.slurm_jobs import SlurmSettings, with_options
from tests.clusters import Cluster, cluster_or_skip
from tests.running.test_slurm import PASSES, finish, start
from tests.worlds import World, probe_source

SHOWN = {
    "SLURM_JOB_NUM_NODES": "4",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[0-3]",
    "NCCL_SOCKET_IFNAME": "ib0",
    "SLURM_JWT": "a secret",
}


@pytest.fixture(scope="module")
def specs() -> dict[str, ProbeSpec]:
    return load_probe_specs(Rooms(ROOT))


def test_only_a_probe_that_takes_all_gpus_may_use_all_nodes(specs: dict[str, ProbeSpec]) -> None:
    assert nodes.nodes_of(specs["cp-group"], SHOWN) == 4
    assert nodes.nodes_of(specs["streams"], SHOWN) == 1
    assert nodes.nodes_of(specs["cp-group"], {}) == 1
    assert nodes.variables(specs["streams"], SHOWN) == {}
    found = nodes.variables(specs["cp-group"], SHOWN)
    assert found == {name: value for name, value in SHOWN.items() if name != "SLURM_JWT"}
    assert nodes.variables(specs["cp-group"], {**SHOWN, "SLURM_JOB_NUM_NODES": "1"}) == {}


def test_the_record_says_that_nodes_talk_over_the_hosts_network(
    specs: dict[str, ProbeSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert nodes.reach(specs["cp-group"]) == "host"
    assert nodes.reach(specs["streams"]) == network().reach


def test_the_command_line_asks_for_nodes() -> None:
    assert with_options(SlurmSettings(), {"slurm_nodes": 2}).nodes == 2
    assert with_options(SlurmSettings(nodes=3), {}).nodes == 3


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    with cluster_or_skip(nodes=2) as running:
        yield running


def test_a_task_with_two_nodes_runs_its_campaign_once(
    world: World, tmp_path: Path, two_nodes: Cluster
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    body = f"import os\nopen({str(notes)!r} + '/' + str(os.getpid()), 'w').close()\n{PASSES}"
    world.probe("one", probe_source("one", body))
    world.campaign("fingerprint", "one")

    status, output = finish(start(world, two_nodes, "--slurm-nodes", "2"))

    assert status == 0, output
    records: list[Any] = world.records("one")
    assert len(records) == len(list(notes.iterdir())) >= 1
    assert {record["status"] for record in records} == {"pass"}
