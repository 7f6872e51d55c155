"""Which wheel stands where two of them write the same path.

uv writes wheels side by side, so of two that bring the same path now one stands and now the other,
path by path: two environments of one lock then run different software, or a mixture that runs not
at all (seen with the base and CUDA 13 libraries of nvidia-cutlass-dsl 4.5.2, which share 99 paths
with different content). Here the wheel whose name comes last is written last, as a whole. For those
two that is also what pip does, which installs what a package needs before what its extras add.
"""

from __future__ import annotations

from pathlib import Path

from matrix.building.uv import Packages, not_installed, run_uv
from matrix.errors import Unavailable
from probes.installed_files import InstalledFiles


def settle(python: Path, site_packages: Path, lock: Path, packages: Packages) -> None:
    """Write wheels that share paths once more, one after another, in the order of their names.

    Args:
        python: of the environment.
        site_packages: of the environment.
        lock: what was installed, with hashes.
        packages: where packages come from.

    Raises:
        Unavailable: a wheel can't be written again, or a path still has other content.
    """
    groups = InstalledFiles([site_packages]).overwrites
    shared = sorted({name for group in groups for name in group.distributions})
    for name in shared[1:]:
        # It takes away its paths first, so all that stands there afterwards is its own.
        answer = run_uv(
            "pip", "install", "--requirements", str(lock), "--require-hashes", "--no-deps",
            "--no-build", "--reinstall-package", name, "--python", str(python),
            *packages.arguments(),
        )  # fmt: skip
        if not answer.ok:
            raise not_installed(f"{name} could not be written again", answer.errors)
    if not shared:
        return
    for group in InstalledFiles([site_packages]).overwrites:
        if list(group.winners) != [group.distributions[-1]]:
            raise Unavailable("install:failed", f"wheels overwrite each other: {group.summary()}")
