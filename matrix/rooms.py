"""Where things are: the rooms of a project folder, and its cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rooms:
    """The folders of one project. Tests make whole tiny projects of the same shape."""

    root: Path

    @property
    def catalogue(self) -> Path:
        return self.root / "matrix" / "catalogue"

    @property
    def campaigns(self) -> Path:
        return self.catalogue / "campaigns"

    @property
    def evidence(self) -> Path:
        return self.root / "matrix" / "evidence"

    @property
    def probes(self) -> Path:
        return self.root / "probes"

    @property
    def docs(self) -> Path:
        return self.root / "docs"

    @property
    def settings(self) -> Path:
        return self.root / "matrix.local.toml"

    @property
    def cache(self) -> Path:
        """Everything that can be made again: mirrors, worktrees, environments, logs, locks."""
        return self.root / ".matrix"

    @property
    def environments(self) -> Path:
        return self.cache / "environments"

    @property
    def resolutions(self) -> Path:
        return self.cache / "resolutions"

    @property
    def sources(self) -> Path:
        return self.cache / "sources"

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def scratch(self) -> Path:
        return self.cache / "scratch"

    def shown(self, path: Path) -> str:
        """A path as messages show it: relative to the project where it lies inside it."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)
