"""Which errors come out of first calls that follow a failed load or race with each other?

The DSL loads a compiled function at its first call, under a lock that all functions of a process
share. Each part creates one condition in a child process of its own, with a time limit for each
step, and records what the calls gave or in which step the process hung or died:

* a failed load: a function of ours asks for more dynamic shared memory than the GPU has for a block
  (which is refused when the attribute is set, at load), then another function is called for the
  first time, and the first one again;
* a race for one function: several threads call the same fresh function at the same moment, over
  and over with a new one each time, and after each race another fresh function is called;
* a race of several functions: each thread calls a fresh function of its own at the same moment.

A part passes when the condition was there and something was recorded. What comes out is compared
with nothing. The control of each is the same calls without the condition: all must succeed.

Compiling and calling for the first time in autograd's thread is what the probe `threads` asks. What
one GPU can't show: a load that fails on one of several devices and passes in silence, which is a
question of `mechanism-devices`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from probes.conditions import Condition, Diary, Function, Workbench, WrongCount, examine
from probes.gpu_driver import NUMBERS
from probes.session import Session

PROBE: Final = {
    "id": "mechanism-first-call",
    "needs": ["gpu:sm90", "nvidia-cutlass-dsl"],
    "required": False,
    "group": "mechanism",
    "time_limit_s": 600,
    "parameters": {
        "quick": {"shared_bytes": 300000, "rounds": 10, "threads": 2, "hang_s": 15, "at_once": 6},
        "thorough": {
            "shared_bytes": 300000,
            "rounds": 200,
            "threads": 4,
            "hang_s": 30,
            "at_once": 6,
        },
    },
}

ME: Final = "mechanism-first-call"
RACE: Final = "first calls at once"
AFTER: Final = "first call after it"
OTHER: Final = "first call of another function"


def run(probe: Session) -> None:
    """A failed load and two races."""
    parameters = probe.parameters
    rounds, threads = int(parameters["rounds"]), int(parameters["threads"])
    hang = float(parameters["hang_s"])
    limits = dict.fromkeys((RACE, AFTER, OTHER, "first call", "second call"), hang)
    conditions = [
        Condition(
            "failed load, then another function",
            "failed_load",
            {"shared_bytes": int(parameters["shared_bytes"])},
            # Above 48 KiB as well, so that the attribute is set here too.
            {"shared_bytes": 100_000},
            step_limits_s=limits,
        ),
        Condition(
            "race for one function",
            "race",
            {"threads": threads, "rounds": rounds, "same": True},
            {"threads": 1, "rounds": rounds, "same": True},
            step_limits_s=limits,
        ),
        Condition(
            "race of several functions",
            "race",
            {"threads": threads, "rounds": rounds, "same": False},
            {"threads": 1, "rounds": rounds, "same": False},
            step_limits_s=limits,
        ),
    ]
    examine(probe, ME, conditions, at_once=int(parameters["at_once"]))


def failed_load(probe: Session, arguments: Mapping[str, Any]) -> None:
    """A function that can't be loaded, then one that can."""
    diary, bench = Diary(probe), Workbench(probe)
    wanted = int(arguments["shared_bytes"])
    most = bench.gpu.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
    known, other = bench.function(), bench.function()
    large = bench.function(shared_bytes=wanted)
    known.call()
    for function in (large, other):
        function.prepare()
    diary.number(most_shared_bytes=most, wanted_shared_bytes=wanted)
    diary.created(wanted > most, f"{wanted} bytes of shared memory asked for, {most} there are")
    diary.attempt("first call", large.call)
    diary.attempt("known function", known.call)
    diary.attempt(OTHER, other.call)
    diary.attempt("second call", large.call)


def race(probe: Session, arguments: Mapping[str, Any]) -> None:
    """First calls from several threads at the same moment, in many rounds."""
    diary, bench = Diary(probe), Workbench(probe)
    count, same = int(arguments["threads"]), bool(arguments["same"])
    diary.created(count > 1, f"{count} threads, held by a barrier until all were there")
    for number in range(int(arguments["rounds"])):
        probe.step(f"compile for round {number}")
        one = bench.function()
        # On one function, each thread has a buffer of its own to count in.
        runners = [
            Function(bench.gpu, one.compiled) if same else bench.function() for _ in range(count)
        ]
        after = bench.function()
        for function in (*runners, after):
            function.prepare()
        if not diary.attempt(RACE, lambda: _at_once(bench, runners)):  # noqa: B023
            diary.number(rounds_before_an_error_count=number)
        if not diary.attempt(AFTER, after.call):
            diary.number(rounds_before_an_error_count=number)
            return
    diary.number(rounds_count=int(arguments["rounds"]))


def _at_once(bench: Workbench, functions: list[Function]) -> None:
    """Call each function in a thread of its own.

    Raises:
        Exception: the first that any thread raised.
        WrongCount: a launch reported success and did not do its work.
    """
    barrier = threading.Barrier(len(functions))
    errors: list[Exception] = []

    def call(function: Function) -> None:
        try:
            bench.gpu("cuCtxSetCurrent", bench.gpu.context)
            barrier.wait()
            function.launch()
        except Exception as error:  # noqa: BLE001 - handed to the one who asked
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(function,), daemon=True) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    for function in functions:
        found = bench.gpu.numbers(function.buffer)
        if found != [1] * NUMBERS:
            raise WrongCount(f"{found[0]} instead of 1")
