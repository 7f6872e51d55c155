"""Bytecode is taken over from another environment for the same source only."""

from __future__ import annotations

import os
import py_compile
from pathlib import Path

import pytest

from matrix.building.bytecode import _take_over, folder_of


@pytest.mark.parametrize(("theirs", "taken"), [("1.0", True), ("1.1", False), ("1.10", False)])
def test_a_version_that_agrees_in_size_and_second_is_another_source(
    tmp_path: Path, theirs: str, *, taken: bool
) -> None:
    for name, version in (("donor", "1.0"), ("new", theirs)):
        source = tmp_path / name / "lib" / "module.py"
        source.parent.mkdir(parents=True)
        source.write_text(f'__version__ = "{version}"\n')
        os.utime(source, (1_700_000_000, 1_700_000_000))
    donor, new = tmp_path / "donor", tmp_path / "new"
    source = donor / "lib" / "module.py"
    kept = folder_of(donor) / source.parent.relative_to("/") / "module.cpython-311.pyc"
    py_compile.compile(str(source), cfile=str(kept), doraise=True)

    missing = _take_over(new, donor)

    assert missing == ([] if taken else [new / "lib" / "module.py"])
    assert bool(list(folder_of(new).rglob("*.pyc"))) == taken
