"""The one place that calls uv."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from matrix.errors import MatrixError, Unavailable
from matrix.parallel import die_with_parent


@dataclass(frozen=True)
class Packages:
    """Where packages come from.

    With a `wheelhouse` nothing else is asked: no index, no network. Otherwise the machine's own
    uv settings say which index is used, and `find_links` adds what pip's settings know.
    """

    wheelhouse: Path | None = None
    find_links: tuple[str, ...] = ()
    extra_indexes: tuple[str, ...] = ()
    torch_backend: str | None = None
    cache: Path | None = None
    """A folder for uv's copies, instead of the one that all environments share."""

    def arguments(self) -> list[str]:
        """Options for `uv pip compile` and `uv pip sync`."""
        kept = ["--cache-dir", str(self.cache)] if self.cache is not None else []
        if self.wheelhouse is not None:
            return [*kept, "--offline", "--no-index", "--find-links", str(self.wheelhouse)]
        options = kept + [option for link in self.find_links for option in ("--find-links", link)]
        options += [option for url in self.extra_indexes for option in ("--extra-index-url", url)]
        if self.torch_backend is not None:
            options += ["--torch-backend", self.torch_backend]
        return options

    @property
    def identity(self) -> str:
        """Changes when the same request could be answered differently."""
        if self.wheelhouse is None:
            return " ".join(self.arguments())
        # A wheel can be made again under its old name.
        wheels = sorted(self.wheelhouse.glob("*.whl"))
        facts = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in wheels]
        return "\n".join([str(self.wheelhouse), *map(str, facts)])


@dataclass(frozen=True)
class Answer:
    """What a uv command said."""

    ok: bool
    output: str
    errors: str
    killed: bool = False
    """Whether a signal ended it: the system does that when memory runs out."""


def run_uv(
    *arguments: str, cwd: Path | None = None, settings: dict[str, str] | None = None
) -> Answer:
    """Run uv, quietly, and return what it said; never raises on its exit status.

    `settings` are environment variables for this call alone.
    """
    environment = dict(os.environ)
    # An environment that happens to be active must not become the target of a command.
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PYTHON", "PYTHONPATH"):
        environment.pop(name, None)
    # For another machine's Python it would fetch one into the user's home, or wait until it can't;
    # packages are resolved and fetched without.
    environment.setdefault("UV_PYTHON_DOWNLOADS", "never")
    environment.update(settings or {})
    try:
        program = find_uv_bin()
    except FileNotFoundError:
        raise MatrixError(
            "uv's program is not installed beside its Python package. Install uv again."
        ) from None
    done = subprocess.run(
        [program, *arguments, "--no-progress", "--color", "never"],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        # An installer whose campaign was killed would write into the environment built next.
        preexec_fn=die_with_parent,
    )
    return Answer(done.returncode == 0, done.stdout, done.stderr, killed=done.returncode < 0)


def not_installed(what: str, errors: str) -> Unavailable:
    """What uv's errors mean for an environment that it could not finish."""
    text = " ".join(errors.split())[-600:]
    if "No space left on device" in errors:
        return Unavailable("machine:disk-full", "no space is left on this machine's disk")
    return Unavailable("install:failed", f"{what}: {text}")
