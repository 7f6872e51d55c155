from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Reference

from probes import versions


@pytest.mark.parametrize(
    ("requested", "loaded", "same"),
    [
        ("2.11.0", "2.11.0+cu130", True),
        ("2.11.0", "2.11.0", True),
        ("2.11", "2.11.0", True),
        ("2.11.0+cu129", "2.11.0+cu129", True),
        ("2.11.0+cu129", "2.11.0+cu130", False),
        ("2.11.0+cu129", "2.11.0", False),
        ("2.11.0", "2.11.1", False),
        ("2.11.0", "2.11.0a0+git123", False),
        ("0.1.15.post2", "0.1.15.post2", True),
        ("0.1.15", "0.1.15.post2", False),
        ("4.8.0", "4.8.0.dev0", False),
        ("1.0rc1", "1.0.rc-1", True),
        ("v1.0", "1.0", True),
        ("not a version", "not a version", True),
        ("not a version", "1.0", False),
    ],
)
def test_matches(requested: str, loaded: str, same: bool) -> None:
    assert versions.matches(requested, loaded) is same


numbers = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(
    lambda parts: ".".join(map(str, parts))
)
suffixes = st.sampled_from(["", "a1", "b2", "rc3", ".post4", ".dev5", "rc1.post2.dev3", "+cu130"])


@given(numbers, suffixes, numbers, suffixes)
def test_agrees_with_packaging(one: str, ending: str, other: str, other_ending: str) -> None:
    requested, loaded = one + ending, other + other_ending
    wanted, found = Reference(requested), Reference(loaded)
    expected = wanted == (found if wanted.local else Reference(found.public))
    assert versions.matches(requested, loaded) is expected


@given(numbers, suffixes)
def test_another_version_is_another(number: str, ending: str) -> None:
    version = number + ending
    assert versions.matches(version, version)
    assert not versions.matches(versions.other_than(version), version)


@pytest.mark.parametrize(
    ("number", "version"), [(91900, (9, 19, 0)), (91002, (9, 10, 2)), (8902, (8, 9, 2))]
)
def test_cudnn_numbers(number: int, version: tuple[int, int, int]) -> None:
    assert versions.cudnn_version(number) == version


def test_first_three() -> None:
    assert versions.first_three("9.19.0.56") == (9, 19, 0)
    assert versions.first_three("9.19") == (9, 19, 0)
    with pytest.raises(ValueError, match="dotted"):
        versions.first_three("none")
