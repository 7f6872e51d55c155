"""A cell for readers: its verdict, with what its runs checked and a few of them in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matrix.judging.verdicts import CellVerdict
from matrix.keeping.records import Record
from matrix.site.published import CellView, Example, PartTally


def cell_view(cell: CellVerdict, records: Sequence[Record]) -> CellView:
    """A cell for readers, from its verdict and the records of its stack and probe."""
    by_run = {record.run.id: record for record in records}
    counted = [run for run in cell.runs if run.counted]
    failures = [run for run in counted if run.status == "fail"]
    examples: list[Example] = []
    for why, runs in (
        ("newest counted run", counted),
        ("newest failure", failures),
        ("newest run", cell.runs),
    ):
        if runs and runs[0].id not in {example.run for example in examples}:
            examples.append(_example(why, by_run[runs[0].id]))
    return CellView(
        **dict(cell),
        parts=_tallies([by_run[run.id] for run in counted]),
        examples=examples,
    )


def _example(why: str, record: Record) -> Example:
    return Example.model_validate(
        {
            "why": why,
            "run": record.run.id,
            "machine": record.machine.name,
            "started": record.run.started,
            "status": record.status,
            "reason": record.reason,
            "detail": record.detail,
            "parameters": record.probe.parameters,
            "measure": record.measure,
            "parts": record.parts,
            "control": record.control,
            "file": f"{record.machine.name}/{record.stack.id}/"
            f"{record.probe.id}--{record.run.id}.json",
        }
    )


def _tallies(counted: Sequence[Record]) -> list[PartTally]:
    tallies: dict[str, Counter[str]] = {}
    for record in counted:
        for part in record.parts:
            shown = part.status if part.status in ("pass", "fail") else "other"
            tallies.setdefault(part.name, Counter())[shown] += 1
    return [
        PartTally(name=name, passed=tally["pass"], failed=tally["fail"], other=tally["other"])
        for name, tally in tallies.items()
    ]
