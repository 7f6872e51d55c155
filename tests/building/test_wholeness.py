"""Files are read once, unless asked otherwise; what is wrong is never remembered as right."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from matrix.building.wholeness import damaged
from probes.installed_files import InstalledFiles


def installed(folder: Path, content: bytes = b"one = 1\n") -> Path:
    site = folder / "lib" / "python3.11" / "site-packages"
    info = site / "tiny-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "tiny.py").write_bytes(content)
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"one = 1\n").digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"tiny.py,sha256={digest},8\n")
    return site


def test_a_file_of_many_environments_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = installed(tmp_path / "a"), installed(tmp_path / "b")
    (second / "tiny.py").unlink()
    os.link(first / "tiny.py", second / "tiny.py")
    assert damaged(first) == []

    monkeypatch.setattr(InstalledFiles, "winner", lambda *_: pytest.fail("read again"))

    assert damaged(second) == []


def test_an_edit_that_keeps_size_and_time_is_seen_when_all_is_read_again(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert damaged(site) == []
    facts = (site / "tiny.py").stat()
    (site / "tiny.py").write_bytes(b"one = 2\n")
    os.utime(site / "tiny.py", ns=(facts.st_atime_ns, facts.st_mtime_ns))

    assert damaged(site, again=True) == ["tiny"]
    assert damaged(site) == ["tiny"], "what was found wrong is not taken for right afterwards"


def test_what_is_not_there_is_damage(tmp_path: Path) -> None:
    site = installed(tmp_path)
    (site / "tiny.py").unlink()

    assert damaged(site) == ["tiny"]
    assert damaged(installed(tmp_path / "other", b"one = 3\n")) == ["tiny"]
