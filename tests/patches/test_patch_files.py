"""Patch files of one's own, put onto revisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patches.repositories import (
    AROUND,
    CHANGED,
    CORE,
    Upstream,
    applied,
    content,
    patch_pin,
    tip,
)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE, "tests/test_core.py": "one\ntwo\nthree\n"}, "start")
    return made


def as_patch(upstream: Upstream, before: str, after: str) -> bytes:
    return upstream.raw("diff", "--binary", before, after)


def test_a_patch_file_clean_three_way_contained_and_in_conflict(
    upstream: Upstream, tmp_path: Path
) -> None:
    start = tip(upstream)
    head = upstream.commit({"pkg/core.py": CHANGED}, parents=[start])
    mine = patch_pin(as_patch(upstream, start, head))

    assert applied(upstream, tmp_path, mine, start).result == "clean"
    around = upstream.dev({"pkg/core.py": AROUND})
    assert applied(upstream, tmp_path, mine, around).result == "three-way"
    has_it = upstream.dev({"pkg/core.py": CHANGED})
    answer = applied(upstream, tmp_path, mine, has_it)
    assert answer.contained is not None
    assert (answer.result, answer.contained.sign) == ("contained", "no-effect")
    clash = upstream.dev({"pkg/core.py": CORE.replace("y = x + 1", "y = 5")})
    answer = applied(upstream, tmp_path, mine, clash)
    assert answer.result == "conflict"
    assert [conflict.path for conflict in answer.conflicts] == ["pkg/core.py"]
    assert answer.conflicts[0].theirs == ["first"]


def test_a_patch_file_whose_tests_do_not_apply(upstream: Upstream, tmp_path: Path) -> None:
    start = tip(upstream)
    files = {"pkg/core.py": CHANGED, "tests/test_core.py": "one\nTWO\nthree\n"}
    head = upstream.commit(files, parents=[start])
    base = upstream.dev({"tests/test_core.py": "all new\n"})

    answer = applied(upstream, tmp_path, patch_pin(as_patch(upstream, start, head)), base)

    assert (answer.result, answer.left_out) == ("clean", ["tests/test_core.py"])


def test_a_mail_with_a_patch_of_several_commits(upstream: Upstream, tmp_path: Path) -> None:
    start = tip(upstream)
    one = upstream.commit({"pkg/core.py": CHANGED}, parents=[start], subject="one")
    two = upstream.commit({"pkg/core.py": CHANGED + "# two\n"}, parents=[one], subject="two")
    text = upstream.raw("format-patch", "--stdout", f"{start}..{two}")

    answer = applied(upstream, tmp_path, patch_pin(text), start)

    assert answer.result == "clean"
    assert content(upstream, tmp_path, answer, "pkg/core.py").decode() == CHANGED + "# two\n"
