"""Measure what users wait for, and print it beside what it should be.

    nox -s bench                          everything
    nox -s bench -- schedule evidence     some of it
    nox -s bench -- --records 10000       with fewer evidence files
    nox -s bench -- --json bench.json     and write the numbers

A number with a limit is checked against it, and the exit status is 1 when one is missed. Ratios are
of two ways measured in the same run, one after the other, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tests.bench import environments, evidence, planning, scheduling, throughput
from tests.bench.measured import Measured, show

BENCHMARKS: dict[str, Callable[[Path, argparse.Namespace], list[Measured]]] = {
    "planning": planning.measure,
    "scheduling": scheduling.measure,
    "evidence": evidence.measure,
    "environments": environments.measure,
    "throughput": throughput.measure,
}


def main() -> int:
    """Run the benchmarks that are asked for."""
    parser = argparse.ArgumentParser(prog="nox -s bench --", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--records", type=int, default=100_000, help="evidence files to load")
    parser.add_argument("--cells", type=int, default=500, help="stub cells to schedule")
    parser.add_argument("--environments", type=int, default=10, help="environments to build")
    parser.add_argument("--campaign", default="around-reported", help="campaign of the throughput")
    parser.add_argument("--stacks", type=int, default=8, help="of that campaign, the first ones")
    parser.add_argument("--sample", type=int, default=6, help="cells that get a session each")
    parser.add_argument("--keep", type=Path, help="folder for the evidence of the throughput")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    found: list[Measured] = []
    for name in asked.names or BENCHMARKS:
        click.echo(f"{name} ...")
        with tempfile.TemporaryDirectory(prefix=f"bench-{name}-") as folder:
            measured = BENCHMARKS[name](Path(folder), asked)
        for each in measured:
            click.echo(f"  {show(each)}")
        found += measured
    if asked.json is not None:
        data = {
            "python": platform.python_version(),
            "kernel": platform.release(),
            "measured": [vars(each) for each in found],
        }
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return int(any(each.missed for each in found))


if __name__ == "__main__":
    sys.exit(main())
