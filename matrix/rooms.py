"""Where things are: the rooms of a project folder, and its cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matrix.errors import DataError
from matrix.visible import visible


def check_no_links(rooms: Rooms, *paths: Path) -> None:
    """Refuse symbolic links at places that are written, emptied or published.

    What a link points to may lie outside the project: it could be overwritten, deleted or shown to
    the world.

    Raises:
        DataError: one of the paths, or a folder between it and the project's root, is a link.
    """
    for path in paths:
        for part in (path, *path.parents):
            if part == rooms.root:
                break
            if part.is_symlink():
                raise DataError(
                    f"{rooms.shown(part)} is a symbolic link. Put a real file or folder there: "
                    "what a link points to may lie outside the project."
                )


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
    def candidates(self) -> Path:
        return self.root / "patches" / "candidates"

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

    @property
    def campaigns_running(self) -> Path:
        """A lock for each campaign that runs in this folder."""
        return self.cache / "running"

    @property
    def claims(self) -> Path:
        """A lock for each cell that some campaign is running."""
        return self.cache / "claims"

    def gpu_turn(self, name: str) -> Path:
        """The lock that says whose turn it is on a GPU; see `probes/gpu_turn.py`.

        Args:
            name: which GPU; of its own on every node, since nodes may share this folder.
        """
        return self.cache / f"{name}.turn"

    def shown(self, path: Path) -> str:
        """A path as messages show it: relative to the project where it lies inside it."""
        try:
            return visible(path.relative_to(self.root).as_posix())
        except ValueError:
            return visible(str(path))
