"""Running one function of a probe in a process of its own, so that what it does stays there.

An illegal address spoils a process for all later work and a deadlocked kernel never comes back.
A case that may do either runs in a child: a fresh interpreter with the same environment and the
same `sys.path`, which has a time limit for every step and is killed with its process group.

    # in the probe's module
    def one_case(probe: Session, arguments: dict[str, Any]) -> Any:
        probe.step("compile")
        ...
        probe.step("the dangerous call")
        ...
        return {"finite": True}

    # in its run()
    with probe.check("some rows empty") as check:
        call = Call("empty-rows", "one_case", {"case": "some"}, limit_s=60)
        facts = run(probe, call).result_for(check)
        if facts is not None:
            check.expect(facts["finite"], "numerics", "a gradient is not finite")

The function gets a session like any probe's, with the same request: it may load components, name
steps and mark what is under test. Its steps and what it loaded become the parent's own. It reports
no parts, but returns what it found, as JSON, for the parent to judge.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from probes.gpu_turn import LONGEST_WAIT_S, WAITING
from probes.reasons import MACHINE_ERRORS, Verdict, cuda_error
from probes.session import Check, Session

RUNNER: Final = Path(__file__).resolve().parent / "runner.py"
_LOG_KEPT: Final = 20_000
"""Characters of a child's log that reach the parent's."""
_DRIVER_LOG: Final = re.compile(r"\[[\d:.]+\](\[\d+\])?\[CUDA\]")
_GRACE_S: Final = 15.0
"""For the system to bury a killed process; the driver takes a while to stop a busy GPU."""


@dataclass(frozen=True)
class Call:
    """One function to run in a child."""

    probe: str
    """The probe whose module has the function, by its id."""
    function: str
    """Name of `function(probe: Session, arguments: dict) -> JSON` in that module."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Given to the function; must be JSON."""
    name: str = ""
    """What its steps are prefixed with; the function's own name when left out."""
    limit_s: float = 60.0
    """Longest time that any one step may take. The first begins with the interpreter and holds
    what the function does before it announces a step: usually the import of torch."""
    step_limits_s: Mapping[str, float] = field(default_factory=dict)
    """Another limit for the steps of these names."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set besides those of this process."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that differ from those of this process."""


@dataclass(frozen=True)
class Ended:
    """How a child ended."""

    how: Literal["returned", "raised", "died", "timeout"]
    verdict: Verdict
    """`pass` only when the function returned; otherwise why not, and in which step."""
    value: Any
    """What the function returned, as JSON holds it. Paths of the machine are taken out."""
    last_step: str | None
    """The last step that was announced, without the prefix."""
    step_seconds: Mapping[str, float]
    """How long each step took, of equal names the last; the step that was cut short included."""
    status: int | None
    """Exit status as `subprocess` has it, negative for a signal; None if it could not be buried."""
    log: str
    """The end of what it wrote to standard error and output."""

    def result_for(self, check: Check) -> Any | None:
        """The function's value, or None after the part was given the verdict on the child.

        An unusable device in a child is no reason to end the parent, so nothing is raised.
        """
        if self.how == "returned":
            return self.value
        check.expect(
            False, self.verdict.reason or "", self.verdict.detail or "", status=self.verdict.status
        )
        return None


def run(probe: Session, call: Call) -> Ended:
    """Run one function in a child and wait for it."""
    folder = Path(tempfile.mkdtemp(prefix="child-", dir=probe.scratch))
    log = folder / "log.txt"
    environment = {**os.environ, **call.environment, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-s", "-P", str(RUNNER)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            cwd=folder,
            env=environment,
            process_group=0,
        )
    answer = _Answer(probe, call)
    timed_out = False
    try:
        assert process.stdin is not None
        # A child that died at once reads nothing; its status and log say more.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(_request(probe, call)).encode())
            process.stdin.close()
        timed_out = not answer.read(process)
    finally:
        status = _bury(process, ask_where=timed_out)
    text = log.read_bytes()[-_LOG_KEPT:].decode(errors="replace")
    if text:
        sys.stderr.write(f"--- log of the child {answer.prefix}\n{text.rstrip()}\n---\n")
        sys.stderr.flush()
    how, verdict = _judge(answer, status=status, timed_out=timed_out, log=text)
    return Ended(
        how=how,
        verdict=verdict,
        value=answer.value,
        last_step=answer.step,
        step_seconds=answer.seconds,
        status=status,
        log=text,
    )


def run_all(
    probe: Session,
    calls: Iterable[Call],
    *,
    at_once: int = 4,
    run_one: Callable[[Session, Call], Ended] | None = None,
) -> list[Ended]:
    """Run several functions, a few at a time; what comes back is in their order.

    Args:
        probe: the parent.
        calls: what to run.
        at_once: children that run at the same time. They share the GPU and its memory.
        run_one: `run`, unless a test says otherwise.
    """
    # A child dies with the thread that started it (the kernel's rule for the signal that ends
    # orphans), and a worker waits for its child, so that rule takes nothing away.
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        return list(pool.map(lambda call: (run_one or run)(probe, call), calls))


def _request(probe: Session, call: Call) -> dict[str, Any]:
    return {
        "protocol": 1,
        "probe": call.probe,
        "parameters": {**probe.parameters, **call.parameters},
        "components": {name: dict(entry) for name, entry in probe.components.items()},
        "trees": {name: dict(tree) for name, tree in probe.trees.items()},
        "environment": str(probe.environment),
        "image": [str(path) for path in probe.places.images],
        "scratch": str(probe.scratch),
        "gpu_turn": None if probe.gpu_turn is None else str(probe.gpu_turn),
        "call": {
            "function": call.function,
            "arguments": dict(call.arguments),
            "sys_path": sys.path,
        },
    }


class _Answer:
    """What a child has said so far."""

    def __init__(self, probe: Session, call: Call) -> None:
        self.prefix = call.name or call.function
        self.value: Any = None
        self.returned = False
        self.raised: Verdict | None = None
        self.step: str | None = None
        self.limit_s = call.limit_s
        self.seconds: dict[str, float] = {}
        self._probe = probe
        self._call = call
        self._since = time.monotonic()

    def read(self, process: subprocess.Popen[bytes]) -> bool:
        """Take in the answer until it ends.

        Returns:
            Whether it ended before a step ran out of time.
        """
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        waiting = b""
        while True:
            left = self._since + self.limit_s - time.monotonic()
            ready = select.select([descriptor], [], [], max(0.0, left))[0]
            if not ready:
                self._note_time()
                return False
            data = os.read(descriptor, 1 << 16)
            if not data:
                self._note_time()
                return True
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                self._line(json.loads(line))

    def _line(self, line: Mapping[str, Any]) -> None:
        match line["kind"]:
            case "step":
                self._note_time()
                self.step = str(line["name"])
                self.limit_s = self._call.step_limits_s.get(self.step, self._call.limit_s)
                if self.step == WAITING:
                    self.limit_s = LONGEST_WAIT_S
                self._since = time.monotonic()
                self._probe.step(f"{self.prefix}: {self.step}")
            case "loaded":
                self._probe.adopt_loaded(line["components"])
            case "part" if line["status"] != "pass" and self.raised is None:
                self.raised = Verdict(line["status"], line["reason"], line["detail"])
            case "returned":
                self.value, self.returned = line["value"], True

    def _note_time(self) -> None:
        self.seconds[self.step or "start"] = round(time.monotonic() - self._since, 3)


def _bury(process: subprocess.Popen[bytes], *, ask_where: bool) -> int | None:
    """End what is left of a child and all it started; its exit status, or None if it stays."""
    if ask_where:
        # The runner has its handler print where every Python thread is.
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
    else:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):  # where nothing is left of the group
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout is not None:
        process.stdout.close()
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        return None


def _judge(
    answer: _Answer, *, status: int | None, timed_out: bool, log: str
) -> tuple[Literal["returned", "raised", "died", "timeout"], Verdict]:
    during = f" during: {answer.step}" if answer.step else ""
    if timed_out:
        limit = f"{answer.limit_s:g} s"
        stays = "; it did not die when killed" if status is None else ""
        return "timeout", Verdict("fail", "timeout", f"still running after {limit}{during}{stays}")
    if status == 0 and answer.returned:
        return "returned", Verdict("pass")
    if status == 0:
        nothing = Verdict("error", "protocol:no-end", f"the child returned nothing{during}")
        return "raised", answer.raised or nothing
    return "died", _death(status, log, during)


def _death(status: int | None, log: str, during: str) -> Verdict:
    if status is None:
        return Verdict("fail", "timeout", f"the child did not end{during}")
    # The driver's own log also tells of calls that failed and did no harm.
    lines = [line for line in log.splitlines() if not _DRIVER_LOG.match(line)]
    line = next((line for line in lines if cuda_error(line)), "").strip()
    cuda = cuda_error(line)
    if cuda is not None and status != -signal.SIGKILL:
        if cuda in MACHINE_ERRORS:
            return Verdict("miss", MACHINE_ERRORS[cuda], f"{line[:300]}{during}")
        return Verdict("fail", f"cuda:{cuda}", f"{line[:300]}{during}")
    if status == -signal.SIGKILL:
        return Verdict("miss", "machine:killed", f"killed by the system{during}")
    if status < 0:
        name = _signal_name(-status)
        words = _last_words(lines)
        said = f", saying: {words[:300]}" if words else ""
        return Verdict("fail", f"signal:{name}", f"died from {name}{during}{said}")
    return Verdict("fail", f"exit:{status}", f"ended with status {status}{during}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _last_words(lines: list[str]) -> str:
    """What was written last before Python's own report of a fatal signal; often an assertion."""
    before: list[str] = []
    for line in lines:
        if line.startswith("Fatal Python error:"):
            break
        before.append(line)
    else:
        return ""
    return next((line.strip() for line in reversed(before) if line.strip()), "")
