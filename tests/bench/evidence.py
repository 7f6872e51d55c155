"""Loading, planning on, judging and rendering a great deal of evidence."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from matrix.keeping.ledger import Ledger
from matrix.rooms import Rooms
from tests.bench.measured import Measured, command, timed
from tests.many import write_many
from tests.worlds import REPOSITORY, make_world


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Seconds of each, with the evidence of one tiny world multiplied."""
    world = make_world(folder)
    world.run()
    (template,) = world.records("sum")
    shutil.rmtree(world.rooms.evidence)
    world.rooms.evidence.mkdir()
    lock = template["stack"]["lock"]
    write_many(world.rooms.evidence, template, count=asked.records)
    assert lock
    rooms = Rooms(world.root)
    first = timed(lambda: Ledger(rooms))
    again = timed(lambda: Ledger(rooms))
    plan_s, plan_mb = command(world.command("--plan"), folder=REPOSITORY)
    found = [
        Measured("records_count", asked.records),
        Measured("first_load_s", first),
        Measured("load_again_s", again),
        Measured("plan_warm_s", plan_s, most=3.0 if asked.records <= 100_000 else None),
        Measured("plan_peak_mb", plan_mb),
    ]
    shutil.copytree(REPOSITORY / "docs", world.root / "docs", dirs_exist_ok=True)
    render = [sys.executable, "-m", "matrix", "--root", str(world.root), "render"]
    render_s, render_mb = command(render, folder=REPOSITORY)
    return [
        *found,
        Measured("judge_and_render_s", render_s, most=60.0),
        Measured("render_peak_mb", render_mb),
    ]
