from __future__ import annotations

import pytest

from matrix.keeping.reasons import PRIORITY, status_of
from probes import reasons
from probes.reasons import of_ours, of_tested


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors",
            "illegal-address",
        ),
        ("CUDA Error: cudaErrorInvalidValue", "invalid-value"),
        ("CUDA Error: cudaErrorUnknown", "unknown"),
        ("Got Cuda Runtime Error: cudaErrorInvalidValue invalid argument", "invalid-value"),
        ("CUDA error: invalid argument", "invalid-value"),
        ("CUDA error: unspecified launch failure", "launch-failure"),
        ("CUDA_ERROR_LAUNCH_FAILED", "launch-failure"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "illegal-address"),
        ("CUDA error: misaligned address", "misaligned-address"),
        ("CUDA error: device-side assert triggered", "assert"),
        ("CUDA_ERROR_NO_BINARY_FOR_GPU", "no-kernel-image-for-device"),
        ("cudaErrorNoKernelImageForDevice", "no-kernel-image-for-device"),
        ("cudaErrorInvalidConfiguration", "invalid-configuration"),
    ],
)
def test_cuda_text_wins_whatever_the_exception(text: str, reason: str) -> None:
    for stage in ("import", "compile", "call"):
        verdict = of_tested(stage, ValueError(text))  # type: ignore[arg-type]
        assert (verdict.status, verdict.reason) == ("fail", f"cuda:{reason}")
        assert status_of(str(verdict.reason)) == "fail"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "machine:out-of-memory"),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY"), "machine:out-of-memory"),
        (RuntimeError("cudaErrorMemoryAllocation"), "machine:out-of-memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("x"), "machine:out-of-memory"),
        (MemoryError(), "machine:out-of-memory"),
        (RuntimeError("No CUDA GPUs are available"), "machine:no-gpu"),
        (RuntimeError("cudaErrorNoDevice"), "machine:no-gpu"),
        (RuntimeError("cudaErrorECCUncorrectable"), "machine:gpu-unhealthy"),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), "machine:gpu-unhealthy"),
    ],
)
def test_what_the_machine_lacks_is_no_fault(error: Exception, reason: str) -> None:
    verdict = of_tested("call", error)
    assert (verdict.status, verdict.reason) == ("miss", reason)
    assert status_of(reason) == "miss"


def test_the_cause_counts() -> None:
    try:
        try:
            raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")
        except RuntimeError as error:
            raise TypeError("wrapped") from error
    except TypeError as error:
        verdict = of_tested("call", error)
    assert verdict.reason == "cuda:illegal-address"
    assert verdict.detail == "RuntimeError: CUDA Error: cudaErrorIllegalAddress"


@pytest.mark.parametrize("stage", ["import", "compile", "call"])
def test_without_cuda_the_stage_and_the_type_are_the_reason(stage: str) -> None:
    verdict = of_tested(stage, TypeError("atomicrmw() missing 'res'"))  # type: ignore[arg-type]
    assert verdict.reason == f"{stage}:TypeError"
    assert verdict.detail == "TypeError: atomicrmw() missing 'res'"
    assert status_of(str(verdict.reason)) == "fail"


def test_our_own_errors_never_blame_the_software() -> None:
    verdict = of_ours(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert (verdict.status, verdict.reason) == ("error", "probe:RuntimeError")
    assert status_of("probe:RuntimeError") == "error"


def test_an_odd_type_name_still_makes_a_reason() -> None:
    verdict = of_tested("call", type("Bad Name!", (Exception,), {})("x"))
    assert status_of(str(verdict.reason)) == "fail"


def test_both_sides_have_the_same_priority() -> None:
    assert reasons.PRIORITY == PRIORITY


def test_a_text_with_two_errors_means_the_first() -> None:
    assert reasons.cuda_error("cudaErrorInvalidValue after cudaErrorUnknown") == "invalid-value"
    assert reasons.cuda_error("all is well") is None
