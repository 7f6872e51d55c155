"""Run a probe in a process group of its own, with a time limit, and keep what it said."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from matrix.running import isolation
from probes.gpu_turn import LONGEST_WAIT_S, WAITING

#: Variables that a probe process inherits. Everything else stays outside: tokens, cloud and SSH
#: settings, Python and pip settings of the host.
INHERITED = (
    "PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "SSL_CERT_FILE",
)  # fmt: skip

ANSWER_LIMIT_BYTES = 16 * 2**20
_TICK_S = 0.25
_WATCH_S = 0.5
_MOST_ROUNDS = 200
_LAST_BYTES = 1024
CAMPAIGN_VARIABLE = "MATRIX_CAMPAIGN"


@dataclass(frozen=True)
class Ended:
    """How a probe process ended."""

    answer: bytes
    """Its JSON lines, up to a limit."""
    log: str
    """The end of what it printed."""
    status: int | None
    """Exit status; negative for a signal; None when it could not be started, or not be killed."""
    timed_out: bool
    seconds: float
    excess: str | None = None
    """Why it was ended before its time, if it used too much of the machine."""


def clean_environment(scratch: Path, campaign: str, bytecode: Path) -> dict[str, str]:
    """The environment of a probe process: a HOME and temporary folder of its own.

    Git trees are not on PYTHONPATH: the runner puts them on the path once its own modules are
    loaded, so that a file of a tree can't stand in for one of the standard library's.

    Args:
        scratch: the process's own folder.
        campaign: marks what this campaign started, so that a later one can end what is left.
        bytecode: the only place where Python looks for compiled modules.
    """
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment.update(
        HOME=str(scratch),
        TMPDIR=str(scratch),
        XDG_CACHE_HOME=str(scratch / "cache"),
        # A git tree must stay as it was checked out: its hash is its identity.
        PYTHONDONTWRITEBYTECODE="1",
        # Nor is bytecode read from beside the sources: it would run unseen by every hash.
        PYTHONPYCACHEPREFIX=str(bytecode),
        PYTHONUNBUFFERED="1",
        PYTHONFAULTHANDLER="1",
        # As the driver's management library counts them, which names the GPU in the record.
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        # The driver explains a failing call where it can.
        CUDA_LOG_FILE="stderr",
    )
    environment[CAMPAIGN_VARIABLE] = campaign
    return environment


class Processes:
    """The probe processes of one campaign; all of them can be ended from another thread.

    Args:
        campaign: marks every process, so that a later campaign can end what is left of them.
    """

    def __init__(self, campaign: str) -> None:
        self.campaign = campaign
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._memory_bytes = isolation.memory_limit_bytes()
        self._excess: dict[int, str] = {}
        self._watcher: threading.Thread | None = None

    def may_start(self) -> bool:
        """Whether processes can still be started."""
        return not self._stopped

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
        host_network: bool = False,
    ) -> Ended:
        """Run one probe to its end, its time limit, or an interruption.

        The whole process group is killed at the end, so that nothing a probe started outlives it.
        With `host_network` it keeps the network, which is otherwise taken away where that works.

        Raises:
            Stopped: the campaign was stopped; what the process showed is worth nothing.
        """
        started = time.monotonic()
        with ExitStack() as stack:
            try:
                scratch.mkdir(parents=True, exist_ok=True)
                log.parent.mkdir(parents=True, exist_ok=True)
                # Files without a name: nothing that runs in scratch can open or replace them.
                stdin = stack.enter_context(tempfile.TemporaryFile(dir=log.parent))
                stdout = stack.enter_context(tempfile.TemporaryFile(dir=log.parent))
                stderr = stack.enter_context(log.open("w+b"))
                stdin.write(json.dumps(request).encode())
                stdin.seek(0)
                process = self._start(
                    command,
                    streams=(stdin, stdout, stderr),
                    scratch=scratch,
                    environment=environment,
                    host_network=host_network,
                )
            except OSError as error:
                return _not_started(error)
            timed_out = True
            try:
                timed_out = not _ends_in_time(process, stdout, time_limit_s)
            finally:
                kill_group(process)
                with self._lock:
                    self._running.discard(process)
                self._end_orphans()
            if self._stopped:
                raise Stopped
            return Ended(
                answer=_head(stdout, ANSWER_LIMIT_BYTES),
                log=_tail(stderr, 65536),
                status=process.returncode,
                timed_out=timed_out,
                seconds=round(max(time.monotonic() - started, 0.001), 3),
                excess=self._excess.pop(process.pid, None),
            )

    def _watch(self) -> None:
        """End a probe whose processes use too much of the machine; runs while any probe does."""
        while True:
            time.sleep(_WATCH_S)
            with self._lock:
                running = {process.pid: process for process in self._running}
                if not running:
                    self._watcher = None
                    return
            for pid, used in isolation.usage(running).items():
                why = isolation.excess(used, self._memory_bytes)
                if why is not None and pid not in self._excess:
                    self._excess[pid] = why
                    # Whoever started it waits for it, and must be told how it ended.
                    _kill_all(_below({pid}, _table()), bury=False)

    def _start(
        self,
        command: list[str],
        *,
        streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
        scratch: Path,
        environment: dict[str, str],
        host_network: bool,
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise Stopped
            process = subprocess.Popen(
                [*(() if host_network else isolation.network().prefix), *command],
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                cwd=scratch,
                env=environment,
                start_new_session=True,
            )
            isolation.limit(process.pid)
            self._running.add(process)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
                self._watcher.start()
            return process

    def _end_orphans(self) -> None:
        """Kill what a probe left outside its own process group; it would keep the GPU.

        This process adopts such orphans (`adopt_orphans`). Its own tools are in its own session.
        """
        own_session = os.getsid(0)
        for _ in range(_MOST_ROUNDS):
            table = _table()
            # After the look at the table: what was started before it is listed by now.
            with self._lock:
                ours = {process.pid for process in self._running}
            orphans = {
                pid
                for pid, (parent, session) in table.items()
                if parent == os.getpid() and pid not in ours and session != own_session
            }
            if not orphans:
                return
            _kill_all(_below(orphans, table))


def _ends_in_time(process: subprocess.Popen[bytes], answer: IO[bytes], limit_s: float) -> bool:
    """Wait for a process; time that it spends waiting for its turn on the GPU does not count."""
    worked = waited = 0.0
    before = time.monotonic()
    while worked < limit_s and waited < LONGEST_WAIT_S:
        if _ends_within(process, min(_TICK_S, limit_s - worked)):
            return True
        now = time.monotonic()
        # A far longer gap than was waited for is a pause of the machine, and of the probe with it.
        passed = min(now - before, 8 * _TICK_S)
        if _is_waiting(answer):
            waited += passed
        else:
            worked += passed
        before = now
    return False


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends in so many seconds; known at the moment it does."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = bool(poll.poll(seconds * 1000))
    finally:
        os.close(descriptor)
    if ended:
        process.wait()
    return ended


def _is_waiting(answer: IO[bytes]) -> bool:
    """Whether the last thing that a probe said is that it waits for its turn."""
    size = os.fstat(answer.fileno()).st_size
    last = os.pread(answer.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES)).rstrip(b"\n")
    return f'{WAITING}"'.encode() in last.rpartition(b"\n")[2]


def _not_started(error: OSError) -> Ended:
    text = f"No space left on device ({error})" if error.errno == errno.ENOSPC else str(error)
    return Ended(b"", text, None, timed_out=False, seconds=0.0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent has ended, instead of init."""
    set_child_subreaper = 36
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(set_child_subreaper, 1)


def end_left_over(campaign: str) -> int:
    """Kill processes that an earlier, killed campaign of the same folder left; how many."""
    count = 0
    mark = f"{CAMPAIGN_VARIABLE}={campaign}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found = mark in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if found and int(folder.name) != os.getpid():
            _kill_all(_below({int(folder.name)}, _table()))
            count += 1
    return count


def _table() -> dict[int, tuple[int, int]]:
    """Parent and session of every process, from one look at all of them."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if fields[0] != "Z" or int(fields[1]) == os.getpid():
            found[int(folder.name)] = int(fields[1]), int(fields[3])
    return found


def _below(roots: set[int], table: dict[int, tuple[int, int]]) -> set[int]:
    """Some processes, all that descend from them, and all in the sessions that these lead."""
    children: dict[int, list[int]] = {}
    for pid, (parent, session) in table.items():
        for above in {parent, session} - {pid}:
            children.setdefault(above, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found - {os.getpid()}


def _kill_all(pids: set[int], *, bury: bool = True) -> None:
    """Kill processes, and bury those that are children of this one.

    Not where somebody waits for one of them, who would be told nothing of its end.
    """
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.01)
    for pid in pids if bury else ():
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


class Stopped(Exception):
    """The campaign was stopped."""


def kill_group(process: subprocess.Popen[Any], grace_s: float = 3.0) -> None:
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


def _head(file: IO[bytes], limit: int) -> bytes:
    file.seek(0)
    return file.read(limit)


def _tail(file: IO[bytes], limit: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - limit))
    return file.read().decode("utf-8", errors="replace")
