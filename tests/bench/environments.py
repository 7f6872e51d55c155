"""Building environments that differ in one package, against `python -m venv` with pip."""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
from pathlib import Path

from matrix.building.here import Here, Setup
from matrix.building.holds import always
from matrix.building.interpreters import Interpreter
from matrix.building.preparing import Ready, prepare
from matrix.components import load_components
from matrix.planning.campaigns import load_campaign
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.settings import Settings
from matrix.stacks import Stack
from tests.bench.measured import Measured, timed
from tests.worlds import REPOSITORY


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Seconds of one warm environment both ways: packages are downloaded and versions resolved.

    Of ours the first is left out, because it compiles what the later ones take over; pip makes two,
    and the first fills its cache.
    """
    rooms = Rooms(folder)
    shutil.copytree(REPOSITORY / "probes", rooms.probes)
    real = Rooms(REPOSITORY)
    components = load_components(real)
    campaign = load_campaign(real, "around-reported", components, load_probe_specs(real))
    here = Here(rooms=rooms, components=components, settings=Settings(), gpu=None, python=None)
    interpreter = here.interpreter
    assert isinstance(interpreter, Interpreter)
    wanted = []
    for entry in campaign.stacks[: asked.environments]:
        stack, setup = here.stack(campaign.requested(entry), entry.name)
        if setup is not None:
            wanted.append((stack, setup))

    def build(stack: Stack, setup: Setup) -> Ready:
        return prepare(
            stack,
            setup,
            sources={},
            components=components,
            rooms=rooms,
            doing=lambda text: None,
            give_up=lambda text: None,
            going_on=always,
        )

    for stack, setup in wanted:
        build(stack, setup)  # downloads, and resolves
    shutil.rmtree(rooms.environments)
    seconds = [timed(lambda pair=pair: build(*pair)) for pair in wanted]
    lock = folder / "lock.txt"
    lock.write_text(build(*wanted[-1]).resolution.lock, encoding="utf-8")
    with_pip = [timed(lambda n=n: _pip(folder / f"pip-{n}", interpreter, lock)) for n in range(2)]
    warm = statistics.median(seconds[1:])
    return [
        Measured("environments_count", len(seconds)),
        Measured("first_environment_s", seconds[0]),
        Measured("environment_s", warm, most=5.0, note="the median of the others"),
        Measured("venv_with_pip_s", with_pip[-1], note="its cache filled"),
        Measured("times_faster", with_pip[-1] / warm, least=10.0),
    ]


def _pip(folder: Path, interpreter: Interpreter, lock: Path) -> None:
    """The obvious way: a virtual environment, and pip with the same lock."""
    subprocess.run([interpreter.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "pip", "install", "--quiet", "--no-deps", "--requirement", lock]
    subprocess.run([str(part) for part in install], check=True, capture_output=True)
