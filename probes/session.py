"""What a probe sees of the outside: its request, its answer, and the line between tested and ours.

The line is `Session.tested`: an exception inside it is the tested software's, one outside it is
the probe's own. A probe that never crosses the line can only pass, so every part counts the
expectations it tested and a part without any is an error.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes import loading, reasons, redaction
from probes.answer import Answer
from probes.gpu_turn import WAITING, Turn
from probes.reasons import Stage, Status, Verdict


class Concluded(Exception):
    """Ends the part it is raised in with a verdict of its own."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"{verdict.status}: {verdict.reason}: {verdict.detail}")
        self.verdict = verdict
        self.reported = False
        """Whether a part of the answer says it already."""


class OurFault(Exception):
    """Something our own code found out about itself while the tested software was being driven."""


def absent(detail: str) -> Concluded:
    """This stack's upstream has no such function: raise the result."""
    return Concluded(Verdict("skip", "upstream:absent", detail))


@dataclass
class Check:
    """A part in the making. It passes if at least one expectation was tested and all held."""

    measure: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    expectations: int = 0
    verdict: Verdict = field(default_factory=lambda: Verdict("pass"))

    def expect(self, holds: Any, reason: str, detail: str, *, status: Status = "fail") -> None:
        """Test one expectation; the first that does not hold is the part's verdict.

        Args:
            holds: whether it held; judged by its truth.
            reason: from the fixed list, used if it did not hold.
            detail: what was found instead, in a few words.
            status: the status that `reason` belongs to.
        """
        self.expectations += 1
        if not holds and self.verdict.status == "pass":
            self.verdict = Verdict(status, reason, detail)


class Session:
    """One probe process's view of its request, and the only way to its answer."""

    def __init__(self, request: Mapping[str, Any], answer: Answer) -> None:
        self.parameters: dict[str, Any] = dict(request.get("parameters") or {})
        self.seed = int(self.parameters.get("seed", 0))
        self.components: Mapping[str, Mapping[str, Any]] = request.get("components") or {}
        self.trees: Mapping[str, Mapping[str, Any]] = request.get("trees") or {}
        self.environment = Path(request["environment"])
        self.scratch = Path(request["scratch"])
        self.places = loading.Places(
            environment=self.environment,
            images=tuple(Path(path) for path in request.get("image") or ()),
            trees={name: Path(tree["path"]) for name, tree in self.trees.items()},
        )
        turn = request.get("gpu_turn")
        self.gpu_turn = None if turn is None else Path(turn)
        self._gpu = Turn(self.gpu_turn)
        self._shares_gpu = bool(request.get("shares_gpu"))
        self._waited_s = 0.0
        self._answer = answer
        self._answer.redact = redaction.redactor(redaction.prefixes_of(request))
        self._verdicts: list[Verdict] = []
        self._uncaught: list[str] = []
        self._loaded: dict[str, dict[str, Any]] = {}
        self._step = "start"

    # What a probe says

    def use_defaults(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Fill in the parameters that the request left out, from the probe's named setting."""
        setting = self.parameters.setdefault("setting", "quick")
        self.parameters = {**settings[setting], **self.parameters}

    def step(self, name: str) -> None:
        """Say what is about to be done: if the process dies or hangs, this names the culprit."""
        self._step = name
        self._note_loaded()
        self._answer.write({"kind": "step", "name": name})

    def part(
        self,
        name: str,
        *,
        status: Status,
        reason: str | None = None,
        detail: str | None = None,
        measure: Mapping[str, Any] | None = None,
    ) -> None:
        """Report one checked part of the question.

        Raises:
            ValueError: a status other than `pass` has no reason, or `pass` has one.
        """
        if (status == "pass") != (reason is None):
            raise ValueError(f"status {status!r} does not go with reason {reason!r}")
        detail = None if detail is None else self._answer.redact(detail)
        verdict = Verdict(status, reason, None if detail is None else redaction.one_line(detail))
        self._verdicts.append(verdict)
        self._answer.write(
            {
                "kind": "part",
                "name": name,
                "status": verdict.status,
                "reason": verdict.reason,
                "detail": verdict.detail,
                "measure": dict(measure or {}),
            }
        )

    def measure(self, **values: Any) -> None:
        """Report numbers of the whole run, with their units in their names."""
        self._answer.write({"kind": "measure", "values": values})

    def control(self, name: str, *, failed: Any, detail: str | None = None) -> None:
        """Report a control: `failed` is true when the deliberately wrong answer was caught."""
        caught = bool(failed)
        if not caught:
            self._uncaught.append(name)
        detail = None if detail is None else redaction.one_line(self._answer.redact(detail))
        self._answer.write({"kind": "control", "name": name, "failed": caught, "detail": detail})

    def join_gpu(self) -> None:
        """Use the GPU beside others for the rest of this process, if that is what was asked."""
        if self._shares_gpu:
            self.step(WAITING)
            self._gpu.share()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which nothing else that the campaign runs uses the GPU.

        For a probe that declares `alone`: what it does outside such blocks goes on beside others.
        """
        self.step(WAITING)
        self._waited_s += self._gpu.take()
        self.measure(waited_for_gpu_s=round(self._waited_s, 3))
        self.step("alone on the GPU")
        try:
            yield
        finally:
            self._gpu.give_back()

    # How a probe works

    @contextmanager
    def tested(self, stage: Stage, what: str) -> Iterator[None]:
        """Mark a call into the software under test. Device work must be waited for inside.

        Raises:
            Concluded: the software raised; the verdict says how.
        """
        try:
            yield
        except (Concluded, OurFault):
            raise
        except (Exception, SystemExit) as error:
            verdict = reasons.of_tested(stage, error)
            raise Concluded(
                Verdict(verdict.status, verdict.reason, f"{what}: {verdict.detail}")
            ) from error

    @contextmanager
    def check(self, name: str, *, step: bool = True) -> Iterator[Check]:
        """One part: however the block ends, exactly one part is reported.

        Raises:
            Concluded: the device can't be used any more in this process, so the run ends here.
        """
        if step:
            self.step(name)
        check = Check()
        try:
            yield check
        except Concluded as concluded:
            self._log(concluded)
            self._part(name, concluded.verdict, check)
            concluded.reported = True
            if concluded.verdict.reason in reasons.STICKY:
                raise
        except Exception as error:  # noqa: BLE001 - reported as the probe's own error
            self._log()
            self._part(name, reasons.of_ours(error), check)
        else:
            if check.expectations == 0:
                nothing = Verdict("error", "probe:no-check", "the part tested no expectation")
                self._part(name, nothing, check)
            else:
                self._part(name, check.verdict, check)

    def _part(self, name: str, verdict: Verdict, check: Check) -> None:
        check.measure.setdefault("part_s", round(time.monotonic() - check.started, 3))
        self.part(
            name,
            status=verdict.status,
            reason=verdict.reason,
            detail=verdict.detail,
            measure=check.measure,
        )

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around the whole probe: what escapes it becomes a part named after the last step."""
        try:
            yield
        except Concluded as concluded:
            if not concluded.reported:
                self._log(concluded)
                self._part(self._step, concluded.verdict, Check())
        except Exception as error:  # noqa: BLE001 - reported as the probe's own error
            self._log()
            self._part(self._step, reasons.of_ours(error), Check())

    def require(self, component: str) -> Mapping[str, Any]:
        """The request's entry for a component that the stack has and this machine provides.

        Raises:
            Concluded: the stack has no such component, or this machine can't provide it.
        """
        entry = self.components.get(component)
        if entry is None or entry.get("requested") == "none":
            raise absent(f"the stack has no {component}")
        if entry.get("absent"):
            reason = str(entry["absent"])
            raise Concluded(Verdict("miss", reason, f"this machine provides no {component}"))
        return entry

    def load(self, component: str, module: str | None = None) -> Any:
        """Import a component, or one module of it, as the tested software.

        Args:
            component: name as in the request.
            module: dotted name; the component's own when left out.

        Raises:
            Concluded: it is absent, or it did not import.
        """
        entry = self.require(component)
        name = module or entry.get("module")
        if not name:
            raise absent(f"{component} has no module to import")
        with self.tested("import", f"import {name}"):
            loaded = importlib.import_module(name)
        self._note_loaded()
        return loaded

    def note_loaded(self, component: str, file: str | Path, **facts: Any) -> None:
        """Record what was loaded of a component from a file, when `sys.modules` can't tell.

        Args:
            component: name as in the request.
            file: the file whose code runs.
            facts: `version`, `file`, `sha256` or `origin`, when the caller knows better.
        """
        entry = self.components.get(component, {})
        described = loading.describe(component, entry, self.places, Path(file))
        self._loaded[component] = {**described, **facts}
        self._emit_loaded()

    def annotate_loaded(self, component: str, **notes: Any) -> None:
        """Add plain facts to what is known of a loaded component."""
        self._loaded.setdefault(component, {}).setdefault("notes", {}).update(notes)
        self._emit_loaded()

    def adopt_loaded(self, components: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what a child process says it loaded; what this process loaded stays."""
        known = len(self._loaded)
        for component, described in components.items():
            self._loaded.setdefault(component, dict(described))
        if len(self._loaded) > known:
            self._emit_loaded()

    def loaded(self, component: str) -> Mapping[str, Any]:
        """What is known of a loaded component; empty when nothing of it was loaded yet."""
        return self._loaded.get(component, {})

    def _note_loaded(self) -> None:
        fresh = False
        for component, entry in self.components.items():
            module = sys.modules.get(entry.get("module") or "")
            file = getattr(module, "__file__", None)
            if file and component not in self._loaded:
                described = loading.describe(component, entry, self.places, Path(file), module)
                self._loaded[component] = described
                fresh = True
        if fresh:
            self._emit_loaded()

    def _emit_loaded(self) -> None:
        # Every line holds all that is known, so a process that dies later has still said it.
        self._answer.write({"kind": "loaded", "components": self._loaded})

    def _log(self, concluded: Concluded | None = None) -> None:
        if concluded is None or concluded.verdict.status in ("fail", "error"):
            traceback.print_exc(file=sys.stderr)

    def returned(self, value: Any) -> None:
        """What a function that was run in a child process returned: for the parent to read."""
        self._answer.write({"kind": "returned", "value": value})

    # How a run ends

    def verdict(self) -> Verdict:
        """What the run comes to."""
        if not self._verdicts:
            return Verdict("error", "probe:no-check", "the probe checked nothing")
        worst = min(self._verdicts, key=lambda verdict: reasons.PRIORITY.index(verdict.status))
        if self._uncaught and worst.status != "fail":
            names = ", ".join(self._uncaught)
            return Verdict("error", "control:not-caught", f"not caught: {names}")
        return worst

    def end(self) -> None:
        """Write the last line of the answer."""
        self._note_loaded()
        verdict = self.verdict()
        self._answer.write(
            {
                "kind": "end",
                "status": verdict.status,
                "reason": verdict.reason,
                "detail": verdict.detail,
            }
        )
