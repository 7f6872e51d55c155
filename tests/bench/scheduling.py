"""What the engine adds to each cell: stub probes that do nothing, through the whole engine."""

from __future__ import annotations

import argparse
from pathlib import Path

from matrix.running.engine import default_width
from tests.bench.measured import Measured
from tests.running.test_engine import carry_out
from tests.worlds import make_world, probe_source

NOTHING = "with probe.check('x') as check: check.expect(True, 'numerics', '')"


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Overhead per cell, and how much of the time a probe was running."""
    world = make_world(folder)
    names = [f"stub-{number}" for number in range(asked.cells)]
    for name in names:
        world.probe(name, probe_source(name, NOTHING))
    world.campaign("fingerprint")
    carry_out(world, None)  # the environment is there
    world.campaign("fingerprint", *names)
    width = default_width()
    _, result = carry_out(world, None, width)
    seconds = [
        record["run"]["seconds"]
        for record in world.records()
        if record["probe"]["id"] != "fingerprint"
    ]
    overhead_s = (result.seconds * width - sum(seconds)) / len(seconds)
    return [
        Measured("cells_count", len(seconds)),
        Measured("cells_per_hour", 3600 * len(seconds) / result.seconds),
        Measured("overhead_per_cell_ms", 1000 * overhead_s, most=50, note=f"{width} at once"),
        Measured("busy_share", result.busy_s / result.seconds, least=0.9),
    ]
