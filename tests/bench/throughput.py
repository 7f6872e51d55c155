"""The engine against the obvious way: a nox session for each cell, one after another.

Both put the same functional probes to the same stacks, in a copy of this project without evidence.
The engine goes first and has to build every environment; the obvious way finds them built, and
bytecode, mirrors and the machine's caches filled. So the ratio errs to its side. Its sessions do
what any start of a campaign does, the gate included; only functional cells are counted, for both.

The busy share is the time in which a probe's process ran, of the time between the plan and the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix.components import load_components
from matrix.planning.campaigns import load_campaign
from matrix.probe_specs import load_probe_specs
from matrix.reporting.events import (
    CampaignBegan,
    CampaignEnded,
    Event,
    RunBegan,
    RunEnded,
    read_event,
)
from matrix.rooms import Rooms
from tests.bench.measured import Measured, timed
from tests.worlds import REPOSITORY

_LEFT_BEHIND = (".git", ".nox", ".matrix", ".tools", ".*_cache", "__pycache__", "site", "evidence")


def measure(folder: Path, asked: argparse.Namespace) -> list[Measured]:
    """Cells per hour both ways, on this machine's GPU or, where there is none, on its processor."""
    root = folder / "project"
    shutil.copytree(REPOSITORY, root, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
    Rooms(root).evidence.mkdir()
    choice = ["--campaign", asked.campaign, *_choice(asked)]
    events: list[Event] = []
    engine_s = timed(lambda: events.extend(_session(root, [*choice, "--json"])))
    ran = [event for event in events if isinstance(event, RunEnded)]
    cells = [event for event in ran if event.probe not in _gates()]
    if not cells:
        raise SystemExit("throughput: no functional probe of the campaign can run here.")
    step = max(1, len(cells) // asked.sample)
    sample = cells[::step][: asked.sample]

    def obvious() -> None:
        for cell in sample:
            one = ["--stack", cell.stack_id, "--probe", cell.probe, "--again"]
            _session(root, ["--campaign", asked.campaign, *one])

    obvious_s = timed(obvious)
    if asked.keep is not None:
        shutil.copytree(Rooms(root).evidence, asked.keep, dirs_exist_ok=True)
    engine = 3600 * len(cells) / engine_s
    alone = 3600 * len(sample) / obvious_s
    # A share and a ratio of one machine's GPU; processors of a small machine are not to be shared.
    on_gpu = any(event.gpu for event in ran)
    stacks = len({cell.stack_id for cell in cells})
    return [
        Measured("stacks_count", stacks),
        Measured("cells_count", len(cells)),
        Measured("cells_per_hour", engine, note="environments built on the way"),
        Measured("sessions_count", len(sample)),
        Measured("cells_per_hour_one_by_one", alone, note="environments were there"),
        Measured("times_more", engine / alone, least=3.0 if on_gpu else None),
        Measured("busy_share", busy_share(events), least=0.9 if on_gpu else None),
    ]


def busy_share(events: Sequence[Event]) -> float:
    """Share of a campaign's time in which at least one probe's process was running."""
    running = 0
    busy = 0.0
    began = since = None
    for event in events:
        if isinstance(event, CampaignBegan):
            began = event.time
        elif isinstance(event, RunBegan):
            since = since if running else event.time
            running += 1
        elif isinstance(event, RunEnded) and running:
            running -= 1
            if not running and since is not None:
                busy += (event.time - since).total_seconds()
        elif isinstance(event, CampaignEnded) and began is not None:
            return busy / (event.time - began).total_seconds()
    raise ValueError("the campaign has no beginning or no end")


def _choice(asked: argparse.Namespace) -> list[str]:
    """Options that choose the functional probes, on the first stacks of the campaign."""
    rooms = Rooms(REPOSITORY)
    probes = load_probe_specs(rooms)
    campaign = load_campaign(rooms, asked.campaign, load_components(rooms), probes)
    names = [name for name in campaign.probes if probes[name].group in {"gate", "functional"}]
    stacks = [entry.name for entry in campaign.stacks[: asked.stacks]]
    return [
        *(word for name in names for word in ("--probe", name)),
        *(word for name in stacks for word in ("--stack", name)),
    ]


def _gates() -> set[str]:
    return {
        spec.id for spec in load_probe_specs(Rooms(REPOSITORY)).values() if spec.group == "gate"
    }


def _session(root: Path, arguments: list[str]) -> list[Event]:
    """One `nox -s matrix` in that folder; what it said as events, if it was asked for them."""
    done = subprocess.run(
        [sys.executable, "-m", "nox", "--session", "matrix", "--", *arguments],
        cwd=root,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    # 1 says that something could not be done, which is a result like others.
    if done.returncode not in {0, 1}:
        raise SystemExit(f"throughput: nox ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return [read_event(line) for line in done.stdout.splitlines() if line.startswith('{"')]
