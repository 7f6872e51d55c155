"""Creating a condition in a child process, and recording which error comes out of it.

The probes of the group `mechanism` ask how errors like the reported ones can arise. For each
hypothesis a child creates the condition and then makes calls that would otherwise succeed; what
came of each is a fact to record, whatever it is. So a part passes when the condition was really
created and something was recorded of it, and is a miss when it could not be created. It fails only
when the calls could not be made ready, which is another failure of the tested software.

The control of each is the same child without the condition: there, every call must succeed.

What a child finds it also says on its standard error at once: a condition may kill or hang it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from probes import children
from probes.adapters.dsl import ARCH, Dsl
from probes.children import Call, Ended
from probes.gpu_driver import NUMBERS, Gpu
from probes.reasons import chain, cuda_error, type_name
from probes.redaction import one_line
from probes.session import OurFault, Session

NOTHING: Final = "none"
"""Code of a call that succeeded."""
_MARK: Final = "condition-fact "
_TEXT_LIMIT: Final = 400
_DRIVER_LINE: Final = re.compile(r"\[[\d:.]+\](?:\[\d+\])?\[CUDA\](?:\[\w+\])?\s*(.*)")


@dataclass(frozen=True)
class Condition:
    """One thing to create, and how."""

    name: str
    function: str
    """Of the probe's module; takes a `Session` and the arguments, and keeps a diary."""
    arguments: Mapping[str, Any]
    without: Mapping[str, Any]
    """The arguments that make the same calls without the condition."""
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 90.0
    """Of any one step; the first holds the imports, while other children import as well."""
    step_limits_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of one call."""

    action: str
    code: str
    """`none`, `cuda:<name>`, the exception's type, or how the process ended."""
    text: str
    driver: str = ""
    """What the driver's own log said meanwhile, where it is on."""


@dataclass
class Record:
    """What is known of one child."""

    created: bool | None = None
    """None when it never got so far as to say."""
    how: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> Outcome | None:
        """The first call that did not succeed."""
        return next((outcome for outcome in self.outcomes if outcome.code != NOTHING), None)


class Diary:
    """In the child: what was created, what was tried, what came of it."""

    def __init__(self, probe: Session) -> None:
        self._probe = probe

    def created(self, holds: Any, how: str) -> None:
        """Say whether the condition is there, and how that is known. The last word counts."""
        self._say({"created": bool(holds), "how": how})

    def number(self, **values: float | None) -> None:
        """Note numbers, with units in their names."""
        self._say({"numbers": values})

    def attempt(self, action: str, call: Callable[[], Any]) -> bool:
        """Make a call, and note what came of it. True when it succeeded."""
        self._probe.step(action)
        try:
            call()
        except OurFault:
            raise
        except Exception as error:  # noqa: BLE001 - which one it is is the question
            code, text = describe(error)
            self._say({"action": action, "code": code, "text": text})
            return False
        self._say({"action": action, "code": NOTHING, "text": ""})
        return True

    def _say(self, fact: Mapping[str, Any]) -> None:
        sys.stderr.write(f"\n{_MARK}{json.dumps(fact)}\n")
        sys.stderr.flush()


def describe(error: BaseException) -> tuple[str, str]:
    """An exception's code and its text, on one line."""
    text = "\n".join(f"{type_name(link)}: {link}" for link in chain(error))
    cuda = cuda_error(text)
    first = one_line(f"{type_name(error)}: {error}", _TEXT_LIMIT)
    return (type_name(error) if cuda is None else f"cuda:{cuda}"), first


def read(ended: Ended) -> Record:
    """What a child said, and how it ended where that is a fact of its own."""
    record = Record()
    driver: list[str] = []
    for line in ended.log.splitlines():
        said = _DRIVER_LINE.match(line)
        if said:
            driver.append(said.group(1))
        if not line.startswith(_MARK):
            continue
        try:
            fact = json.loads(line[len(_MARK) :])
        except ValueError:  # cut short by the child's end
            continue
        if "created" in fact:
            record.created, record.how = fact["created"], fact["how"]
        elif "numbers" in fact:
            record.numbers.update(fact["numbers"])
        else:
            words = one_line(" / ".join(driver), _TEXT_LIMIT)
            record.outcomes.append(Outcome(fact["action"], fact["code"], fact["text"], words))
            driver.clear()
    if record.created is not None and ended.how != "returned":
        verdict = ended.verdict
        action = ended.last_step or "start"
        record.outcomes.append(Outcome(action, verdict.reason or "", verdict.detail or ""))
    return record


def examine(
    probe: Session,
    name: str,
    conditions: Sequence[Condition],
    *,
    at_once: int = 1,
) -> None:
    """Run each control once, then create each condition; a part for each condition.

    Args:
        probe: the parent.
        name: id of the probe, whose module has the functions.
        conditions: what to create.
        at_once: children that run at the same time.
    """
    plain: dict[str, Call] = {}
    for condition in conditions:
        without = _call(name, condition, condition.without, f"without {condition.name}")
        plain.setdefault(_key(condition), without)
    ended = dict(
        zip(
            plain,
            children.run_all(probe, plain.values(), at_once=at_once),
            strict=True,
        )
    )
    calls = [
        _call(name, condition, condition.arguments, condition.name) for condition in conditions
    ]
    found = children.run_all(probe, calls, at_once=at_once)
    for condition, child in zip(conditions, found, strict=True):
        _part(probe, condition, child)
        _control(probe, condition, ended[_key(condition)])


def _key(condition: Condition) -> str:
    """Conditions with one key have one control."""
    same = [condition.function, dict(condition.without), dict(condition.environment)]
    return json.dumps(same, sort_keys=True)


def _call(probe: str, condition: Condition, arguments: Mapping[str, Any], name: str) -> Call:
    return Call(
        probe,
        condition.function,
        arguments,
        name=name,
        limit_s=condition.limit_s,
        step_limits_s=condition.step_limits_s,
        environment=condition.environment,
    )


def _part(probe: Session, condition: Condition, ended: Ended) -> None:
    record = read(ended)
    with probe.check(condition.name, step=False) as check:
        if record.created is None:
            verdict = ended.verdict
            nothing = "the child said nothing of its condition"
            check.expect(
                False,
                verdict.reason or "probe:NothingSaid",
                verdict.detail or nothing,
                status="error" if verdict.status == "pass" else verdict.status,
            )
            return
        error = record.error
        check.measure["created"] = record.created
        check.measure["created_how"] = record.how
        check.measure["error_code"] = NOTHING if error is None else error.code
        check.measure["error_text"] = None if error is None else error.text
        check.measure["error_at"] = None if error is None else error.action
        if error is not None and error.driver:
            check.measure["driver_says"] = error.driver
        for each in record.outcomes:
            # Of calls of one name, the first that failed is told.
            if check.measure.get(_slug(each.action), NOTHING) == NOTHING:
                check.measure[_slug(each.action)] = each.code
        check.measure.update(record.numbers)
        check.expect(record.created, "machine:no-condition", record.how, status="miss")
        check.expect(record.outcomes, "probe:NothingTried", "no call was made", status="error")


def _control(probe: Session, condition: Condition, ended: Ended) -> None:
    if ended.verdict.status in ("miss", "skip"):
        return  # the machine or the stack can't make the calls at all, which the part says
    record = read(ended)
    error = record.error
    if ended.how == "returned" and error is None:
        detail = f"{len(record.outcomes)} calls succeeded"
    elif error is not None:
        detail = f"{error.action}: {error.code}: {error.text}"
    else:
        detail = f"{ended.how}: {ended.verdict.detail}"
    fine = ended.how == "returned" and error is None and record.outcomes
    probe.control(f"without: {condition.name}", failed=fine, detail=detail)


def _slug(action: str) -> str:
    return "after_" + re.sub(r"[^a-z0-9]+", "_", action.lower()).strip("_")


class Workbench:
    """In the child: the GPU without torch, and functions of ours compiled by the DSL."""

    def __init__(self, probe: Session) -> None:
        self.probe = probe
        self.dsl = Dsl(probe)
        self.gpu = Gpu(probe)

    def function(self, *, shared_bytes: int = 0) -> Function:
        """A fresh compiled function, which was never called."""
        from probes import mechanism_kernels

        with self.probe.tested("compile", "a kernel of ours"):
            compiled = self.dsl.cute.compile(
                mechanism_kernels.count,
                self.dsl.cutlass.Int64(1),
                shared_bytes,
                self.dsl.stream(),
                options=f"--enable-tvm-ffi --gpu-arch {ARCH}",
            )
        return Function(self.gpu, compiled)


@dataclass
class Function:
    """A compiled function of ours, and a buffer that it counts in."""

    gpu: Gpu
    compiled: Any
    _buffer: int | None = None
    _calls: int = 0

    @property
    def buffer(self) -> int:
        """Address of its buffer."""
        if self._buffer is None:
            self._buffer = self.gpu.buffer()
        return self._buffer

    def prepare(self) -> None:
        """Have the buffer ready, so that a call needs no memory of ours."""
        assert self.buffer

    def launch(self, *, address: int | None = None, stream: Any = 0) -> None:
        """Call it without waiting; on its buffer unless told otherwise."""
        handle = self.gpu.cuda.CUstream(int(stream))
        self.compiled(self.buffer if address is None else address, handle)
        self._calls += address is None

    def call(self, *, stream: Any = 0) -> None:
        """Call it, wait, and make sure that it did what it should.

        Raises:
            WrongCount: it did not.
        """
        self.launch(stream=stream)
        self.check()

    def check(self) -> None:
        """Wait for the device, and make sure that all launches so far did what they should.

        Raises:
            WrongCount: one did not.
        """
        found = self.gpu.numbers(self.buffer)
        if found != [self._calls] * NUMBERS:
            raise WrongCount(f"{found[0]} instead of {self._calls}")


class WrongCount(Exception):
    """A launch that reported success did not do its work."""
