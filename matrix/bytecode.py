"""Bytecode of an environment's modules, made once before any probe runs, and checked at each use.

Probe processes read bytecode from here and nowhere else: what lies beside a source could have been
written by anybody, and would run unseen by every hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from pathlib import Path

from matrix.components import Component
from matrix.processes import clean_environment
from matrix.rooms import Rooms

TIME_LIMIT_S = 300.0


def folder_of(environment: Path) -> Path:
    """Where an environment's bytecode is kept."""
    return environment / "bytecode"


def make(environment: Path, components: dict[str, Component], rooms: Rooms) -> str:
    """Import what probes import, keeping the bytecode.

    An import that fails, crashes or hangs is no error: what is missing is compiled by each probe.

    Returns:
        What `digest` says of the result.
    """
    kept = folder_of(environment)
    kept.mkdir()
    scratch = environment / "precompile"
    scratch.mkdir()
    modules = [name for each in components.values() for name in each.precompile]
    variables = clean_environment(scratch, campaign="", bytecode=kept)
    del variables["PYTHONDONTWRITEBYTECODE"]
    python, script = environment / "bin" / "python", rooms.probes / "precompile.py"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [str(python), "-s", "-P", str(script), *modules],
            cwd=scratch,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )
    return digest(environment)


def digest(environment: Path) -> str:
    """Hash of all bytecode of an environment: names and content."""
    kept = folder_of(environment)
    whole = hashlib.sha256()
    for path in sorted(kept.rglob("*")):
        if path.is_file():
            whole.update(f"{path.relative_to(kept).as_posix()}\0".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
