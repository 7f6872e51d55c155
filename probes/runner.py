"""Entry of a probe process: one request on stdin, JSON lines on stdout, everything else on stderr.

    <environment's python> -s -P probes/runner.py < request.json > answer.jsonl 2> log.txt

A request for trying one probe by hand, with no stack to speak of:

    {"protocol": 1, "probe": "compile", "parameters": {"seed": 1},
     "components": {"torch": {"requested": "2.11.0", "resolved": null, "distribution": "torch",
                              "module": "torch", "origin": "environment", "absent": null},
                    "nvidia-cutlass-dsl": {"requested": "4.5.2", "resolved": null,
                              "distribution": "nvidia-cutlass-dsl", "module": "cutlass",
                              "origin": "environment", "absent": null},
                    "megatron-core": {"requested": "<commit>", "resolved": null,
                              "distribution": null, "module": "megatron.core",
                              "origin": "tree", "absent": null}},
     "trees": {"megatron-core": {"path": "<worktree>", "revision": "<commit>", "tree": "<tree>"}},
     "environment": "<prefix>", "image": [], "scratch": "<folder>"}

A component that the request leaves out is one that the stack does not have. Parameters that the
request leaves out come from the probe's own setting `quick`, or from the one that
`parameters.setting` names. Trees are put on the
import path here.

Standard library only. This file never puts the project's root on `sys.path`: a module of the
tested environment that happens to be called `matrix` or `tests` must still be found as it would
be without us.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import importlib.util
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probes.session import Session

PROTOCOL = 1


def take_stdout() -> int:
    """Keep the answer's channel to ourselves, and send whatever is printed to the log.

    Done on the level of file descriptors, because libraries print from C as well. The duplicate
    is not inheritable, so no child process can write an answer either.

    Returns:
        The file descriptor of the answer.
    """
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    return answer


def die_with_the_host() -> None:
    """Have the kernel kill this process when the host dies, even from SIGKILL.

    Otherwise a probe whose campaign was killed would keep the GPU, and the next start would
    measure beside it.
    """
    set_parent_death_signal = 1
    host = os.getppid()
    try:
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # no Linux: nothing like it exists
    if os.getppid() != host:
        os._exit(1)  # it died between the two calls


def put_on_path(trees: list[str]) -> None:
    """Let the trees' packages be found before installed ones, and after the standard library.

    Not by PYTHONPATH: a `json.py` at a repository's root would then run in this very file.
    """
    places = [
        place
        for place, entry in enumerate(sys.path)
        if Path(entry).name in ("site-packages", "dist-packages")
    ]
    place = min(places, default=len(sys.path))
    sys.path[place:place] = trees


def make_package_importable(room: Path) -> None:
    """Make `probes` importable from its folder without touching `sys.path`."""
    spec = importlib.util.spec_from_file_location(
        "probes", room / "__init__.py", submodule_search_locations=[str(room)]
    )
    if spec is None or spec.loader is None:
        raise ImportError("the probes package has no loader")
    package = importlib.util.module_from_spec(spec)
    sys.modules["probes"] = package
    spec.loader.exec_module(package)


def run_probe(session: Session, name: str) -> None:
    """Import the probe and ask its question; every way it can end becomes part of the answer."""
    with session.guard():
        session.step(f"import the probe {name}")
        module = importlib.import_module(f"probes.{name.replace('-', '_')}")
        session.use_defaults(module.PROBE["parameters"])
        module.run(session)


def run_function(session: Session, name: str, call: dict[str, Any]) -> None:
    """Run one function of a probe, asked for by that probe itself; see `probes/children.py`."""
    sys.path[:] = call["sys_path"]
    with session.guard():
        module = importlib.import_module(f"probes.{name.replace('-', '_')}")
        session.returned(getattr(module, call["function"])(session, call["arguments"]))


def main() -> int:
    """Run one probe. The process's status is 0 whenever an `end` line was written."""
    answer = take_stdout()
    die_with_the_host()
    faulthandler.enable(file=sys.stderr)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr)  # asked before a hung child is killed
    make_package_importable(Path(__file__).resolve().parent)
    from probes.answer import Answer
    from probes.session import Session

    lines = Answer(answer)
    try:
        request: dict[str, Any] = json.load(sys.stdin)
        if request.get("protocol") != PROTOCOL:
            raise ValueError(f"protocol {request.get('protocol')!r} is not {PROTOCOL}")
        name = str(request["probe"])
        session = Session(request, lines)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        lines.write(
            {
                "kind": "end",
                "status": "error",
                "reason": "protocol:garbled",
                "detail": f"request not understood: {type(error).__name__}: {error}",
            }
        )
        return 0
    put_on_path([str(tree["path"]) for tree in session.trees.values()])
    lines.write(
        {
            "kind": "start",
            "protocol": PROTOCOL,
            "probe": name,
            "python": platform.python_version(),
            "pid": os.getpid(),
        }
    )
    session.join_gpu()
    if "call" in request:
        run_function(session, name, request["call"])
    else:
        run_probe(session, name)
    session.end()
    # Leave without running exit handlers: libraries under test have crashed in theirs, after the
    # answer was complete, and that says nothing about the question asked.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
