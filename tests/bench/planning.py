"""Planning the widest campaign there is: pairs out of a million stacks."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tests.bench.measured import Measured, command
from tests.worlds import REPOSITORY


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Seconds and memory of `--plan`, on a copy of this project without evidence."""
    del asked
    root = folder / "project"
    for name in ("matrix/catalogue", "probes", "patches/candidates"):
        shutil.copytree(REPOSITORY / name, root / name)
    arguments = [sys.executable, "-m", "matrix", "--root", str(root), "run"]
    arguments += ["--campaign", "wide", "--plan"]
    command(arguments, folder=REPOSITORY)  # asks indexes once, and remembers what they offer
    took = command(arguments, folder=REPOSITORY)
    return [
        Measured("plan_pairwise_s", took.seconds, most=5.0),
        Measured("plan_pairwise_cpu_s", took.cpu_s),
        Measured("plan_pairwise_peak_mb", took.megabytes, most=500.0),
    ]
