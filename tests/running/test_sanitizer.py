"""Running under compute-sanitizer: its command line, its report, and what counts of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from matrix.errors import DataError
from matrix.running.outcomes import Outcome
from matrix.running.sanitizer import Sanitizer, find_sanitizer, first_finding

REPORT = """========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call
=========     Saved host backtrace up to driver entry point at error
========= Invalid __global__ read of size 4 bytes
=========     at kernel_cutlass_backward_main+0x1a30
=========     by thread (3,0,0) in block (0,0,0)
========= Invalid __global__ write of size 2 bytes
=========     at other_kernel+0x10
========= ERROR SUMMARY: 3 errors
"""


def test_the_first_finding_is_told_with_its_kernel() -> None:
    found = first_finding(REPORT)

    assert found == "Invalid __global__ read of size 4 bytes in kernel_cutlass_backward_main"


def test_a_call_that_failed_is_no_finding() -> None:
    assert first_finding("\n".join(REPORT.splitlines()[:3])) is None
    assert first_finding("") is None


@pytest.mark.parametrize(("report", "status"), [(REPORT, "fail"), ("", "pass"), (None, "pass")])
def test_a_finding_becomes_the_reason(tmp_path: Path, report: str | None, status: str) -> None:
    path = tmp_path / "report.txt"
    if report is not None:
        path.write_text(report)

    outcome = Sanitizer("memcheck", "compute-sanitizer").judge(Outcome("pass", None), path)

    assert outcome.status == status
    assert outcome.reason == ("sanitizer:memcheck" if status == "fail" else None)


def test_an_unknown_tool_or_none_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="Tools: memcheck"):
        find_sanitizer("memchek")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DataError, match="not on the PATH"):
        find_sanitizer("memcheck")
