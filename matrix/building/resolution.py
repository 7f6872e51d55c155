"""From requested versions to a lock: every package, one version each, with hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from matrix.building.interpreters import Interpreter
from matrix.building.uv import Answer, Packages, run_uv
from matrix.components import Component
from matrix.errors import ResolutionConflict, Unavailable
from matrix.keeping.store import write_whole
from matrix.rooms import Rooms


@dataclass(frozen=True)
class Target:
    """The Python and platform that a lock is for."""

    python: str
    """An interpreter's path, or a version such as 3.12 for another machine."""
    platform: str | None = None
    """uv's name of another machine's platform, such as x86_64-manylinux_2_28."""
    title: str = ""
    """How messages name it."""

    def arguments(self) -> list[str]:
        """Options for `uv pip compile`."""
        if self.platform is None:
            return ["--python", self.python]
        return ["--python-version", self.python, "--python-platform", self.platform]

    @classmethod
    def of(cls, interpreter: Interpreter) -> Target:
        title = f"Python {interpreter.minor} on {interpreter.platform}"
        return cls(interpreter.executable, title=title)


@dataclass(frozen=True)
class Resolution:
    """A lock and what it holds."""

    lock: str
    """Requirements with hashes, in pip's format; it names no index."""
    packages: dict[str, str]
    without_extra: tuple[str, ...] = ()
    """Distributions whose published extra had to be left out."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.lock.encode()).hexdigest()


def requirements(
    requested: dict[str, str], components: dict[str, Component], extras: frozenset[str]
) -> list[str]:
    """The resolver's input for a stack's packages, torch, cuDNN and the image's own parts aside.

    A git revision is not resolved: its tree goes on the import path, and what the tree needs to be
    imported is asked for by name.
    """
    lines: list[str] = []
    for name, version in requested.items():
        component = components[name]
        if component.kind in ("torch", "cudnn", "image"):
            continue
        if component.is_revision(version):
            lines += component.requires
        else:
            extra = f"[{component.extra}]" if name in extras else ""
            lines.append(f"{component.distribution}{extra}=={version}")
    return list(dict.fromkeys(lines))


def resolve(
    *,
    requested: dict[str, str],
    components: dict[str, Component],
    torch_requirements: tuple[str, ...],
    excluded: tuple[str, ...],
    target: Target,
    packages: Packages,
    rooms: Rooms,
    python_version: str,
) -> Resolution:
    """A lock for a stack.

    Published extras are used where they agree with the stack. Where one pins another version than
    the stack asks for, the stack is resolved without it; which requirement was gone against is
    read from the installed metadata afterwards.

    Args:
        excluded: distributions that the runner's image provides.

    Raises:
        ResolutionConflict: the versions exclude each other, even without extras.
        Unavailable: a version does not exist, a wheel is missing or the index is out of reach.
    """
    extras = frozenset(name for name in requested if components[name].extra)
    with_extras = [*torch_requirements, *requirements(requested, components, extras)]
    key = hashlib.sha256(
        json.dumps(
            [with_extras, excluded, python_version, target.arguments(), packages.identity]
        ).encode()
    ).hexdigest()[:16]
    memory = rooms.resolutions / f"{key}.json"
    remembered = _remembered(memory)
    if remembered is not None:
        return remembered
    answer = _compile(with_extras, excluded, target, packages)
    left_out: tuple[str, ...] = ()
    if not answer.ok and extras and _NO_SOLUTION in answer.errors:
        plain = [*torch_requirements, *requirements(requested, components, frozenset())]
        second = _compile(plain, excluded, target, packages)
        if second.ok:
            left_out = tuple(sorted(extras))
        answer = second
    if not answer.ok:
        asked = [*torch_requirements, *requirements(requested, components, frozenset())]
        raise _explain(answer, asked, excluded, target, packages)
    resolution = Resolution(answer.output, read_lock(answer.output), left_out)
    # Another campaign may have been quicker, with the same answer.
    with contextlib.suppress(FileExistsError):
        write_whole(
            memory,
            json.dumps({"lock": resolution.lock, "without_extra": list(left_out)}, indent=1),
        )
    return resolution


def _remembered(memory: Path) -> Resolution | None:
    try:
        data = json.loads(memory.read_text(encoding="utf-8"))
        return Resolution(data["lock"], read_lock(data["lock"]), tuple(data["without_extra"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def read_lock(lock: str) -> dict[str, str]:
    """Distribution -> version of a lock in pip's format."""
    found: dict[str, str] = {}
    for line in lock.splitlines():
        matched = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", line)
        if matched:
            found[canonicalize_name(matched.group(1))] = matched.group(2)
    return found


def _compile(
    lines: list[str], excluded: tuple[str, ...], target: Target, packages: Packages
) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        request = Path(folder) / "stack.in"
        request.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-build"]
        if excluded:
            left_out = Path(folder) / "excluded.txt"
            left_out.write_text("\n".join(excluded) + "\n", encoding="utf-8")
            options += ["--excludes", str(left_out)]
        return run_uv(
            "pip", "compile", str(request), *options, *target.arguments(), *packages.arguments()
        )


_NO_SOLUTION = "No solution found"
_OUT_OF_REACH = re.compile(
    r"Failed to fetch|error sending request|dns error|Could not connect|operation timed out",
    re.IGNORECASE,
)
_MISSING = re.compile(
    r"not found in the (provided package locations|package registry)|no versions? of "
    r"|has no (usable )?wheels|there are no wheels|no matching",
    re.IGNORECASE,
)


def _explain(
    answer: Answer,
    lines: list[str],
    excluded: tuple[str, ...],
    target: Target,
    packages: Packages,
) -> Exception:
    """Which of the reasons a failed resolution has, with a message for people."""
    text = _useful(answer.errors)
    if answer.killed:
        return Unavailable("machine:killed", "the resolver was killed by the system")
    if "No space left on device" in answer.errors:
        return Unavailable("machine:disk-full", "no space is left on this machine's disk")
    if _OUT_OF_REACH.search(answer.errors):
        return Unavailable(
            "registry:unreachable",
            f"the package index could not be reached: {text} Give a folder of wheels with "
            "--wheelhouse, or mend the connection.",
        )
    if _NO_SOLUTION not in answer.errors:
        return Unavailable("install:failed", f"the resolver failed: {text}")
    # An exact version that can't be had alone is missing, whatever else is in conflict.
    absent = []
    for line in lines:
        name = Requirement(line).name
        if not any(spec.operator == "==" for spec in Requirement(line).specifier):
            continue
        alone = _compile([line], excluded, target, packages)
        if not alone.ok and _alone_is_missing(alone, name):
            absent.append(line)
    if absent:
        return _missing(", ".join(absent), packages, target)
    if packages.wheelhouse is not None and _MISSING.search(answer.errors):
        return _missing(text.rstrip("."), packages, target)
    return ResolutionConflict(text)


def _alone_is_missing(answer: Answer, name: str) -> bool:
    """Whether a single requirement failed for want of itself, not of something it requires."""
    flat = " ".join(answer.errors.split())
    return bool(
        re.search(
            rf"there is no version of {re.escape(name)}\b|{re.escape(name)} was not found"
            rf"|{re.escape(name)}(==\S+)? has no wheels"
            # A release for newer Pythons alone: another Python can have it.
            rf"|current Python version \([^)]*\) does not satisfy Python\S+ and "
            rf"{re.escape(name)}==\S+ depends on Python"
            rf"|{re.escape(name)}==\S+ requires Python ",
            flat,
        )
    )


def _missing(what: str, packages: Packages, target: Target) -> Unavailable:
    where = f"for {target.title or f'Python {target.python} on {target.platform}'}"
    if packages.wheelhouse is not None:
        return Unavailable(
            "wheelhouse:missing-wheel",
            f"the wheelhouse {packages.wheelhouse} lacks a wheel {where}: {what}. Fill it again on "
            "a connected machine with `nox -s wheelhouse` for this Python and platform.",
        )
    return Unavailable(
        "registry:no-such-version",
        f"no package index has {what} {where}. Correct the version in the campaign, or use "
        "another Python.",
    )


def _useful(errors: str) -> str:
    """A resolver's explanation in one line, its drawing characters removed."""
    kept = [line for line in errors.splitlines() if not line.startswith(("warning:", "hint:"))]
    text = " ".join(re.sub(r"[×╰─▶│├]+", " ", "\n".join(kept)).split())
    return re.sub(
        r"^(error: )?(No solution found when resolving dependencies:? )?(cause: )?", "", text
    )
