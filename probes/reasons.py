"""From an exception, or from text that a library left, to a status and a reason.

Standard library only, and nothing here looks at the version of anything. The names of CUDA errors
are those of the runtime API (`cudaErrorIllegalAddress` becomes `cuda:illegal-address`), whichever
API or library reported the error and in whichever words.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Status = Literal["fail", "error", "void", "miss", "skip", "pass"]
Stage = Literal["import", "compile", "call"]

PRIORITY: tuple[Status, ...] = ("fail", "error", "void", "miss", "skip", "pass")
"""Highest first: a run's status is the first of these that one of its parts has."""

_RUNTIME_NAME = re.compile(r"\bcudaError([A-Z][A-Za-z0-9]*)")
_DRIVER_NAME = re.compile(r"\bCUDA_ERROR_([A-Z0-9_]+)")
# The driver API has other words than the runtime API for some errors.
_DRIVER_TO_RUNTIME = {
    "launch-failed": "launch-failure",
    "no-binary-for-gpu": "no-kernel-image-for-device",
    "out-of-memory": "memory-allocation",
    "deinitialized": "cudart-unloading",
    "launch-out-of-resources": "launch-out-of-resources",
    "not-found": "symbol-not-found",
    "invalid-handle": "invalid-resource-handle",
}
# torch prints the description without the name.
_PHRASES = (
    ("an illegal memory access was encountered", "illegal-address"),
    ("an illegal instruction was encountered", "illegal-instruction"),
    ("unspecified launch failure", "launch-failure"),
    ("misaligned address", "misaligned-address"),
    ("device-side assert triggered", "assert"),
    ("CUDA error: invalid argument", "invalid-value"),
    ("CUDA error: unknown error", "unknown"),
    ("CUDA error: invalid device function", "invalid-device-function"),
    ("CUDA error: invalid configuration argument", "invalid-configuration"),
    ("CUDA error: invalid resource handle", "invalid-resource-handle"),
    ("CUDA error: no kernel image is available", "no-kernel-image-for-device"),
    ("CUDA error: the launch timed out", "launch-timeout"),
    ("too many resources requested for launch", "launch-out-of-resources"),
    ("CUDA error: out of memory", "memory-allocation"),
    ("CUDA out of memory", "memory-allocation"),
    ("uncorrectable ECC error", "ecc-uncorrectable"),
)
_NO_DEVICE = (
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "Torch not compiled with CUDA enabled",
)
#: CUDA errors that speak of the machine, not of the software, and the reason each gives.
MACHINE_ERRORS = {
    "memory-allocation": "machine:out-of-memory",
    "no-device": "machine:no-gpu",
    "insufficient-driver": "machine:no-gpu",
    "devices-unavailable": "machine:gpu-unhealthy",
    "device-unavailable": "machine:gpu-unhealthy",
    "ecc-uncorrectable": "machine:gpu-unhealthy",
    "nvlink-uncorrectable": "machine:gpu-unhealthy",
    "hardware-stack-error": "machine:gpu-unhealthy",
    "system-driver-mismatch": "machine:gpu-unhealthy",
    "system-not-ready": "machine:gpu-unhealthy",
}
#: After these the context refuses every further call, so nothing later in the process counts.
STICKY = frozenset(
    {
        "cuda:illegal-address",
        "cuda:illegal-instruction",
        "cuda:invalid-address-space",
        "cuda:invalid-pc",
        "cuda:launch-failure",
        "cuda:launch-timeout",
        "cuda:misaligned-address",
        "cuda:assert",
        "cuda:unknown",
        "machine:gpu-unhealthy",
    }
)


@dataclass(frozen=True)
class Verdict:
    """What a part, or a whole run, came to."""

    status: Status
    reason: str | None = None
    detail: str | None = None


def of_tested(stage: Stage, error: BaseException) -> Verdict:
    """The verdict on software that raised `error` while it was under test."""
    text = "\n".join(f"{type(link).__name__}: {link}" for link in chain(error))
    cuda = cuda_error(text)
    detail = useful_line(text, cuda)
    if cuda in MACHINE_ERRORS:
        return Verdict("miss", MACHINE_ERRORS[cuda], detail)
    machine = _of_the_machine(error)
    if machine is not None:
        return Verdict("miss", machine, detail)
    if "OutOfMemoryError" in text:
        return Verdict("miss", "machine:out-of-memory", detail)
    if any(phrase in text for phrase in _NO_DEVICE):
        return Verdict("miss", "machine:no-gpu", detail)
    if cuda is not None:
        return Verdict("fail", f"cuda:{cuda}", detail)
    return Verdict("fail", f"{stage}:{type_name(error)}", detail)


def of_ours(error: BaseException) -> Verdict:
    """The verdict on a probe that raised `error` outside of the software under test."""
    text = f"{type(error).__name__}: {error}"
    machine = _of_the_machine(error)
    if machine is not None:
        return Verdict("miss", machine, useful_line(text, None))
    return Verdict("error", f"probe:{type_name(error)}", useful_line(text, None))


def _of_the_machine(error: BaseException) -> str | None:
    """The reason when memory or disk ran out, wherever that was noticed; else None."""
    for link in chain(error):
        if isinstance(link, MemoryError):
            return "machine:out-of-memory"
        full = (errno.ENOSPC, errno.EDQUOT)
        if isinstance(link, OSError) and link.errno in full:
            return "machine:disk-full"
        if "No space left on device" in str(link):
            return "machine:disk-full"
    return None


def chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what led to it, newest first, each once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def cuda_error(text: str) -> str | None:
    """The runtime API's name of the first CUDA error in a text, in kebab case, or None.

    A text that quotes an error's name counts, so give this only text that reports a failure.
    """
    found = [(match.start(), kebab(match.group(1))) for match in _RUNTIME_NAME.finditer(text)]
    for match in _DRIVER_NAME.finditer(text):
        name = match.group(1).lower().replace("_", "-")
        found.append((match.start(), _DRIVER_TO_RUNTIME.get(name, name)))
    for phrase, name in _PHRASES:
        position = text.find(phrase)
        if position >= 0:
            found.append((position, name))
    return min(found)[1] if found else None


def kebab(name: str) -> str:
    """`IllegalAddress` as `illegal-address`, `ECCUncorrectable` as `ecc-uncorrectable`."""
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1-\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1-\2", spaced).lower()


def type_name(error: BaseException) -> str:
    """The exception's type as a reason can hold it."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", type(error).__name__)[:64] or "Exception"


def useful_line(text: str, cuda: str | None) -> str:
    """The line that says most: the one with the CUDA error, else the first with any content."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if cuda is not None:
        for line in lines:
            if cuda_error(line) == cuda:
                return line
    for line in lines:
        # A type name alone says less than the line after it.
        if not re.fullmatch(r"\w+:?", line):
            return line
    return lines[0] if lines else ""
