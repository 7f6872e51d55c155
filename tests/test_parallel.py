"""Work shared between processes: same results in the same order, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from matrix.parallel import in_processes
from tests.worlds import REPOSITORY


def test_results_are_those_of_map_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    factor = 3  # forks see what the caller sees

    made = list(in_processes(lambda item: (item * factor, os.getpid()), range(100)))

    assert [number for number, _ in made] == [item * 3 for item in range(100)]
    assert os.getpid() not in {process for _, process in made}


def test_one_processor_needs_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})

    assert set(in_processes(lambda _: os.getpid(), [1, 2])) == {os.getpid()}


def test_what_goes_wrong_in_a_process_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    def fails(item: int) -> int:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):
        list(in_processes(fails, [1, 2, 3]))


def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = f"""
import os, time
from pathlib import Path
os.sched_getaffinity = lambda _: {{0, 1}}
from matrix.parallel import in_processes
def work(item):
    Path({str(tmp_path)!r}, str(os.getpid())).touch()
    time.sleep(600)
list(in_processes(work, [1, 2]))
"""
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    children = [int(path.name) for path in tmp_path.iterdir()]
    assert len(children) == 2

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    while any(_alive(child) for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_alive(child) for child in children)


def _alive(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"
