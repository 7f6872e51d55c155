from __future__ import annotations

import pytest

from matrix.errors import DataError
from matrix.wheelhouse import platform_tags


def test_every_older_glibc_is_accepted_newest_first() -> None:
    tags = platform_tags("x86_64-manylinux_2_28")

    assert tags[0] == "manylinux_2_28_x86_64"
    assert "manylinux_2_17_x86_64" in tags
    assert "manylinux2014_x86_64" in tags
    assert "manylinux_2_31_x86_64" not in tags


@pytest.mark.parametrize("name", ["linux", "macos", "x86_64-manylinux_2_x", "x86_64-musllinux_1_2"])
def test_other_platforms_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="x86_64-manylinux_2_28"):
        platform_tags(name)
