"""Isolated environments built from a lock, used again once they are complete."""

from __future__ import annotations

import hashlib
import importlib.metadata
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import ValidationError

from matrix.building import bytecode
from matrix.building.holds import always, held, locked, never
from matrix.building.interpreters import Interpreter
from matrix.building.resolution import Resolution
from matrix.building.settling import settle
from matrix.building.uv import Packages, not_installed, run_uv
from matrix.building.wholeness import UNREADABLE, damaged, stats
from matrix.components import Component
from matrix.errors import MatrixError, Unavailable
from matrix.keeping.records import Contradiction
from matrix.keeping.store import write_whole
from matrix.models import Model
from matrix.rooms import Rooms
from matrix.running.processes import Stopped

_MARKER = "matrix-environment.json"


class Marker(Model):
    """Written into an environment last: without it the folder is rubbish."""

    build: str
    """Random: another one means that the folder was made anew, with the same content or not."""
    lock: str
    """sha256 of the lock."""
    python: str
    image: list[str]
    installed: dict[str, str]
    """Every distribution in it, read back from the folder after installation."""
    contradicted: list[Contradiction]
    bytecode: str
    """Digest of the bytecode that probes read."""
    settled: bool
    """Whether wheels that share paths were written one after another."""
    files: str
    """What `wholeness.stats` says of it."""


@dataclass(frozen=True)
class Environment:
    """A complete environment."""

    folder: Path
    marker: Marker

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def bytecode(self) -> Path:
        """Where the bytecode of its modules is."""
        return bytecode.folder_of(self.folder)

    def changed(self) -> bool:
        """Whether a file was edited, removed or put there since it was built."""
        try:
            found = stats(site_packages(self.folder), self.marker.build)
        except (MatrixError, *UNREADABLE):
            return True
        return found != self.marker.files or _read_marker(self.folder) != self.marker


def build_key(resolution: Resolution, interpreter: Interpreter, image: tuple[str, ...]) -> str:
    """What forces another build: the lock, the Python, and the image's folders on its path.

    Probes and git trees are not part of it; many cells share one environment.
    """
    content = [resolution.digest, interpreter.executable, interpreter.version, *image]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]


def build(
    *,
    resolution: Resolution,
    interpreter: Interpreter,
    image: tuple[str, ...],
    packages: Packages,
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None] = lambda _: None,
    going_on: Callable[[], bool] = always,
) -> Environment:
    """The environment for a lock, built unless it is already there and complete.

    Args:
        resolution: the lock.
        interpreter: its Python.
        image: folders of the runner's image that come last on its path.
        packages: where packages come from.
        components: the catalogue.
        rooms: the project folder.
        doing: told what takes a while.
        going_on: whether to wait for others who build the environment, or use it as it was.

    Raises:
        Unavailable: it can't be built on this machine.
        Stopped: `going_on` said no.
    """
    key = build_key(resolution, interpreter, image)
    folder = rooms.environments / key
    rooms.environments.mkdir(parents=True, exist_ok=True)
    # Two campaigns may want the same environment; one builds, the other waits and uses it.
    with locked(folder, going_on):
        marker = _read_marker(folder)
        if marker is not None and marker.lock == resolution.digest and _still_whole(folder, marker):
            return Environment(folder, marker)
        with held(folder, alone=True, going_on=going_on):
            _remove(folder)
            _create(folder, interpreter, image)
            _install(folder, resolution, packages)
            site = site_packages(folder)
            packages = _with_fresh_copies(folder, site, packages, doing)
            settle(folder / "bin" / "python", site, folder / "lock.txt", packages)
            if packages.cache is not None:
                shutil.rmtree(packages.cache, ignore_errors=True)
            marker = _prove_installed(folder, resolution, interpreter, image, components)
            compiled = _bytecode(folder, components, rooms, _donor(rooms, interpreter, image))
            marker = marker.model_copy(
                update={"bytecode": compiled, "files": stats(site, marker.build)}
            )
            # Last: it says that all is there.
            write_whole(folder / _MARKER, marker.model_dump_json(indent=1) + "\n")
        return Environment(folder, marker)


@contextmanager
def used(environment: Environment, going_on: Callable[[], bool] = always) -> Iterator[bool]:
    """Keep an environment from being made anew meanwhile; False where it is not as it was built.

    Raises:
        Stopped: `going_on` said no while somebody else made it anew.
    """
    with ExitStack() as hold:
        # A builder that waits for all runs to end has this lock, so that no more of them begin.
        with locked(environment.folder, going_on):
            hold.enter_context(held(environment.folder, alone=False, going_on=going_on))
        yield not environment.changed()


def discard_if_damaged(environment: Environment, going_on: Callable[[], bool] = always) -> bool:
    """Have an environment made anew unless it is as it was built; whether it is not.

    All files are read: one can be edited so that its size and time stay.

    Raises:
        Stopped: `going_on` said no while somebody else made it anew.
        OSError: the folder can't be written.
    """
    with locked(environment.folder, going_on):
        if environment.changed():
            return True
        if not damaged(site_packages(environment.folder), again=True):
            return False
        (environment.folder / _MARKER).unlink()
        return True


def _with_fresh_copies(
    folder: Path, site: Path, packages: Packages, doing: Callable[[str], None]
) -> Packages:
    """Install once more what is not what its wheel brought, and say where packages come from now.

    Installed files may be the same files as the installer's own copies, so that who edits an
    environment edits those of all later ones too. The copies are left as they are: other programs
    may be using them right now.
    """
    names = _damaged(site)
    if not names:
        return packages
    doing(f"uv's copies of {', '.join(names)} were changed; fresh ones are taken")
    fresh = replace(packages, cache=folder / "fresh")
    answer = run_uv(
        "pip", "install", "--requirements", str(folder / "lock.txt"), "--require-hashes",
        "--no-deps", "--no-build", "--python", str(folder / "bin" / "python"), *fresh.arguments(),
        *(option for name in names for option in ("--reinstall-package", name)),
    )  # fmt: skip
    if not answer.ok:
        raise not_installed(f"{', '.join(names)} could not be installed again", answer.errors)
    if wrong := _damaged(site):
        raise Unavailable(
            "install:failed",
            f"files of {', '.join(wrong)} are not what their wheel lists, in a fresh copy too. "
            "Get the wheel again.",
        )
    return fresh


def _damaged(site: Path) -> list[str]:
    try:
        return damaged(site)
    except UNREADABLE as error:
        raise Unavailable(
            "install:failed", f"a wheel's list of its files can't be read: {error}"
        ) from None


def _bytecode(
    folder: Path, components: dict[str, Component], rooms: Rooms, donor: Path | None
) -> str:
    """Bytecode of a new environment, with a donor's help while nobody makes that one anew."""
    if donor is not None:
        try:
            with held(donor, alone=False, going_on=never):
                return bytecode.make(folder, components, rooms, donor)
        except Stopped:
            pass
    return bytecode.make(folder, components, rooms)


def _donor(rooms: Rooms, interpreter: Interpreter, image: tuple[str, ...]) -> Path | None:
    """An environment whose bytecode a new one may take: the newest of the same Python and image."""
    ages: dict[Path, float] = {}
    for path in rooms.environments.glob(f"*/{_MARKER}"):
        with suppress(OSError):  # another campaign makes it anew
            ages[path] = path.stat().st_mtime
    for path in sorted(ages, key=lambda path: ages[path], reverse=True):
        marker = _read_marker(path.parent)
        if (
            marker is not None
            and (marker.python, tuple(marker.image)) == (interpreter.version, image)
            and bytecode.digest(path.parent) == marker.bytecode
        ):
            return path.parent
    return None


def _still_whole(folder: Path, marker: Marker) -> bool:
    """Whether an environment runs, and has the distributions it was built with."""
    try:
        subprocess.run(
            [folder / "bin" / "python", "-I", "-S", "-c", ""], check=True, capture_output=True
        )
        return (
            not Environment(folder, marker).changed()
            and _installed(folder) == marker.installed
            and bytecode.digest(folder) == marker.bytecode
        )
    except (subprocess.SubprocessError, MatrixError, *UNREADABLE):
        return False


def _remove(folder: Path) -> None:
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        # Something that an earlier, killed campaign left may still be writing there.
        time.sleep(0.5)
    raise Unavailable("install:failed", f"{folder} can't be removed. Remove it by hand.")


def _read_marker(folder: Path) -> Marker | None:
    try:
        return Marker.model_validate_json((folder / _MARKER).read_bytes())
    except (OSError, ValidationError):
        return None


def site_packages(folder: Path) -> Path:
    """Where an environment keeps its packages.

    Raises:
        MatrixError: the folder is not an environment.
    """
    found = sorted(folder.glob("lib/python3*/site-packages"))
    if not found:
        raise MatrixError(f"{folder} has no site-packages. Remove the folder and run again.")
    return found[0]


def _create(folder: Path, interpreter: Interpreter, image: tuple[str, ...]) -> None:
    answer = run_uv("venv", str(folder), "--python", interpreter.executable, "--no-project")
    if not answer.ok:
        raise not_installed(f"no environment for {interpreter.executable}", answer.errors)
    if image:
        # After the environment's own packages, and after their .pth files, which are read in
        # order of name: what the stack asks for wins over what the image happens to have.
        # Not `--system-site-packages`: where the image's Python is itself a virtual environment,
        # that would show the Python beneath it, and no torch.
        path = site_packages(folder) / "zzz_image.pth"
        path.write_text("\n".join(image) + "\n", encoding="utf-8")


def _install(folder: Path, resolution: Resolution, packages: Packages) -> None:
    lock = folder / "lock.txt"
    lock.write_text(resolution.lock, encoding="utf-8")
    answer = run_uv(
        "pip", "sync", str(lock), "--require-hashes", "--no-build", "--allow-empty-requirements",
        "--python", str(folder / "bin" / "python"), *packages.arguments(),
    )  # fmt: skip
    if not answer.ok:
        raise not_installed("packages could not be installed", answer.errors)


def _prove_installed(
    folder: Path,
    resolution: Resolution,
    interpreter: Interpreter,
    image: tuple[str, ...],
    components: dict[str, Component],
) -> Marker:
    """Read back what was installed and compare it with the lock."""
    distributions = _distributions(folder)
    installed = _installed(folder)
    wanted = resolution.packages
    differing = [
        f"{name}: {wanted.get(name, 'not')} locked, {installed.get(name, 'not')} installed"
        for name in sorted({*wanted, *installed})
        if name not in wanted
        or name not in installed
        or Version(wanted[name]) != Version(installed[name])
    ]
    if differing:
        raise Unavailable("install:failed", "; ".join(differing))
    return Marker(
        build=secrets.token_hex(8),
        lock=resolution.digest,
        python=interpreter.version,
        image=list(image),
        installed=installed,
        contradicted=_contradicted(resolution, components, distributions, installed),
        bytecode="",
        settled=True,
        files="",
    )


def _distributions(folder: Path) -> dict[str, importlib.metadata.Distribution]:
    found = importlib.metadata.distributions(path=[str(site_packages(folder))])
    # A folder that calls itself a distribution and has no name is somebody's mistake.
    return {
        canonicalize_name(distribution.metadata["Name"]): distribution
        for distribution in found
        if distribution.metadata["Name"]
    }


def _installed(folder: Path) -> dict[str, str]:
    return {name: distribution.version for name, distribution in _distributions(folder).items()}


def _contradicted(
    resolution: Resolution,
    components: dict[str, Component],
    distributions: dict[str, importlib.metadata.Distribution],
    installed: dict[str, str],
) -> list[Contradiction]:
    """The requirements of left-out extras that the stack goes against."""
    found = []
    for name in resolution.without_extra:
        component = components[name]
        distribution = distributions.get(component.distribution or "")
        for line in (distribution.requires if distribution else None) or []:
            try:
                requirement = Requirement(line)
            except InvalidRequirement:
                continue  # resolvers are more patient than the standard
            asked = installed.get(canonicalize_name(requirement.name))
            if requirement.marker is None or asked is None or distribution is None:
                continue
            in_extra = requirement.marker.evaluate({"extra": component.extra or ""})
            always = requirement.marker.evaluate({"extra": ""})
            if in_extra and not always and not requirement.specifier.contains(asked, True):
                extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
                found.append(
                    Contradiction(
                        claim=f"{component.distribution}[{component.extra}] {distribution.version} "
                        f"requires {requirement.name}{extras}{requirement.specifier}",
                        asked=f"{requirement.name} {asked}",
                    )
                )
    return found
