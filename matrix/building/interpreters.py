"""Python interpreters of tested environments, and what the image around one provides."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from matrix.building.uv import run_uv
from matrix.errors import DataError, Unavailable

# Runs inside the candidate interpreter; standard library only. Distributions are read, never
# imported: asking a torch for its version by importing it takes seconds and may need a GPU.
_ASK = """
import importlib.metadata as m, json, platform, sys, sysconfig
found = {}
for d in m.distributions():
    name = (d.metadata["Name"] or "").lower().replace("_", "-")
    if name and name not in found:
        found[name] = [d.version, str(d.locate_file("").resolve())]
print(json.dumps({
    "executable": sys.executable, "version": platform.python_version(),
    "implementation": platform.python_implementation(), "platform": sysconfig.get_platform(),
    "prefix": sys.prefix, "found": found,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """One Python."""

    executable: str
    version: str
    """Such as 3.12.3."""
    platform: str
    """Such as linux-x86_64."""
    provided: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The distributions of its own image: name -> (version, folder)."""

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def torch(self) -> tuple[str, str] | None:
        """(version, folder) of the image's torch, or None."""
        return self.provided.get("torch")

    @property
    def cudnn(self) -> str | None:
        """Version of the image's cuDNN distribution, or None."""
        names = sorted(name for name in self.provided if name.startswith("nvidia-cudnn-cu"))
        return self.provided[names[-1]][0] if names else None


def ask(executable: str) -> Interpreter | None:
    """What an interpreter says of itself, or None when it doesn't run."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    try:
        done = subprocess.run(
            [executable, "-s", "-c", _ASK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(
        executable=answer["executable"],
        version=answer["version"],
        platform=answer["platform"],
        provided={name: (version, folder) for name, (version, folder) in answer["found"].items()},
    )


def runners_own() -> str:
    """The Python that the person at the keyboard used, not the one of our own nox session.

    noxfile.py passes the Python that runs nox: an image's torch lives there.
    """
    return os.environ.get("MATRIX_RUNNER_PYTHON") or sys.executable


def find_interpreter(wanted: str | None) -> Interpreter:
    """The Python for tested environments: a path, a version such as 3.12, or the runner's own.

    Raises:
        DataError: `wanted` is a path at which no Python is, or neither a path nor a version.
        Unavailable: this machine has no such version.
    """
    if wanted is None:
        found = ask(runners_own())
        if found is None:
            raise DataError(f"{runners_own()} does not run. Name a Python with --python.")
        return found
    if "/" in wanted:
        found = ask(str(Path(wanted).expanduser()))
        if found is None:
            raise DataError(f"--python {wanted}: there is no Python at this path that runs.")
        return found
    if not re.fullmatch(r"\d+(\.\w+)*", wanted):
        raise DataError(f"--python {wanted}: write a version such as 3.12, or a path with a /.")
    return _find_version(wanted)


def _find_version(wanted: str) -> Interpreter:
    # The image's own interpreter comes first: its torch may be the one that is asked for.
    for candidate in (runners_own(), shutil.which("python3"), shutil.which(f"python{wanted}")):
        found = ask(candidate) if candidate else None
        if found is not None and _matches(found, wanted):
            return found
    answer = run_uv("python", "find", "--no-project", "--system", wanted)
    candidates = [answer.output.strip()] if answer.ok else []
    # uv does not look at pyenv's versions unless their shims are switched on.
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates += [str(folder / "bin/python3") for folder in sorted(pyenv.glob(f"{wanted}*"))]
    for candidate in candidates:
        found = ask(candidate)
        if found is not None and _matches(found, wanted):
            return found
    raise Unavailable(
        "machine:no-python",
        f"Python {wanted} is not on this machine. Install it, or name another with --python.",
    )


def _matches(interpreter: Interpreter, wanted: str) -> bool:
    return interpreter.version == wanted or interpreter.version.startswith(f"{wanted}.")
