"""Where a component's software lies: version, module file, its hash, and whose file it is.

Nothing here imports the component: a module's file is found by asking the import system for its
spec. (For a dotted name Python imports the parents.)
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Places:
    """The three kinds of places that software may come from."""

    environment: Path
    images: tuple[Path, ...] = ()
    trees: Mapping[str, Path] = field(default_factory=dict)

    def origin(self, file: Path) -> tuple[str | None, str]:
        """Whose file it is, and its name relative to that place.

        Returns:
            `tree`, `environment`, `image`, or None for a file from anywhere else; and a relative
            name. In the last case the name is the file's bare name.
        """
        for path in dict.fromkeys((file, file.resolve())):
            for tree in self.trees.values():
                name = _within(path, tree)
                if name:
                    return "tree", name
            # A folder of site-packages that belongs to the image may lie inside another prefix,
            # and the environment's prefix is the more exact of the two.
            name = _within(path, self.environment)
            if name:
                return "environment", _from_site_packages(name)
            for image in self.images:
                name = _within(path, image)
                if name:
                    return "image", f"{image.name}/{name}"
        return None, file.name


def _within(file: Path, folder: Path) -> str | None:
    for root in dict.fromkeys((folder, folder.resolve())):
        if file.is_relative_to(root):
            return file.relative_to(root).as_posix()
    return None


def _from_site_packages(name: str) -> str:
    parts = name.split("/")
    for index, part in enumerate(parts):
        if part in ("site-packages", "dist-packages"):
            return "/".join(parts[index:])
    return name


def find_module_file(module: str) -> Path | None:
    """The file that importing `module` would run, or None when nothing would be found.

    Raises:
        ImportError: a parent package exists and does not import.
    """
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if file:
        return Path(file)
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    if spec is None or not spec.origin or spec.origin in ("built-in", "frozen"):
        return None
    return Path(spec.origin)


def distribution_version(distribution: str | None) -> str | None:
    """The version in a distribution's installed metadata, or None."""
    if not distribution:
        return None
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def exact_version(stated: object, installed: str | None) -> str | None:
    """The version that a module states, or its metadata's where that only adds a local part."""
    if not stated:
        return installed
    more = installed is not None and installed.startswith(f"{stated}+")
    return installed if more else str(stated)


def sha256_of(file: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def describe(
    component: str,
    entry: Mapping[str, Any],
    places: Places,
    file: Path,
    module: ModuleType | None = None,
) -> dict[str, Any]:
    """The `loaded` entry of a component, from the file that was really loaded.

    The version is the one that the module itself states, with the local part that its metadata may
    have more; a git tree's is its revision, because the version in a development tree's source says
    little.
    """
    origin, name = places.origin(file)
    stated = getattr(module, "__version__", None)
    version = exact_version(stated, distribution_version(entry.get("distribution")))
    if origin == "tree" and component in places.trees:
        version = str(entry.get("requested"))
    return {
        "version": version,
        "file": name,
        "sha256": sha256_of(file) if file.is_file() else None,
        "origin": origin,
    }
