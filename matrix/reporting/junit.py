"""A campaign as JUnit XML, for the test reports of CI services."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Self

from junitparser import Error, Failure, JUnitXml, Skipped
from junitparser import TestCase as AnyCase
from junitparser.xunit2 import TestCase, TestSuite

from matrix.errors import DataError, MatrixError
from matrix.keeping.records import Record
from matrix.keeping.store import place_of
from matrix.planning.plan import Cell, Plan, cell_key
from matrix.stacks import Stack
from matrix.visible import visible

#: Which element says how a run ended; a pass has none.
_RESULT: dict[str, type[Failure | Error | Skipped]] = {
    "fail": Failure,
    "error": Error,
    "void": Error,
    "miss": Skipped,
    "skip": Skipped,
}


class JUnitReport:
    """Every cell of a plan as a test case: what ran now, what was done before, what can't run.

    The file is written once, whole, when the campaign ends or is interrupted. A cell that was done
    before keeps its result, so that a campaign in several sittings ends with a full report.

    Raises:
        DataError: the report's folder does not exist.
        MatrixError: on leaving, the file can't be written.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        if not path.parent.is_dir() or path.is_dir():
            raise DataError(f"--junit {path}: name a file in a folder that exists.")
        self._path = path
        self._plan = plan
        self._lock = threading.Lock()
        self._records: dict[tuple[str, str], list[Record]] = {}
        self._gpus: dict[str, str] = {}
        """By run id."""
        self._given: dict[tuple[str, str], str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.write()

    def doing(self, text: str) -> None:
        """Steps are no part of the report."""

    def began(self, cell: Cell, gpu: str | None) -> None:
        """A probe's process has started, on this GPU or on none."""
        with self._lock:
            self._given[cell.stack.id, cell.probe.id] = gpu

    def ran(self, cell: Cell, record: Record) -> None:
        """A run has ended and is kept."""
        name = (cell.stack.id, cell.probe.id)
        with self._lock:
            self._records.setdefault(name, []).append(record)
            gpu = self._given.pop(name, None)
            if gpu is not None:
                self._gpus[record.run.id] = gpu

    def trouble(self, text: str) -> None:
        """What could not be done shows as a skipped test."""

    def write(self) -> None:
        """Replace the file by the report as it is now, whole."""
        with self._lock:
            content = self._report().tostring()
        temporary = self._path.parent / f".{self._path.name}.{secrets.token_hex(4)}.tmp"
        try:
            temporary.write_bytes(content)
            temporary.replace(self._path)
        except OSError as error:
            raise MatrixError(
                f"the report {self._path} could not be written: {error.strerror}. "
                "Every run that had ended is kept; run again for the report."
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _report(self) -> JUnitXml:
        report = JUnitXml(f"{self._plan.campaign.name} on {self._plan.machine}")
        for stack in self._plan.stacks():
            report.add_testsuite(self._suite(stack))
        report.update_statistics()
        return report

    def _suite(self, stack: Stack) -> TestSuite:
        suite = TestSuite(_text(f"{stack.name} {stack.id}"))
        suite.add_property("stack", stack.id)
        suite.add_property("machine", self._plan.machine)
        if self._plan.gpu is not None:
            suite.add_property("gpu", _text(self._plan.gpu.name))
        for component, version in stack.requested.items():
            suite.add_property(component, _text(version))
        for patch, head in stack.patches:
            suite.add_property(f"patch {_text(patch)}", _text(head))
        cases: list[AnyCase] = []
        for cell in self._plan.of(stack):
            records = self._records.get((stack.id, cell.probe.id), [])
            if records:
                cases += [self._case_of_run(cell, record) for record in records]
            else:
                cases.append(self._case_without_run(cell))
        # Programs take two cases of one name for one.
        seen: Counter[str] = Counter()
        for case in cases:
            name = str(case.name)
            seen[name] += 1
            if seen[name] > 1:
                case.name = f"{name} [{seen[name]}]"
        suite.add_testcases(cases)
        return suite

    def _case_of_run(self, cell: Cell, record: Record) -> TestCase:
        case = _case(cell, record.run.seconds)
        case.add_property("run", record.run.id)
        case.add_property("evidence", f"matrix/evidence/{place_of(record).as_posix()}")
        gpu = self._gpus.get(record.run.id)
        if gpu is not None:
            case.add_property("gpu", _text(gpu))
        _end(case, record.status, record.reason, record.detail)
        said = "\n".join(
            f"{part.name}: {part.status}{f' {part.reason}' if part.reason else ''}"
            + (f": {part.detail}" if part.detail else "")
            for part in record.parts
        )
        if said:
            case.system_out = _text(said, lines=True)
        return case

    def _case_without_run(self, cell: Cell) -> TestCase:
        if cell.state == "not here":
            case = _case(cell, 0.0)
            _end(case, "skip", cell.reason, cell.why)
            return case
        key = cell_key(cell, self._plan.setting, self._plan.sanitize)
        before = self._plan.newest.get(key) if cell.state == "done" else None
        if before is None:
            case = _case(cell, 0.0)
            _end(case, "skip", None, "not run: the campaign ended before its turn")
            return case
        case = _case(cell, before.seconds)
        case.add_property("run", before.run)
        case.add_property("evidence", f"matrix/evidence/{before.path}")
        case.add_property("earlier", "true")
        _end(case, before.status, before.reason, before.detail)
        return case


def _case(cell: Cell, seconds: float) -> TestCase:
    return TestCase(cell.probe.id, _text(cell.stack.name), seconds)


def _end(case: TestCase, status: str, reason: str | None, detail: str | None) -> None:
    if status == "pass":
        return
    text = _text(": ".join(part for part in (reason, detail) if part) or status)
    result = _RESULT[status](text, status if reason is None else f"{status} {reason}")
    result.text = text
    case.result = result


def _text(text: str, *, lines: bool = False) -> str:
    """Text that XML can hold: nothing hidden in it, and no character that XML forbids."""
    shown = "\n".join(visible(line) for line in text.split("\n")) if lines else visible(text)
    return shown.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
