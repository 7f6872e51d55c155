"""From how a probe process ended to a status and a reason."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from matrix.models import explain
from matrix.processes import Ended
from matrix.reasons import PRIORITY, Status, highest, status_of
from matrix.records import Control, Loaded, Number, Part
from probes.reasons import MACHINE_ERRORS, cuda_error

PROTOCOL = 1


@dataclass(frozen=True)
class Outcome:
    """What one run showed."""

    status: Status
    reason: str | None
    detail: str | None = None
    measure: dict[str, Number] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    control: list[Control] = field(default_factory=list)
    loaded: dict[str, Loaded] = field(default_factory=dict)

    @property
    def suspects_gpu(self) -> bool:
        """Whether a broken GPU would look like this."""
        reason = self.reason or ""
        return reason.startswith(("cuda:", "signal:", "exit:")) or reason == "timeout"


def judge(ended: Ended, time_limit_s: float) -> Outcome:
    """Status, reason and measures of a probe process that has ended.

    The answer's own words count only when the process ended well after its last line: a crash
    after a right answer is still a crash of the tested software.
    """
    answer = _Answer()
    try:
        answer.read(ended.answer)
    except ValueError as error:
        # A process that was killed may leave half a line; one that ended well may not.
        if ended.status == 0:
            return answer.outcome("error", "protocol:garbled", str(error))
    if ended.status is None:
        return answer.outcome("miss", "harness:start", ended.log)
    if ended.timed_out:
        return answer.outcome(
            "fail", "timeout", f"still running after {time_limit_s:g} s{answer.doing()}"
        )
    if ended.status == 0:
        return answer.ended_well()
    crash = _crash(ended)
    if crash.reason == "machine:out-of-memory" or not answer.started:
        return answer.outcome(*_before_start(ended, answer, crash))
    when = " after the answer was complete" if answer.end is not None else answer.doing()
    return answer.outcome(crash.status, crash.reason, f"{crash.detail}{when}")


def _before_start(ended: Ended, answer: _Answer, crash: Outcome) -> tuple[Status, str, str]:
    if crash.reason == "machine:out-of-memory":
        return "miss", "machine:out-of-memory", f"{crash.detail}{answer.doing()}"
    lines = ended.log.strip().splitlines()
    return "miss", "harness:start", lines[-1] if lines else f"exit status {ended.status}"


_DRIVER_LOG = re.compile(r"\[[\d:.]+\](\[\d+\])?\[CUDA\]")


def cuda_reason(text: str) -> str | None:
    """The first CUDA error that a text names, as a reason; None where it names none."""
    name = cuda_error(text)
    return None if name is None else MACHINE_ERRORS.get(name, f"cuda:{name}")


def _crash(ended: Ended) -> Outcome:
    assert ended.status is not None  # noqa: S101 - narrowed by the only caller
    # The driver's own log tells of calls that failed and did no harm: a newer cuda-bindings asks
    # an older driver for functions it lacks, and that is refused with an error of the same name.
    lines = [line for line in ended.log.splitlines() if not _DRIVER_LOG.match(line)]
    line = next((line for line in lines if cuda_reason(line)), "").strip()
    reason = cuda_reason(line)
    if reason is not None and ended.status != -signal.SIGKILL:
        status: Status = "miss" if reason.startswith("machine:") else "fail"
        return Outcome(status, reason, line[:400])
    if ended.status < 0:
        try:
            name = signal.Signals(-ended.status).name
        except ValueError:
            name = f"SIG{-ended.status}"
        if name == "SIGKILL":
            # Nobody but the system does that: its memory ran out, or a limit was met.
            return Outcome("miss", "machine:killed", "killed by the system")
        return Outcome("fail", f"signal:{name}", f"died from {name}")
    return Outcome("fail", f"exit:{ended.status}", f"ended by itself with status {ended.status}")


def _loaded(facts: dict[str, Any]) -> Loaded:
    """What a process says of a component; what has no field of its own becomes a note."""
    own = {name: value for name, value in facts.items() if name in Loaded.model_fields}
    notes = {
        name: value if isinstance(value, str | int | float | None) else json.dumps(value)
        for name, value in facts.items()
        if name not in own
    }
    return Loaded.model_validate({**own, "notes": {**notes, **own.get("notes", {})}})


class _Answer:
    """The JSON lines of a probe process, as far as they came."""

    def __init__(self) -> None:
        self.started = False
        self.step: str | None = None
        self.parts: list[Part] = []
        self.control: list[Control] = []
        self.measure: dict[str, Number] = {}
        self.loaded: dict[str, Loaded] = {}
        self.end: dict[str, Any] | None = None

    def read(self, text: bytes) -> None:
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                self._line(number, line)

    def _line(self, number: int, line: bytes) -> None:
        try:
            data = json.loads(line)
            kind = data.pop("kind")
            match kind:
                case "start":
                    if data.get("protocol") != PROTOCOL:
                        raise ValueError(f"protocol {data.get('protocol')!r} is not {PROTOCOL}")
                    self.started = True
                case "step":
                    self.step = str(data["name"])[:200]
                case "part":
                    self.parts.append(Part.model_validate(data))
                case "measure":
                    values = Part.model_validate({"name": "", "status": "pass",
                                                  "measure": data["values"]})  # fmt: skip
                    self.measure.update(values.measure)
                case "control":
                    self.control.append(Control.model_validate(data))
                case "loaded":
                    self.loaded.update(
                        (name, _loaded(facts)) for name, facts in data["components"].items()
                    )
                case "end":
                    reason = data.get("reason")
                    fits = reason is None or status_of(reason) == data["status"]
                    if data["status"] not in PRIORITY or not fits:
                        raise ValueError(f"{data['status']!r} with reason {reason!r}")
                    self.end = data
                case _:
                    raise ValueError(f"unknown kind {kind!r}")
        except ValidationError as error:
            raise ValueError(f"answer line {number}: {explain(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"answer line {number}: {error}") from None

    def doing(self) -> str:
        return f" during: {self.step}" if self.step else ""

    def outcome(self, status: Status, reason: str | None, detail: str | None) -> Outcome:
        one_line = " ".join(detail.split())[:1000] if detail else None
        return Outcome(
            status, reason, one_line, self.measure, self.parts, self.control, self.loaded
        )

    def ended_well(self) -> Outcome:
        if self.end is None:
            return self.outcome(
                "error", "protocol:no-end", f"the answer stopped early{self.doing()}"
            )
        claimed: Status = self.end["status"]
        if not self.parts and claimed == "pass":
            return self.outcome("error", "probe:no-check", "the probe checked nothing")
        missed = [control.name for control in self.control if not control.failed]
        worst = highest([part.status for part in self.parts] + [claimed]) if self.parts else claimed
        if worst == "fail" or not missed:
            if worst != claimed:
                part = next(part for part in self.parts if part.status == worst)
                return self.outcome(worst, part.reason, part.detail)
            return self.outcome(worst, self.end.get("reason"), self.end.get("detail"))
        return self.outcome("error", "control:not-caught", f"not noticed: {', '.join(missed)}")
