"""From how a probe process ended to a status and a reason."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from matrix.keeping.reasons import Status, highest
from matrix.keeping.records import Control, Loaded, Name, Number, Part, Text, check_reason
from matrix.models import Model, explain
from matrix.running.processes import Ended
from matrix.visible import visible
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
    cut_off: bool = False
    """Whether the host ended it, because its time was over."""

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
    if ended.excess is not None:
        return answer.outcome("miss", "machine:limit", f"{ended.excess}{answer.doing()}")
    if ended.timed_out:
        late = f"still running after {time_limit_s:g} s{answer.doing()}"
        return replace(answer.outcome("fail", "timeout", late), cut_off=True)
    if ended.status is None:
        full = "No space left on device" in ended.log
        return answer.outcome("miss", "machine:disk-full" if full else "harness:start", ended.log)
    if ended.status == 0:
        return answer.ended_well()
    if "No space left on device" in ended.log and answer.end is None:
        text = f"no space was left{answer.doing()}"
        return answer.outcome("miss", "machine:disk-full", text)
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


class _Start(Model):
    protocol: Literal[1]
    probe: Name = "unknown"
    python: Name = "unknown"
    pid: int = 0


class _Step(Model):
    name: Text


class _Measure(Model):
    values: dict[Name, Number]


class _LoadedLine(Model):
    components: dict[Name, dict[str, Any]]

    def facts(self) -> dict[str, Loaded]:
        """By component; what has no field of its own becomes a note."""
        found = {}
        for component, said in self.components.items():
            own = {name: value for name, value in said.items() if name in Loaded.model_fields}
            notes = {
                name: value if isinstance(value, str | int | float | None) else json.dumps(value)
                for name, value in said.items()
                if name not in own
            }
            merged = {**own, "notes": {**notes, **own.get("notes", {})}}
            found[component] = Loaded.model_validate(merged)
        return found


class _End(Model):
    status: Status
    reason: str | None = None
    detail: Text | None = None

    @model_validator(mode="after")
    def _reason_fits(self) -> _End:
        check_reason("run", self.status, self.reason)
        return self


class _Answer:
    """The JSON lines of a probe process, as far as they came."""

    def __init__(self) -> None:
        self.started = False
        self.step: str | None = None
        self.parts: list[Part] = []
        self.control: list[Control] = []
        self.measure: dict[str, Number] = {}
        self.loaded: dict[str, Loaded] = {}
        self.end: _End | None = None

    def read(self, text: bytes) -> None:
        """Take the lines in.

        Raises:
            ValueError: a line is not what the protocol allows at its place.
        """
        for number, line in enumerate(text.split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                self._line(json.loads(line.decode("utf-8")))
            except ValidationError as error:
                raise ValueError(f"answer line {number}: {explain(error)}") from None
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ValueError(f"answer line {number}: {error}") from None

    def _line(self, data: dict[str, Any]) -> None:
        kind = data.pop("kind")
        if (kind == "start") == self.started:
            raise ValueError("an answer starts once, with its first line")
        if self.end is not None:
            raise ValueError("nothing comes after the end")
        match kind:
            case "start":
                _Start.model_validate(data)
                self.started = True
            case "step":
                self.step = _Step.model_validate(data).name
            case "part":
                self.parts.append(Part.model_validate(data))
            case "measure":
                self.measure.update(_Measure.model_validate(data).values)
            case "control":
                self.control.append(Control.model_validate(data))
            case "loaded":
                self.loaded.update(_LoadedLine.model_validate(data).facts())
            case "end":
                self.end = _End.model_validate(data)
            case _:
                raise ValueError(f"unknown kind {kind!r}")

    def doing(self) -> str:
        return f" during: {self.step}" if self.step else ""

    def outcome(self, status: Status, reason: str | None, detail: str | None) -> Outcome:
        return Outcome(
            status,
            reason,
            visible(" ".join(detail.split()))[:1000] if detail else None,
            self.measure,
            self.parts,
            self.control,
            self.loaded,
        )

    def ended_well(self) -> Outcome:
        if self.end is None:
            return self.outcome(
                "error", "protocol:no-end", f"the answer stopped early{self.doing()}"
            )
        claimed = self.end.status
        if claimed == "pass" and not any(part.status == "pass" for part in self.parts):
            return self.outcome("error", "probe:no-check", "the probe checked nothing")
        worst = highest([claimed, *(part.status for part in self.parts)])
        if worst != "fail":
            missed = [control.name for control in self.control if not control.failed]
            if missed:
                text = f"not noticed: {', '.join(missed)}"
                return self.outcome("error", "control:not-caught", text)
        if worst == "pass" and not self.control:
            return self.outcome("error", "probe:no-control", "no wrong answer was tried")
        if worst != claimed:
            part = next(part for part in self.parts if part.status == worst)
            return self.outcome(worst, part.reason, part.detail)
        return self.outcome(worst, self.end.reason, self.end.detail)
