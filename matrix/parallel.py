"""Work that every processor does a share of, and processes that do not outlive this one."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")

_PR_SET_PDEATHSIG = 1
_SHARES = 8
"""Of each process: few enough to cost little, enough that none waits long for the last."""

_work: list[Callable[[Any], Any]] = []
"""What forks are to do, the newest last: they inherit it."""


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it ends, however it does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def in_processes(make: Callable[[Item], Made], items: Sequence[Item]) -> Iterator[Made]:
    """What `make` gives for each item, in order, made by a process for each processor.

    The processes are forks, so `make` and what it uses are there without being sent. Only what it
    gives is, and must be something that pickle knows. To be called where no thread runs beside.
    """
    processes = min(len(os.sched_getaffinity(0)), len(items))
    if processes < 2:
        yield from map(make, items)
        return
    _work.append(make)
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, context, initializer=die_with_parent) as pool:
            size = max(1, len(items) // (processes * _SHARES))
            yield from pool.map(_made, items, chunksize=size)
    finally:
        _work.pop()


def _made(item: Any) -> Any:
    return _work[-1](item)
