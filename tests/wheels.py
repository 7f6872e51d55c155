"""Tiny real wheels, so that tests resolve, install and import without an index."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: dict[str, str],
    *,
    requires: tuple[str, ...] = (),
    extras: tuple[str, ...] = (),
    tag: str = "py3-none-any",
    python: str | None = None,
) -> Path:
    """Write a wheel that pip and uv accept, RECORD and all."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *([f"Requires-Python: {python}"] if python else []),
        *[f"Requires-Dist: {line}" for line in requires],
        *[f"Provides-Extra: {extra}" for extra in extras],
    ]
    wheel = ["Wheel-Version: 1.0", "Generator: tests", "Root-Is-Purelib: true", f"Tag: {tag}"]
    contents = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "\n".join(wheel) + "\n",
    }
    record = [
        f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()
    ]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    return target


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
