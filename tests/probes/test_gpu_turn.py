from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from probes.gpu_turn import Turn
from tests.worlds import REPOSITORY

HOLDER = """
import sys, time
from pathlib import Path
from probes.gpu_turn import Turn
turn = Turn(Path(sys.argv[1]))
getattr(turn, sys.argv[2])()
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def held(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that shares the GPU, or has taken it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["share", "take"])
def test_who_takes_waits_until_all_others_are_done(tmp_path: Path, how: str) -> None:
    turn = Turn(tmp_path / "turn")
    waited: list[float] = []
    waiting = threading.Thread(target=lambda: waited.append(turn.take()))
    with held(tmp_path / "turn", how) as process:
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()

        process.kill()  # what a killed process held is free
        waiting.join(10)

    assert waited[0] > 0.3


def test_many_share(tmp_path: Path) -> None:
    with held(tmp_path / "turn", "share") as process:
        Turn(tmp_path / "turn").share()

        assert process.poll() is None


def test_what_was_given_back_can_be_taken(tmp_path: Path) -> None:
    first, second = Turn(tmp_path / "turn"), Turn(tmp_path / "turn")
    first.take()
    first.give_back()

    assert second.take() < 5


def test_without_a_file_it_is_free() -> None:
    turn = Turn(None)
    turn.share()

    assert turn.take() < 1
