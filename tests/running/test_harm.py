"""A probe that does its worst, and a machine that lets us down: each for real."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.running import cell_runs as running
from tests.running.test_cell_runs import _alive, wait_for
from tests.running.test_engine import carry_out
from tests.worlds import REPOSITORY, World, probe_source

GOOD = "with probe.check('x') as check: check.expect(True, 'numerics', '')"


def test_a_probe_that_forks_and_hangs_is_ended_with_all_it_started(
    world: World, tmp_path: Path
) -> None:
    note = tmp_path / "pids"
    body = f"""
    import os, time
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()  # out of the process group
            if os.fork():
                os._exit(0)
            open({str(note)!r}, 'a').write(f'{{os.getpid()}}\\n')
            time.sleep(600)
    time.sleep(600)
    """
    world.probe("forker", probe_source("forker", body, limit=4))
    world.campaign("fingerprint", "forker", "sum")

    done = world.run()

    assert done.status == 0, done.output
    assert world.record("forker")["reason"] == "timeout"
    assert world.record("sum")["status"] == "pass"
    pids = [int(line) for line in note.read_text().split()]
    assert len(pids) == 3
    wait_for(lambda: not any(_alive(pid) for pid in pids), seconds=10)


def test_a_probe_that_ignores_being_asked_is_killed(world: World) -> None:
    body = """
    import signal, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(600)
    """
    world.probe("stubborn", probe_source("stubborn", body, limit=2))
    world.campaign("fingerprint", "stubborn")

    done = world.run()

    assert done.status == 0
    record = world.record("stubborn")
    assert (record["status"], record["reason"]) == ("fail", "timeout")
    assert record["run"]["seconds"] < 15


def test_a_full_disk_stops_with_one_clear_message_and_loses_nothing(world: World) -> None:
    """The evidence is on a small file system that a file of somebody else fills."""
    world.run()
    before = {path.name for path in world.rooms.evidence.rglob("*.json")}
    assert before
    place = world.rooms.evidence
    script = f"""
    set -e
    cp -r {place} {place}.kept
    mount -t tmpfs -o size=200k tmpfs {place}
    cp -r {place}.kept/. {place}/
    head -c 1M /dev/zero > {place}/filler || true
    {sys.executable} -m matrix --root {world.root} run --again --wheelhouse {world.wheels} \\
        --machine tiny --source megatron-core={world.upstream} && echo status 0 || echo status $?
    find {place} -name '*.json' -printf '%f\\n'
    """
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if "Operation not permitted" in done.stderr or "permission denied" in done.stderr.lower():
        pytest.skip("this system lets nobody mount a small file system of their own")

    assert "status 1" in done.stdout, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "No space left on device" in errors[0]
    assert "Nothing already written is lost" in errors[0]
    assert "Traceback" not in done.stderr
    assert before <= set(done.stdout.split())


def test_a_clock_that_jumps_back_neither_loses_nor_repeats_a_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.probe("other", probe_source("other", GOOD))
    world.campaign("fingerprint", "sum", "other")
    real = dt.datetime
    jumps = iter([0, -400, 3, -9000, 5, -2, 0, 0, 0, 0, 0, 0])

    class Jumping(real):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return real.now(tz) + dt.timedelta(days=next(jumps))

    monkeypatch.setattr(running.dt, "datetime", Jumping)
    carry_out(world, None)
    monkeypatch.undo()

    assert {record["status"] for record in world.records()} == {"pass"}
    assert sorted(record["probe"]["id"] for record in world.records()) == [
        "fingerprint", "other", "sum",
    ]  # fmt: skip
    assert all(record["run"]["seconds"] < 60 for record in world.records())

    _, again = carry_out(world, None)

    assert again.runs == 0, "what was done under a wrong clock is done"
