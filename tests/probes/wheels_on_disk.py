"""A site-packages folder made of pretend wheels, unpacked one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from probes.installed_files import digest_of


def unpack(site: Path, name: str, files: Mapping[str, str], *, version: str = "1.0") -> None:
    """Write a wheel's files, over what is there, and its RECORD."""
    rows = []
    for relative, content in files.items():
        path = site / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        rows.append(f'"{relative}",sha256={digest_of(path, "sha256")},{len(content)}')
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
    )
    rows.append(f"{info.name}/RECORD,,")
    (info / "RECORD").write_text("\n".join(rows) + "\n", encoding="utf-8")
