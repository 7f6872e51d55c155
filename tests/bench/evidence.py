"""Loading, planning on, judging and rendering a great deal of evidence."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from matrix.keeping.ledger import Ledger
from matrix.probe_specs import gates_of, load_probe_specs
from matrix.rooms import Rooms
from matrix.site.publish import GENERATED_FILES, GENERATED_FOLDERS
from tests.bench.measured import Measured, command, timed
from tests.many import many_world
from tests.worlds import REPOSITORY


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Seconds of each, with the evidence of one tiny world multiplied.

    The limits are for a hundred thousand files on a machine that does nothing else. The processor's
    time, of all processes together, says how much of a missed one is the fault of a neighbour.
    """
    world = many_world(folder, asked.records)
    rooms = Rooms(world.root)
    gates = gates_of(load_probe_specs(rooms))
    first = timed(lambda: Ledger(rooms, gates))
    again = timed(lambda: Ledger(rooms, gates))
    plan = command(world.command("--plan"), folder=REPOSITORY)
    shutil.copytree(REPOSITORY / "docs", world.root / "docs", dirs_exist_ok=True)
    for name in (*GENERATED_FOLDERS, *GENERATED_FILES):
        made = rooms.docs / name
        shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
    render = [sys.executable, "-m", "matrix", "--root", str(world.root), "render"]
    cold = command(render, folder=REPOSITORY)
    warm = command(render, folder=REPOSITORY)
    return [
        Measured("records_count", asked.records),
        Measured("first_load_s", first),
        Measured("load_again_s", again),
        Measured("plan_warm_s", plan.seconds, most=3.0),
        Measured("plan_warm_cpu_s", plan.cpu_s),
        Measured("plan_peak_mb", plan.megabytes),
        Measured("judge_and_render_s", cold.seconds, most=60.0, note="no page was there"),
        Measured("judge_and_render_cpu_s", cold.cpu_s),
        Measured("render_again_s", warm.seconds, most=60.0, note="nothing is new"),
        Measured("render_again_cpu_s", warm.cpu_s),
        Measured("render_peak_mb", cold.megabytes),
    ]
