"""Whether an environment is as it was built: nobody edited, removed or added what its code runs.

Looking at sizes and times of files takes a few hundredths of a second, and is done for every run.
Only what somebody changed while keeping both has to be read to be noticed.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from probes.installed_files import InstalledFiles, is_code

#: Beside .pth files, what Python runs by itself at its start.
_AT_START = ("sitecustomize.py", "usercustomize.py")


def stats(site_packages: Path, lock: str) -> str:
    """Digest of the sizes and times of an environment's code files.

    Args:
        site_packages: of the environment.
        lock: what was installed there; with the same lock, the same files are looked at.
    """
    digest = hashlib.sha256()
    for path in (*_claimed(site_packages, lock), *_run_at_start(site_packages)):
        try:
            facts = os.stat(path)  # noqa: PTH116 - thousands of files for each run
            told = f"{path} {facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            told = f"{path} gone"
        digest.update(told.encode())
    return digest.hexdigest()


@lru_cache(64)
def _claimed(site_packages: Path, lock: str) -> tuple[str, ...]:
    claims = InstalledFiles([site_packages]).claims
    return tuple(sorted(str(path) for path in claims if is_code(path)))


def _run_at_start(site_packages: Path) -> list[str]:
    try:
        paths = sorted(site_packages.iterdir())
    except OSError:
        return []
    return [str(path) for path in paths if path.suffix == ".pth" or path.name in _AT_START]


def damaged(site_packages: Path) -> list[str]:
    """Distributions with code files that no wheel brought, such as edited ones; reads them all."""
    return InstalledFiles([site_packages]).damaged()
