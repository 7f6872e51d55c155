"""A campaign killed at any moment goes on where it stopped: nothing lost, doubled or torn."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from matrix.keeping.store import Store
from matrix.rooms import Rooms
from tests.worlds import REPOSITORY, World, make_world, probe_source

PROBES = 50
KILLS = 25  # for each of four orders of moments: a hundred
BODY = """
import time
time.sleep(0.02)
with probe.check('x') as check: check.expect(True, 'numerics', '')
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose environment is there, with many cells still to be run."""
    world = make_world(tmp_path_factory.mktemp("begun"))
    names = [f"step-{number}" for number in range(PROBES)]
    for name in names:
        world.probe(name, probe_source(name, BODY))
    world.campaign("fingerprint", *names)
    world.run("--probe", "fingerprint")
    return world


def copy_of(world: World, folder: Path) -> World:
    shutil.copytree(world.root, folder / "project", symlinks=True)
    return dataclasses.replace(world, root=folder / "project")


@pytest.fixture(scope="module")
def expected(begun: World, tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """What an undisturbed run leaves, without what differs between any two runs."""
    calm = copy_of(begun, tmp_path_factory.mktemp("calm"))
    assert calm.run().status == 0
    return essences(calm)


def start(world: World) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        world.command("--width", "2"),
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the whole group, as a machine that goes away does it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def essence(record: dict[str, Any]) -> tuple[Any, ...]:
    """What two runs of one cell have in common."""
    return (
        record["stack"]["id"],
        record["probe"]["id"],
        record["probe"]["revision"],
        record["status"],
        record["stack"]["lock"],
        [(part["name"], part["status"]) for part in record["parts"]],
    )


def essences(world: World) -> Counter[str]:
    """The evidence without the gate, which each campaign runs again."""
    records = world.records()
    return Counter(str(essence(r)) for r in records if r["probe"]["id"] != "fingerprint")


def kept(world: World) -> int:
    """How many records there are besides the gate's."""
    return sum(1 for _ in world.rooms.evidence.glob("*/*/step-*.json"))


def wait_for_a_record(world: World, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a campaign has kept a record; False where it ends without one."""
    before = kept(world)
    while kept(world) == before:
        if process.poll() is not None:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("seed", range(4))
def test_after_any_number_of_kills_the_evidence_is_that_of_an_undisturbed_run(
    begun: World, expected: Counter[str], tmp_path: Path, seed: int
) -> None:
    moments = random.Random(seed)  # noqa: S311 - a seed, so that a failure comes again
    disturbed = copy_of(begun, tmp_path / "disturbed")
    between = 0
    for _ in range(KILLS):
        process = start(disturbed)
        # Half of the moments lie before the first record, or about there; most of a short campaign
        # passes so. The others lie between records.
        if moments.random() < 0.5:
            time.sleep(moments.uniform(0.0, 2.5))
        else:
            came = wait_for_a_record(disturbed, process)
            time.sleep(moments.uniform(0.0, 0.3))
            between += came and kept(disturbed) < PROBES
        kill(process)
        for path, _ in Store(Rooms(disturbed.root)).records():
            assert path.is_file()  # every file there is whole, at every moment
    assert between > 3
    assert disturbed.run().status == 0

    found = essences(disturbed)
    assert found == expected
    assert found.total() == PROBES
    assert not list(disturbed.rooms.scratch.glob("*/*"))


def test_half_a_file_is_swept_when_it_is_old(begun: World, tmp_path: Path) -> None:
    world = copy_of(begun, tmp_path)
    folder = next(world.rooms.evidence.glob("*/*"))
    old, young = folder / ".step-1--x.json.0.tmp", folder / ".step-2--x.json.0.tmp"
    for path in (old, young):
        path.write_text('{"schema"')
    os.utime(old, (1, 1))

    assert world.run("--probe", "fingerprint", "--again").status == 0

    assert (old.exists(), young.exists()) == (False, True)
