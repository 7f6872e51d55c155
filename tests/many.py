"""A great many evidence records, made quickly for measurements: real in form, and about nothing."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

from matrix.keeping.store import lock_name
from matrix.probe_specs import load_probe_specs
from matrix.stacks import stack_id
from tests.worlds import World, make_world, probe_source

#: What records are of, so that a world can hold these probes; the last one fails in old versions.
PROBES = [f"probe-{number}" for number in range(20)]

_VARIED = ("nvidia-cudnn", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl")


def write_many(
    evidence: Path,
    template: dict[str, Any],
    *,
    lock: str,
    revisions: dict[str, str],
    count: int,
    per_stack: int = 100,
) -> None:
    """Write records that differ in stack, probe and time.

    Stacks are a grid over three components, as a campaign makes them: most have neighbours that
    differ in one version. One probe fails below a version, so that there is something to explain.

    Args:
        evidence: the evidence folder.
        template: a whole passing record, which the others are like.
        lock: the text of its lock.
        revisions: of each of `PROBES`.
        count: how many records.
        per_stack: how many of them belong to one stack.
    """
    machine = template["machine"]["name"]
    begun = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    stacks = -(-count // per_stack)
    side = next(side for side in itertools.count(1) if side ** len(_VARIED) >= stacks)
    for number in range(count):
        place = number // per_stack
        versions = [place // side**axis % side for axis in range(len(_VARIED))]
        varied = {
            name: f"{9 - axis}.{version}.0"
            for axis, (name, version) in enumerate(zip(_VARIED, versions, strict=True))
        }
        requested = {**template["stack"]["requested"], **varied}
        id_ = stack_id(requested)
        when = begun + dt.timedelta(seconds=number)
        run = f"{when:%Y%m%dT%H%M%SZ}-{number:08x}"
        probe = PROBES[number % len(PROBES)]
        record = {
            **template,
            "run": {"id": run, "seconds": 1.0, "started": f"{when:%Y-%m-%dT%H:%M:%SZ}"},
            "stack": {**template["stack"], "id": id_, "requested": requested, "loaded": {}},
            "probe": {**template["probe"], "id": probe, "revision": revisions[probe]},
        }
        if probe == PROBES[-1] and versions[1] < side // 2:
            failed = {"status": "fail", "reason": "numerics", "detail": "wrong"}
            parts = [{**part, **failed} for part in template["parts"]]
            record = {**record, **failed, "parts": parts}
        folder = evidence / machine / id_
        if number % per_stack == 0:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / lock_name(template["stack"]["lock"])).write_text(lock, encoding="utf-8")
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / f"{probe}--{run}.json").write_text(text, encoding="utf-8")


def many_world(folder: Path, count: int) -> World:
    """A tiny world with that much evidence of `PROBES`."""
    world = make_world(folder)
    assert world.run().status == 0
    template = world.record("sum")
    (lock,) = world.rooms.evidence.glob("*/*/lock--*.txt")
    text = lock.read_text(encoding="utf-8")
    shutil.rmtree(world.rooms.evidence)
    world.rooms.evidence.mkdir()
    for name in PROBES:
        world.probe(name, probe_source(name, "probe.expect()"))
    specs = load_probe_specs(world.rooms)
    write_many(
        world.rooms.evidence,
        template,
        lock=text,
        revisions={name: specs[name].revision for name in PROBES},
        count=count,
    )
    return world
