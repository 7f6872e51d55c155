"""Fill a folder with every wheel that another, offline machine needs for a campaign."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from matrix.building.resolution import Resolution, Target, read_lock, resolve
from matrix.building.uv import Packages, run_uv
from matrix.components import NONE, SYSTEM, Component
from matrix.errors import DataError, MatrixError, ResolutionConflict, Unavailable
from matrix.planning.campaigns import Campaign
from matrix.rooms import Rooms


def fill(
    *,
    rooms: Rooms,
    campaign: Campaign,
    components: dict[str, Component],
    host_requirements: list[str],
    folder: Path,
    python: str,
    platform: str,
    say: Callable[[str], None],
) -> None:
    """Put the wheels of a campaign's stacks, and of the host side, into a folder.

    The packages that the runner's image provides (`system`) are left out.

    Args:
        host_requirements: what the host side needs, nox included.
        python: Python of the other machine, such as 3.12.
        platform: its platform as uv names it, such as x86_64-manylinux_2_28.

    Raises:
        MatrixError: a stack or the host side can't be resolved, or a wheel can't be fetched.
    """
    target = Target(python, platform)
    tags = platform_tags(platform)
    folder.mkdir(parents=True, exist_ok=True)
    locks: dict[str, str] = {}
    for entry in campaign.stacks:
        try:
            resolution = _resolve(rooms, campaign.requested(entry), components, target)
        except (ResolutionConflict, Unavailable) as error:
            raise MatrixError(f"stack {entry.name!r}: {error}") from None
        locks[f"stack {entry.name}"] = resolution.lock
    locks["the host side"] = _host_lock(host_requirements, target)
    for what, lock in locks.items():
        say(f"{what}: {len(read_lock(lock))} packages")
        _download(lock, folder, python, tags, what)
    wheels = sorted(folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    say(f"{len(wheels)} wheels, {size / 2**20:.0f} MiB in {folder}")


def _resolve(
    rooms: Rooms, requested: dict[str, str], components: dict[str, Component], target: Target
) -> Resolution:
    torch: list[str] = []
    excluded: list[str] = []
    for name, version in requested.items():
        kind = components[name].kind
        if kind == "torch" and version == SYSTEM:
            excluded.append("torch")
        elif kind == "torch":
            torch.append(f"torch=={version}")
        elif kind == "cudnn" and version not in (SYSTEM, NONE):
            raise DataError(
                f"cuDNN {version}: a wheelhouse can hold another cuDNN only when it is known for "
                "which CUDA the other machine's torch was built. Fill it on that machine's image."
            )
    return resolve(
        requested=requested,
        components=components,
        torch_requirements=tuple(torch),
        excluded=tuple(excluded),
        target=target,
        packages=Packages(),
        rooms=rooms,
        python_version=target.python,
    )


def _host_lock(lines: list[str], target: Target) -> str:
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "host.in"
        request.write_text("\n".join(lines) + "\n", encoding="utf-8")
        answer = run_uv(
            "pip", "compile", str(request), "--generate-hashes", "--no-header", "--no-annotate",
            "--no-build", *target.arguments(),
        )  # fmt: skip
    if not answer.ok:
        raise MatrixError(f"the host side can't be resolved: {' '.join(answer.errors.split())}")
    return answer.output


def platform_tags(platform: str) -> list[str]:
    """Every wheel platform tag that a machine of uv's platform name accepts, newest first.

    Raises:
        DataError: the name is not one of a glibc Linux.
    """
    machine, _, glibc = platform.partition("-manylinux_2_")
    if not machine or not glibc.isdecimal():
        raise DataError(
            f"--platform {platform}: only glibc Linux has the software under test. Write the "
            "machine and its glibc, such as x86_64-manylinux_2_28."
        )
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(int(glibc), 4, -1)]
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    return tags + [f"{name}_{machine}" for minor, name in legacy.items() if minor <= int(glibc)]


def _download(lock: str, folder: Path, python: str, tags: list[str], what: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "lock.txt"
        file.write_text(lock, encoding="utf-8")
        # uv can't download without installing; pip can, also for another machine.
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                "--only-binary", ":all:", "--python-version", python, "--implementation", "cp",
                *[option for tag in tags for option in ("--platform", tag)],
                "--disable-pip-version-check", "--dest", str(folder), "--requirement", str(file),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise MatrixError(f"{what}: wheels could not be fetched: {' '.join(errors) or done.stderr}")
