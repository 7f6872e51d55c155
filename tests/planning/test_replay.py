"""A record is enough to run a run again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.worlds import REPOSITORY, Done, World, probe_source

DRAWS = """
import random
number = random.Random(probe.seed).random()
with probe.check('draw') as check:
    probe.load('nvidia-cudnn-frontend')
    check.measure['number'] = number
    check.expect(number >= 0, 'numerics', 'negative')
"""


def replay(world: World, evidence: Path, *arguments: str) -> Done:
    command = [sys.executable, "-m", "matrix", "--root", str(world.root), "probe", str(evidence)]
    command += ["--wheelhouse", str(world.wheels), "--machine", "tiny"]
    command += ["--source", f"megatron-core={world.upstream}", *arguments]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout + done.stderr)


def ran(world: World) -> Path:
    world.probe("draws", probe_source("draws", DRAWS))
    world.campaign("fingerprint", "draws")
    assert world.run().status == 0
    (path,) = world.rooms.evidence.glob("*/*/draws--*.json")
    return path


def test_the_same_seed_gives_the_same_numbers(world: World) -> None:
    done = replay(world, ran(world))

    assert done.status == 0, done.output
    assert "as recorded" in done.output
    first, second = world.records("draws")
    for record in (first, second):
        for part in record["parts"]:
            assert part["measure"].pop("part_s") >= 0
    assert first["parts"] == second["parts"]
    assert first["probe"] == second["probe"]
    assert first["stack"]["id"] == second["stack"]["id"]
    assert first["stack"]["lock"] == second["stack"]["lock"]


def test_what_came_out_otherwise_is_shown(world: World) -> None:
    path = ran(world)
    changed = DRAWS.replace("number >= 0", "number > 1")
    world.probe("draws", probe_source("draws", changed))

    done = replay(world, path)

    assert done.status == 0, done.output
    assert "the probe itself" in done.output
    assert "numerics" in done.output


def test_a_measure_that_came_out_otherwise_is_shown(world: World) -> None:
    path = ran(world)
    world.probe("draws", probe_source("draws", DRAWS.replace("= number", "= number + 1")))

    done = replay(world, path)

    assert done.status == 0, done.output
    assert "draw: number" in done.output


def test_a_stack_that_this_machine_can_not_have(world: World) -> None:
    path = ran(world)
    for wheel in world.wheels.glob("torch-*"):
        wheel.unlink()

    done = replay(world, path)

    assert done.status == 1
    assert "can't be repeated here" in done.output


def test_a_lock_that_is_gone_or_altered(world: World) -> None:
    path = ran(world)
    (lock,) = path.parent.glob("lock--*.txt")
    text = lock.read_text()
    lock.write_text(text + "# edited\n")
    assert "its hash differs" in replay(world, path).output
    lock.unlink()

    done = replay(world, path)

    assert done.status == 2
    assert "is not there" in done.output


def test_a_file_that_is_no_evidence(world: World, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")

    assert replay(world, tmp_path / "x.json").status == 2
    assert replay(world, tmp_path / "gone.json").status == 2
