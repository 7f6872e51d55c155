"""The one place that calls uv."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin


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

    def arguments(self) -> list[str]:
        """Options for `uv pip compile` and `uv pip sync`."""
        if self.wheelhouse is not None:
            return ["--offline", "--no-index", "--find-links", str(self.wheelhouse)]
        options = [option for link in self.find_links for option in ("--find-links", link)]
        options += [option for url in self.extra_indexes for option in ("--extra-index-url", url)]
        if self.torch_backend is not None:
            options += ["--torch-backend", self.torch_backend]
        return options

    @property
    def identity(self) -> str:
        """Changes when the same request could be answered differently."""
        if self.wheelhouse is None:
            return " ".join(self.arguments())
        names = sorted(path.name for path in self.wheelhouse.glob("*.whl"))
        return "\n".join([str(self.wheelhouse), *names])


@dataclass(frozen=True)
class Answer:
    """What a uv command said."""

    ok: bool
    output: str
    errors: str


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
    environment.update(settings or {})
    done = subprocess.run(
        [find_uv_bin(), *arguments, "--no-progress", "--color", "never"],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Answer(done.returncode == 0, done.stdout, done.stderr)
