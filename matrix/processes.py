"""Run a probe in a process group of its own, with a time limit, and keep what it said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

#: Variables that a probe process inherits. Everything else stays outside: tokens, cloud and SSH
#: settings, Python and pip settings of the host.
INHERITED = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "SSL_CERT_FILE",
)  # fmt: skip

ANSWER_LIMIT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Ended:
    """How a probe process ended."""

    answer: bytes
    """Its JSON lines, up to a limit."""
    log: str
    """The end of what it printed."""
    status: int | None
    """Exit status; negative for a signal; None when it could not be started."""
    timed_out: bool
    seconds: float


def clean_environment(scratch: Path, trees: list[Path]) -> dict[str, str]:
    """The environment of a probe process: a HOME and temporary folder of its own."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment.update(
        HOME=str(scratch),
        TMPDIR=str(scratch),
        XDG_CACHE_HOME=str(scratch / "cache"),
        # A git tree must stay as it was checked out: its hash is its identity.
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        # The driver explains a failing call where it can.
        CUDA_LOG_FILE="stderr",
    )
    if trees:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, trees))
    return environment


class Processes:
    """The probe processes of one campaign; all of them can be ended from another thread."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """End every running process, and start no other."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            kill_group(process)

    def run(
        self,
        command: list[str],
        *,
        request: dict[str, object],
        environment: dict[str, str],
        scratch: Path,
        log: Path,
        time_limit_s: float,
    ) -> Ended:
        """Run one probe to its end, its time limit, or an interruption.

        The whole process group is killed at the end, so that nothing a probe started outlives it.

        Raises:
            Stopped: the campaign was stopped; what the process showed is worth nothing.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        answer = scratch / "answer.jsonl"
        question = scratch / "request.json"
        question.write_text(json.dumps(request), encoding="utf-8")
        started = time.monotonic()
        with question.open("rb") as stdin, answer.open("wb") as stdout, log.open("wb") as stderr:
            try:
                with self._lock:
                    if self._stopped:
                        raise Stopped
                    process = subprocess.Popen(
                        command,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        cwd=scratch,
                        env=environment,
                        start_new_session=True,
                    )
                    self._running.add(process)
            except OSError as error:
                return Ended(b"", f"{error}", None, timed_out=False, seconds=0.0)
            timed_out = False
            try:
                process.wait(timeout=time_limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                kill_group(process)
                with self._lock:
                    self._running.discard(process)
        if self._stopped:
            raise Stopped
        return Ended(
            answer=_head(answer, ANSWER_LIMIT_BYTES),
            log=_tail(log, 65536),
            status=process.returncode,
            timed_out=timed_out,
            seconds=round(time.monotonic() - started, 3),
        )


class Stopped(Exception):
    """The campaign was stopped."""


def kill_group(process: subprocess.Popen[bytes], grace_s: float = 3.0) -> None:
    """End a process and everything in its group; first politely, then not."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 30.0)):
        if process.poll() is None:
            _signal_group(process.pid, number)
            try:
                process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                continue
    # The leader is gone; what it left behind in its group goes too.
    _signal_group(process.pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _head(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        return file.read(limit)


def _tail(path: Path, limit: int) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        return file.read().decode("utf-8", errors="replace")
