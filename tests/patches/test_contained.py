"""Signs by which a revision counts as having a request already."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patches.repositories import CHANGED, CORE, Upstream, applied, pin, tip


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE}, "start")
    return made


def test_contained_as_an_ancestor(upstream: Upstream, tmp_path: Path) -> None:
    before = tip(upstream)
    head = upstream.request(1, {"pkg/core.py": CHANGED}, before)
    upstream.dev({"pkg/other.py": "1"})
    merge = upstream.dev({"pkg/core.py": CHANGED}, "Merge", head)
    base = upstream.dev({"pkg/later.py": "1"})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "contained"
    assert answer.contained is not None
    assert (answer.contained.sign, answer.contained.commit) == ("ancestor", merge)
    # And before it was merged, it applies: what it added is known from where it branched off.
    assert applied(upstream, tmp_path, pin(1, head), before).result == "clean"


@pytest.mark.parametrize("differs", [False, True])
def test_contained_as_a_squashed_commit(
    upstream: Upstream, tmp_path: Path, *, differs: bool
) -> None:
    half = upstream.commit({"pkg/core.py": CORE + "# half\n"}, parents=[tip(upstream)])
    head = upstream.request(12, {"pkg/core.py": CHANGED}, half)
    upstream.dev({"pkg/other.py": "1"})
    merged = CHANGED.replace("x + 10", "x + 11") if differs else CHANGED
    squash = upstream.dev({"pkg/core.py": merged}, "Better numbers (#12)")
    base = upstream.dev({"pkg/core.py": merged + "# and on it went\n"}, "Another (#123)")

    answer = applied(upstream, tmp_path, pin(12, head), base)

    assert answer.result == "contained"
    assert answer.contained is not None
    assert (answer.contained.sign, answer.contained.commit) == ("squash", squash)
    assert answer.contained.differs is differs
    assert answer.contained.differing == (["pkg/core.py"] if differs else [])


def test_the_number_of_another_repository_is_no_sign(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(12, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"docs/notes.md": "copied from elsewhere"}, "Import notes (#12)")

    assert applied(upstream, tmp_path, pin(12, head), base).result == "clean"


def test_contained_by_the_same_change_under_another_name(
    upstream: Upstream, tmp_path: Path
) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    upstream.dev({"pkg/core.py": "# moved down\n" + CORE})
    same = upstream.dev({"pkg/core.py": "# moved down\n" + CHANGED}, "no number")
    base = upstream.dev({"pkg/core.py": "# moved down\n" + CHANGED.replace("x + 10", "x + 12")})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.contained is not None
    assert (answer.contained.sign, answer.contained.commit) == ("patch-id", same)


def test_contained_commit_by_commit(upstream: Upstream, tmp_path: Path) -> None:
    one = upstream.commit({"pkg/a.py": "a = 1\n"}, parents=[tip(upstream)])
    head = upstream.request(1, {"pkg/b.py": "b = 1\n"}, one)
    upstream.dev({"pkg/other.py": "1"})
    upstream.dev({"pkg/a.py": "a = 1\n"})
    second = upstream.dev({"pkg/b.py": "b = 1\n"})
    base = upstream.dev({"pkg/a.py": "a = 2\n"})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.contained is not None
    assert (answer.contained.sign, answer.contained.commit) == ("patch-id", second)


def test_another_indentation_is_another_change(upstream: Upstream, tmp_path: Path) -> None:
    fork = upstream.dev({"pkg/f.py": "if a:\n    b()\n"})
    head = upstream.request(1, {"pkg/f.py": "if a:\n    b()\n    c()\n"}, fork)
    base = upstream.dev({"pkg/f.py": "if a:\n    b()\nc()\n"})

    assert applied(upstream, tmp_path, pin(1, head), base).result == "conflict"


def test_contained_because_nothing_is_left_to_do(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": CHANGED + "# and more\n", "pkg/n.py": "1"}, "both at once")

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.contained is not None
    assert answer.contained.sign == "no-effect"


def test_a_request_that_was_taken_out_again_is_not_contained(
    upstream: Upstream, tmp_path: Path
) -> None:
    head = upstream.request(12, {"pkg/core.py": CHANGED}, tip(upstream))
    merged = upstream.dev({"pkg/core.py": CHANGED}, "Numbers (#12)")
    out = upstream.dev({"pkg/core.py": CORE}, 'Revert "Numbers (#12)" (#13)')
    back = upstream.dev({"pkg/core.py": CHANGED}, 'Reapply "Numbers (#12)" (#14)')

    assert applied(upstream, tmp_path, pin(12, head), merged).result == "contained"
    answer = applied(upstream, tmp_path, pin(12, head), out)
    assert (answer.result, answer.reverted_by) == ("clean", out)
    assert applied(upstream, tmp_path, pin(12, head), back).result == "contained"


def test_taken_out_under_another_name(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(12, {"pkg/core.py": CHANGED}, tip(upstream))
    upstream.dev({"pkg/core.py": CHANGED}, "Numbers (#12)")
    out = upstream.dev({"pkg/core.py": CORE}, "Back to what worked")
    again = upstream.dev({"pkg/core.py": CHANGED}, "Once more")

    answer = applied(upstream, tmp_path, pin(12, head), out)

    assert (answer.result, answer.reverted_by) == ("clean", out)
    assert applied(upstream, tmp_path, pin(12, head), again).result == "contained"
