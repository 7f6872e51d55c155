from __future__ import annotations

import json

import pytest

import probes.reasons
from matrix.keeping.reasons import PRIORITY, REASONS, highest, status_of
from matrix.running.outcomes import cuda_reason, judge
from matrix.running.processes import Ended


def ended(*lines: object, status: int | None = 0, log: str = "", timed_out: bool = False) -> Ended:
    answer = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return Ended(answer.encode(), log, status, timed_out=timed_out, seconds=1.0)


START = {"kind": "start", "protocol": 1}
GOOD = {"kind": "part", "name": "x", "status": "pass"}
BAD = {"kind": "part", "name": "y", "status": "fail", "reason": "numerics", "detail": "off"}
END = {"kind": "end", "status": "pass", "reason": None, "detail": None}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RuntimeError: CUDA Error: cudaErrorInvalidValue", "cuda:invalid-value"),
        ("RuntimeError: CUDA Error: cudaErrorUnknown", "cuda:unknown"),
        ("cudaErrorIllegalAddress", "cuda:illegal-address"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: oh", "cuda:illegal-address"),
        ("CUDA_ERROR_INVALID_VALUE", "cuda:invalid-value"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
         "cuda:illegal-address"),
        ("CUDA error: misaligned address", "cuda:misaligned-address"),
        ("CUDA out of memory. Tried to allocate 2 GiB", "machine:out-of-memory"),
        ("cudaErrorMemoryAllocation", "machine:out-of-memory"),
        ("a segmentation fault", None),
    ],
)  # fmt: skip
def test_cuda_errors_are_read_by_name(text: str, reason: str | None) -> None:
    assert cuda_reason(text) == reason


def test_the_worst_part_decides_even_against_the_last_line() -> None:
    outcome = judge(ended(START, GOOD, BAD, END), 60)

    assert (outcome.status, outcome.reason, outcome.detail) == ("fail", "numerics", "off")


def test_a_control_that_was_missed_makes_a_pass_worthless() -> None:
    missed = {"kind": "control", "name": "shifted", "failed": False}

    assert judge(ended(START, GOOD, missed, END), 60).reason == "control:not-caught"


def test_a_crash_after_a_right_answer_is_still_a_crash() -> None:
    outcome = judge(ended(START, GOOD, END, status=-11), 60)

    assert outcome.reason == "signal:SIGSEGV"
    assert "after the answer was complete" in str(outcome.detail)
    assert [part.name for part in outcome.parts] == ["x"], "what was measured is kept"


def test_a_crash_names_the_step_it_came_in() -> None:
    step = {"kind": "step", "name": "backward main"}

    assert "backward main" in str(judge(ended(START, step, status=-6), 60).detail)


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"kind": "dance"}', '{"kind": "part", "name": "x"}',
     '{"kind": "end", "status": "fine"}',
     '{"kind": "end", "status": "fail", "reason": "source:unreachable"}',
     '{"kind": "start", "protocol": 9}'],
)  # fmt: skip
def test_lines_that_the_protocol_does_not_know(line: str) -> None:
    outcome = judge(ended(START, GOOD, line), 60)

    assert (outcome.status, outcome.reason) == ("error", "protocol:garbled")
    assert "line 3" in str(outcome.detail)


def test_the_drivers_own_log_is_not_the_cause_of_a_crash() -> None:
    log = (
        "[20:33:02.7][14008][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress"
    )

    assert judge(ended(START, status=-11, log=log), 60).reason == "signal:SIGSEGV"


def test_the_first_cuda_error_is_the_cause() -> None:
    log = "CUDA Error: cudaErrorInvalidValue\nCUDA Error: cudaErrorIllegalAddress\n"

    assert judge(ended(START, status=-6, log=log), 60).reason == "cuda:invalid-value"


def test_a_process_that_the_system_killed_is_no_fault_of_the_software() -> None:
    log = "CUDA Error: cudaErrorIllegalAddress"

    assert judge(ended(START, status=-9, log=log), 60).reason == "machine:killed"


def test_a_hang_that_can_not_be_killed_is_a_hang() -> None:
    outcome = judge(ended(START, status=None, timed_out=True), 60)

    assert (outcome.status, outcome.reason) == ("fail", "timeout")
    assert outcome.suspects_gpu


def test_a_full_disk_is_the_machines() -> None:
    log = "OSError: [Errno 28] No space left on device"

    outcome = judge(ended(START, {"kind": "step", "name": "saving"}, status=1, log=log), 60)

    assert (outcome.status, outcome.reason) == ("miss", "machine:disk-full")
    assert "saving" in str(outcome.detail)


def test_half_a_line_of_a_killed_process_is_no_nonsense() -> None:
    assert judge(ended(START, '{"kind": "pa', status=-11), 60).reason == "signal:SIGSEGV"


def test_a_python_that_can_not_be_started() -> None:
    outcome = judge(ended(status=None, log="No such file"), 60)

    assert (outcome.status, outcome.reason) == ("miss", "harness:start")


def test_every_reason_belongs_to_a_status() -> None:
    for name, (status, _) in REASONS.items():
        example = name.replace("<", "").replace(">", "")
        assert status_of(example) == status
    assert status_of("cuda:") is None
    assert status_of("cuda:<script>") is None
    assert status_of("luck") is None
    assert highest(["pass", "skip", "miss"]) == "miss"


def test_host_and_probes_agree_on_what_outranks_what() -> None:
    assert PRIORITY == probes.reasons.PRIORITY
    for reason in probes.reasons.MACHINE_ERRORS.values():
        assert status_of(reason) == "miss"
