"""Bytecode of an environment's modules, made once before any probe runs, and checked at each use.

Probe processes read bytecode from here and nowhere else: what lies beside a source could have been
written by anybody, and would run unseen by every hash.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path

from matrix.components import Component
from matrix.rooms import Rooms
from matrix.running.isolation import limit, network
from matrix.running.processes import clean_environment, kill_group

TIME_LIMIT_S = 300.0


def folder_of(environment: Path) -> Path:
    """Where an environment's bytecode is kept."""
    return environment / "bytecode"


def make(
    environment: Path, components: dict[str, Component], rooms: Rooms, donor: Path | None = None
) -> str:
    """Have the bytecode of what probes import.

    A first environment imports it. A later one takes what it shares with an earlier one, and
    compiles the rest of what that had. What is missing is compiled by each probe, so nothing that
    goes wrong here is an error.

    Args:
        environment: the new environment, without bytecode.
        components: name the modules to import.
        rooms: the project folder.
        donor: another environment of the same Python and image, whose bytecode was checked.

    Returns:
        What `digest` says of the result.
    """
    folder_of(environment).mkdir()
    if donor is None:
        modules = [name for each in components.values() for name in each.precompile]
        _run(environment, [str(rooms.probes / "precompile.py"), *modules])
    else:
        missing = _take_over(environment, donor)
        _run(environment, ["-c", _COMPILE], text="\n".join(map(str, missing)))
    return digest(environment)


#: Runs in the environment, without its packages; what does not compile is skipped.
_COMPILE = """
import py_compile, sys
for path in sys.stdin.read().splitlines():
    try:
        py_compile.compile(path, doraise=True)
    except (py_compile.PyCompileError, OSError, ValueError):
        pass
"""


def _run(environment: Path, arguments: list[str], text: str = "") -> None:
    scratch = environment / "precompile"
    scratch.mkdir()
    variables = clean_environment(scratch, campaign="", bytecode=folder_of(environment))
    del variables["PYTHONDONTWRITEBYTECODE"]
    # Packages are imported here as in a probe: without a network, and nothing stays behind.
    command = [*network().prefix, str(environment / "bin" / "python"), "-s", "-P", *arguments]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process = subprocess.Popen(
            command,
            cwd=scratch,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )
        limit(process.pid)
        try:
            process.communicate(text, timeout=TIME_LIMIT_S)
        finally:
            kill_group(process)
    shutil.rmtree(scratch, ignore_errors=True)


def _take_over(environment: Path, donor: Path) -> list[Path]:
    """Link a donor's bytecode wherever the sources are the same; the sources of what is not."""
    missing = []
    root, kept = folder_of(donor), folder_of(environment)
    for old in sorted(root.rglob("*.pyc")):
        place = Path("/") / old.parent.relative_to(root)
        before = place / f"{old.name.partition('.')[0]}.py"
        with contextlib.suppress(ValueError):  # the image's are at the same place for both
            place = environment / place.relative_to(donor)
        source = place / before.name
        try:
            facts = source.stat()
            # Two versions can agree in size and second: `1.0` and `1.1` in archives of one day. uv
            # links the same file into both environments, so few are read.
            content = before.samefile(source) or filecmp.cmp(before, source, shallow=False)
            # After a magic number and flags: the source's time and size, as four bytes each.
            header = old.read_bytes()[:16]
        except OSError:
            continue  # one of the two has no such module
        same = (int(facts.st_mtime) & 0xFFFFFFFF, facts.st_size & 0xFFFFFFFF)
        if content and header[8:16] == struct.pack("<II", *same):
            new = kept / place.relative_to("/") / old.name
            new.parent.mkdir(parents=True, exist_ok=True)
            os.link(old, new)
        else:
            missing.append(source)
    return missing


def digest(environment: Path) -> str:
    """Hash of all bytecode of an environment: names and content."""
    kept = folder_of(environment)
    whole = hashlib.sha256()
    for path in sorted(kept.rglob("*")):
        if path.is_file():
            whole.update(f"{path.relative_to(kept).as_posix()}\0".encode())
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()
