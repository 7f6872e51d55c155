from __future__ import annotations

from pathlib import Path

from probes.installed_files import NEITHER, InstalledFiles, notes_for
from tests.probes.wheels_on_disk import unpack


def make(tmp_path: Path) -> Path:
    site = tmp_path / "lib" / "site-packages"
    unpack(site, "libs-base", {"pkg/__init__.py": "same\n", "pkg/a.py": "base a\n",
                               "pkg/b.py": "base b\n", "pkg/lib.so.1": "base lib\n"})  # fmt: skip
    unpack(site, "libs-cu13", {"pkg/__init__.py": "same\n", "pkg/a.py": "cu13 a\n",
                               "pkg/b.py": "cu13 b\n"})  # fmt: skip
    unpack(site, "other", {"other.py": "other\n", "../../bin/tool": "#!/bin/sh\n"})
    return site


def test_the_last_wheel_unpacked_wins(tmp_path: Path) -> None:
    site = make(tmp_path)
    (group,) = InstalledFiles([site]).overwrites
    assert group.distributions == ("libs-base", "libs-cu13")
    assert group.winners == {"libs-cu13": 2}
    assert group.examples == ["pkg/a.py", "pkg/b.py"]
    assert group.summary() == "2 paths: libs-cu13 won 2; such as pkg/a.py, pkg/b.py"


def test_a_mixed_install_has_two_winners_and_foreign_content_has_none(tmp_path: Path) -> None:
    site = make(tmp_path)
    (site / "pkg/a.py").write_text("base a\n", encoding="utf-8")
    (site / "pkg/b.py").write_text("edited\n", encoding="utf-8")
    files = InstalledFiles([site])
    (group,) = files.overwrites
    assert group.winners == {"libs-base": 1, NEITHER: 1}
    assert files.verify(site / "pkg").wrong == ["pkg/b.py"]


def test_equal_content_is_shared_and_not_overwritten(tmp_path: Path) -> None:
    files = InstalledFiles([make(tmp_path)])
    assert len(files.shared) == 3
    assert sum(sum(group.winners.values()) for group in files.overwrites) == 2


def test_verify_sees_sources_and_libraries_only_below_the_folder(tmp_path: Path) -> None:
    site = make(tmp_path)
    verified = InstalledFiles([site]).verify(site / "pkg")
    assert (verified.files, verified.wrong) == (4, [])
    (site / "pkg/lib.so.1").unlink()
    (site / "other.py").write_text("edited\n", encoding="utf-8")
    assert InstalledFiles([site]).verify(site / "pkg").wrong == ["pkg/lib.so.1"]


def test_paths_out_of_the_folder_are_found(tmp_path: Path) -> None:
    site = make(tmp_path)
    files = InstalledFiles([site, site])
    tool = (tmp_path / "bin" / "tool").resolve()
    assert files.winner(tool) == "other"


def test_notes_are_kept_for_those_who_took_part(tmp_path: Path) -> None:
    files = InstalledFiles([make(tmp_path)])
    assert notes_for(files.overwrites, ["other"]) == {}
    notes = notes_for(files.overwrites, ["libs-base"])
    assert list(notes) == ["overwrites: libs-base + libs-cu13"]
