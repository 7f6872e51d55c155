"""Whether an environment is as it was built: nobody edited, removed or added what its code runs.

All code files are read once, when it is built. After that, sizes and times of files tell what
changed: looking at them takes a few hundredths of a second, and is done before and after each run.
"""

from __future__ import annotations

import csv
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

from probes.installed_files import NEITHER, Claim, InstalledFiles, is_code

#: Beside .pth files, what Python runs by itself at its start.
_AT_START = ("sitecustomize.py", "usercustomize.py")

#: What reading the lists of an environment's distributions can raise: anybody may have edited them.
UNREADABLE = (OSError, ValueError, csv.Error)


def stats(site_packages: Path, build: str) -> str:
    """Digest of the sizes and times of an environment's code files.

    Args:
        site_packages: of the environment.
        build: which build of it; for one build, the same files are looked at.

    Raises:
        OSError, ValueError, csv.Error: a list of files can't be read.
    """
    root = _root(site_packages)
    digest = hashlib.sha256()
    for name in (*_claimed(site_packages, build), *_run_at_start(site_packages)):
        try:
            facts = os.stat(f"{root}{name}")  # noqa: PTH116 - thousands of files for each run
            told = f"{name} {facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            told = f"{name} gone"
        digest.update(told.encode(errors="surrogateescape"))
    return digest.hexdigest()


def damaged(site_packages: Path, *, again: bool = False) -> list[str]:
    """Distributions with a code file that is not what a wheel brought; files are read for it.

    Args:
        site_packages: of the environment.
        again: whether to read what was read before, too: an edit can leave size and time alone.

    Raises:
        OSError, ValueError, csv.Error: a list of files can't be read.
    """
    files = InstalledFiles([site_packages])
    paths = [path for path in files.claims if is_code(path)]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        right = list(pool.map(lambda path: _is_right(path, files, again=again), paths))
    wrong = [path for path, as_brought in zip(paths, right, strict=True) if not as_brought]
    return sorted({claim.distribution for path in wrong for claim in files.claims[path]})


#: Files that were read, and what they were right for.
_READ: set[tuple[int, int, int, int, tuple[Claim, ...]]] = set()


def _is_right(path: Path, files: InstalledFiles, *, again: bool) -> bool:
    """Whether a file is what one of its claimants brought."""
    try:
        facts = path.stat()
    except OSError:
        return False
    # The installer links one file into many environments; a campaign reads it once.
    which = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
    known = (*which, tuple(files.claims[path]))
    if known in _READ and not again:
        return True
    if files.winner(path) == NEITHER:
        _READ.discard(known)
        return False
    _READ.add(known)
    return True


def _root(site_packages: Path) -> str:
    # An environment may have moved since it was built, or be seen through another mount.
    return f"{site_packages.resolve().parents[2]}{os.sep}"


@lru_cache(64)
def _claimed(site_packages: Path, build: str) -> tuple[str, ...]:
    root = _root(site_packages)
    claims = InstalledFiles([site_packages]).claims
    return tuple(sorted(str(path).removeprefix(root) for path in claims if is_code(path)))


def _run_at_start(site_packages: Path) -> list[str]:
    folder = site_packages.resolve()
    within = str(folder).removeprefix(_root(site_packages))
    found = sorted(path.name for path in folder.iterdir())
    return [f"{within}/{name}" for name in found if name.endswith(".pth") or name in _AT_START]
