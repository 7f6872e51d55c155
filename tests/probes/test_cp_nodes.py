"""Ranks on two nodes of a real Slurm, where its programs are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import Cluster, cluster_or_skip

pytest.importorskip("torch", reason="no CPU build of torch is on offer on this machine")

JOB = """
import os, signal, sys
from pathlib import Path
from tests.probes import cp_jobs

folder = Path(sys.argv[1])


def kill(told):
    os.kill(told.facts["linger"][2]["pid"], signal.SIGABRT)


told = cp_jobs.launch(
    folder, "linger", cp_jobs.Nodes(count=2, ranks=2, slurm=True), on_facts=kill
)
print(sorted(told.facts["linger"]), told.fault)
"""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    with cluster_or_skip(nodes=2) as running:
        yield running


def test_ranks_of_two_nodes_are_watched_and_ended(two_nodes: Cluster, tmp_path: Path) -> None:
    from tests.probes.test_cp_group import gone

    done = subprocess.run(
        ["salloc", "-N2", "--ntasks=2", sys.executable, "-c", JOB, str(tmp_path)],
        env={**os.environ, **two_nodes.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = "[0, 1, 2, 3] Fault(rank=2, task='linger', step='stay'"
    assert said in done.stdout, (done.stdout, done.stderr)
    assert "rank 2, during stay: died from SIGABRT" in done.stdout
    assert gone(tmp_path)
