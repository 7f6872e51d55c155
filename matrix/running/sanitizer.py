"""Running a probe under NVIDIA's compute-sanitizer, and reading what it found."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.errors import DataError
from matrix.running.outcomes import Outcome

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


@dataclass(frozen=True)
class Sanitizer:
    """One of the tools."""

    tool: str
    program: str
    slowdown: float = 20.0
    """By how much a probe's time limit is stretched."""

    def wrap(self, command: list[str], report: Path) -> list[str]:
        """The command under the tool.

        The exit status stays the program's own: the tool would also change it for calls that
        failed and did no harm, such as asking an old driver for a new function.

        Args:
            command: what to run.
            report: the file that the tool writes to.
        """
        return [
            self.program, "--tool", self.tool, "--target-processes", "all",
            "--log-file", str(report), *command,
        ]  # fmt: skip

    def judge(self, outcome: Outcome, path: Path) -> Outcome:
        """What the probe showed, unless the tool found something: then that is the reason."""
        try:
            report = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            report = ""
        finding = first_finding(report)
        if finding is None:
            return outcome
        return replace(outcome, status="fail", reason=f"sanitizer:{self.tool}", detail=finding)


def find_sanitizer(tool: str) -> Sanitizer:
    """The tool on this machine.

    Raises:
        DataError: there is no such tool, or it is not installed.
    """
    if tool not in TOOLS:
        raise DataError(f"--sanitize {tool}: no such tool. Tools: {', '.join(TOOLS)}.")
    program = shutil.which("compute-sanitizer")
    if program is None:
        raise DataError(
            "--sanitize: compute-sanitizer is not on the PATH. It comes with the CUDA toolkit."
        )
    return Sanitizer(tool, program)


_ERROR = re.compile(
    r"^=+ (?:Error: |Warning: )?((?:Invalid|Race|Uninitialized|Barrier|Program hit|Out-of-bounds|"
    r"Misaligned|Illegal|Potential|Divergent|Missing)\b.*)$"
)
_PLACE = re.compile(r"^=+\s+at (?:0x[0-9a-f]+ in )?(.+?)(?:\+0x[0-9a-f]+)?(?: in .*)?$")


def first_finding(report: str) -> str | None:
    """The first error of a report, with the kernel it was found in; None when there is none.

    An error of a CUDA call that the program itself handles is no finding: libraries ask the
    driver for functions that it may not have.
    """
    lines = report.splitlines()
    for number, line in enumerate(lines):
        found = _ERROR.match(line)
        if found is None or found.group(1).startswith("Program hit"):
            continue
        for later in lines[number + 1 : number + 4]:
            place = _PLACE.match(later)
            if place is not None:
                return f"{found.group(1).strip()} in {place.group(1).strip()}"
        return found.group(1).strip()
    return None
