"""A great many evidence records, made quickly for measurements: real in form, and about nothing."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

from matrix.stacks import stack_id


def write_many(
    evidence: Path, template: dict[str, Any], *, count: int, per_stack: int = 100
) -> None:
    """Write records that differ in stack, probe and time.

    Args:
        evidence: the evidence folder.
        template: a whole record, which the others are like.
        count: how many records.
        per_stack: how many of them belong to one stack.
    """
    machine = template["machine"]["name"]
    begun = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for number in range(count):
        requested = {**template["stack"]["requested"], "nvidia-cudnn": f"9.{number // per_stack}.0"}
        id_ = stack_id(requested)
        when = begun + dt.timedelta(seconds=number)
        run = f"{when:%Y%m%dT%H%M%SZ}-{number:08x}"
        probe = f"probe-{number % 20}"
        record = {
            **template,
            "run": {"id": run, "seconds": 1.0, "started": f"{when:%Y-%m-%dT%H:%M:%SZ}"},
            "stack": {**template["stack"], "id": id_, "requested": requested, "loaded": {}},
            "probe": {**template["probe"], "id": probe},
        }
        folder = evidence / machine / id_
        if number % per_stack == 0:
            folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / f"{probe}--{run}.json").write_text(text, encoding="utf-8")
