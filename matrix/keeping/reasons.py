"""Statuses of a run, and the fixed list of reasons a run can give for not passing.

The list is closed: a record with another reason does not validate. Reasons with a part in angle
brackets are families whose last part is a name taken from the failure itself.
"""

from __future__ import annotations

import re
from typing import Final, Literal

Status = Literal["fail", "error", "void", "miss", "skip", "pass"]

#: Highest priority first: a summary of several results is the first of these that occurs.
PRIORITY: Final[tuple[Status, ...]] = ("fail", "error", "void", "miss", "skip", "pass")

#: reason -> (status it belongs to, meaning)
REASONS: Final[dict[str, tuple[Status, str]]] = {
    "cuda:<error>": ("fail", "a CUDA error, by its name: illegal-address, invalid-value, unknown"),
    "compile:<exception>": ("fail", "a kernel did not compile"),
    "import:<exception>": ("fail", "the software did not import"),
    "call:<exception>": ("fail", "a call raised before or without a CUDA error"),
    "numerics": ("fail", "a result is outside the tolerance of its reference"),
    "nondeterministic": ("fail", "a result that must repeat did not"),
    "sanitizer:<tool>": ("fail", "compute-sanitizer found an error; the detail names the kernel"),
    "recompiles": ("fail", "compilations grow with the number of microbatches"),
    "growth": ("fail", "what a process keeps reaches a limit of the machine in a usual training"),
    "timeout": ("fail", "the process was still running at its time limit"),
    "signal:<name>": ("fail", "the process died from a signal, such as SIGSEGV"),
    "exit:<code>": ("fail", "the process ended by itself, without an answer, with this status"),
    "resolve:conflict": ("fail", "the versions can't be installed together"),
    "patch:conflict": ("fail", "a patch of the stack does not apply to the revision"),
    "patch:unsafe": ("fail", "a patch would bring something into the tree that is refused"),
    "probe:<exception>": ("error", "the probe raised outside the tested software"),
    "probe:no-check": ("error", "the probe ended without having checked anything"),
    "probe:no-control": ("error", "the probe showed no deliberately wrong answer to its check"),
    "control:not-caught": ("error", "a deliberately wrong answer was not noticed"),
    "protocol:garbled": ("error", "the answer was not what the protocol allows"),
    "protocol:no-end": ("error", "the answer stopped, though the process ended with status 0"),
    "loaded:mismatch": ("void", "requested and loaded software differ"),
    "machine:no-gpu": ("miss", "no GPU of the needed architecture"),
    "machine:too-few-gpus": ("miss", "fewer GPUs of one kind than the probe asks for"),
    "machine:no-torch": ("miss", "no build of torch that fits this machine is on offer"),
    "machine:not-provided": ("miss", "the image has no such part, or another version of it"),
    "machine:no-python": ("miss", "the requested Python is not on this machine"),
    "machine:gpu-unhealthy": ("miss", "the GPU failed a check that uses torch alone"),
    "machine:out-of-memory": ("miss", "device or host memory ran out"),
    "machine:no-condition": ("miss", "the condition in question could not be created here"),
    "machine:limit": ("miss", "one probe used more of the machine than it may"),
    "machine:killed": ("miss", "the process was killed by the system"),
    "machine:disk-full": ("miss", "no space was left"),
    "source:unreachable": ("miss", "the git source could not be reached and is not in the cache"),
    "source:no-such-revision": ("miss", "the git source has no such revision"),
    "patch:unavailable": ("miss", "a patch's head is unknown, or the source does not have it"),
    "source:broken": ("miss", "the git source could not be read or checked out"),
    "registry:no-such-version": ("miss", "no package index has this version for this Python"),
    "registry:unreachable": ("miss", "the package index could not be reached"),
    "wheelhouse:missing-wheel": ("miss", "the wheelhouse lacks a wheel"),
    "install:failed": ("miss", "packages were resolved but could not be installed"),
    "harness:start": ("miss", "the probe process could not be started"),
    "upstream:absent": ("skip", "this stack's upstream has no such function"),
}

_FAMILY = {
    prefix: status
    for name, (status, _) in REASONS.items()
    if "<" in name
    for prefix in [name.split(":")[0]]
}
_VALUE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def status_of(reason: str) -> Status | None:
    """The status that a reason belongs to, or None when the reason is not in the list."""
    if reason in REASONS and "<" not in reason:
        return REASONS[reason][0]
    family, _, value = reason.partition(":")
    if family in _FAMILY and _VALUE.fullmatch(value):
        return _FAMILY[family]
    return None


def highest(statuses: list[Status]) -> Status:
    """The status that stands for several: the first in order of priority.

    Raises:
        ValueError: the list is empty.
    """
    return min(statuses, key=PRIORITY.index)
