"""What comes of putting a request onto a revision: every result, and every shape of change."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from patches.applying import OrderError
from patches.inert import GitFailed
from tests.patches.repositories import (
    AROUND,
    CHANGED,
    CORE,
    Upstream,
    applied,
    bench,
    content,
    pin,
    tip,
)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE, "tests/test_core.py": "one\ntwo\nthree\n"}, "start")
    return made


# Results


def test_clean(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/other.py": "x = 1\n"})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "clean"
    (file,) = answer.files
    assert (file.path, file.kind, file.hunks, file.lines_added, file.lines_removed) == (
        "pkg/core.py", "modified", 1, 1, 1,
    )  # fmt: skip
    assert content(upstream, tmp_path, answer, "pkg/core.py").decode() == CHANGED
    assert content(upstream, tmp_path, answer, "pkg/other.py") == b"x = 1\n"


def test_lines_that_only_moved_within_the_file_are_still_clean(
    upstream: Upstream, tmp_path: Path
) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": "# more\n" * 30 + CORE})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "clean"
    assert b"x + 10" in content(upstream, tmp_path, answer, "pkg/core.py")


def test_three_way_where_the_lines_around_changed(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": AROUND})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "three-way"
    text = content(upstream, tmp_path, answer, "pkg/core.py")
    assert b"# around" in text
    assert b"x + 10" in text


def test_a_hunk_that_fits_in_the_wrong_place_goes_where_the_merge_says(
    upstream: Upstream, tmp_path: Path
) -> None:
    """Plain patching takes the nearest fitting lines; here those are another function's."""
    block = "def {0}(x):\n    a = 1\n    b = 2\n    c = 3\n    d = 4\n    e = 5\n    return x\n\n\n"
    fork = upstream.dev({"pkg/two.py": block.format("one")})
    head = upstream.request(1, {"pkg/two.py": block.format("one").replace("c = 3", "c = 33")}, fork)
    moved = block.format("zero") + "# filler\n" * 40 + block.format("one")
    base = upstream.dev({"pkg/two.py": moved})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "three-way"
    text = content(upstream, tmp_path, answer, "pkg/two.py").decode()
    assert text == block.format("zero") + "# filler\n" * 40 + block.format("one").replace(
        "c = 3", "c = 33"
    )


def test_conflict_names_the_functions_on_both_sides(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(
        1, {"pkg/core.py": CORE.replace("z = first(x)", "z = first(x) + 5")}, tip(upstream)
    )
    theirs = CORE.replace("z = first(x)", "z = 7").replace("class Layer", "class Other")
    base = upstream.dev({"pkg/core.py": theirs})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "conflict"
    assert answer.tree is None
    (conflict,) = answer.conflicts
    assert (conflict.path, conflict.kind) == ("pkg/core.py", "contents")
    assert conflict.ours == ["Other.forward"]
    assert conflict.theirs == ["Layer.forward"]


def test_a_file_that_is_gone_conflicts_with_its_change(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": None})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    (conflict,) = answer.conflicts
    assert conflict.kind == "modify/delete"
    assert conflict.ours == []
    assert conflict.theirs == ["first"]


# Shapes of changes


def test_an_empty_change(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {}, tip(upstream))

    answer = applied(upstream, tmp_path, pin(1, head), tip(upstream))

    assert answer.contained is not None
    assert (answer.result, answer.contained.sign, answer.files) == ("contained", "empty", [])


def test_a_change_of_tests_alone_adds_nothing_that_is_imported(
    upstream: Upstream, tmp_path: Path
) -> None:
    head = upstream.request(1, {"tests/test_core.py": "new\n"}, tip(upstream))

    answer = applied(upstream, tmp_path, pin(1, head), tip(upstream))

    assert answer.contained is not None
    assert answer.contained.sign == "empty"


def test_tests_that_do_not_apply_spoil_nothing(upstream: Upstream, tmp_path: Path) -> None:
    files = {
        "pkg/core.py": CHANGED,
        "tests/test_core.py": "one\nTWO\nthree\n",
        "tests/test_more.py": "more\n",
    }
    head = upstream.request(1, files, tip(upstream))
    base = upstream.dev({"tests/test_core.py": "one\nzwei\nthree\n"})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert (answer.result, answer.left_out) == ("clean", ["tests/test_core.py"])
    assert content(upstream, tmp_path, answer, "tests/test_core.py") == b"one\nzwei\nthree\n"
    assert content(upstream, tmp_path, answer, "tests/test_more.py") == b"more\n"
    assert b"x + 10" in content(upstream, tmp_path, answer, "pkg/core.py")


def test_a_file_that_moved_since_is_followed(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": None, "pkg/deep/kernels.py": CORE})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "three-way"
    assert content(upstream, tmp_path, answer, "pkg/deep/kernels.py").decode() == CHANGED


def test_a_request_for_the_moved_file_goes_onto_the_old_name(
    upstream: Upstream, tmp_path: Path
) -> None:
    base = tip(upstream)
    fork = upstream.dev({"pkg/core.py": None, "pkg/deep/kernels.py": CORE})
    head = upstream.request(1, {"pkg/deep/kernels.py": CHANGED}, fork)

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "three-way"
    assert content(upstream, tmp_path, answer, "pkg/core.py").decode() == CHANGED


def test_a_move_with_edits(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": None, "pkg/moved.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": CORE.replace("EVEN_MORE = 3", "EVEN_MORE = 33")})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    (file,) = answer.files
    assert (file.kind, file.old_path, file.path) == ("renamed", "pkg/core.py", "pkg/moved.py")
    text = content(upstream, tmp_path, answer, "pkg/moved.py")
    assert b"x + 10" in text
    assert b"EVEN_MORE = 33" in text


def test_binary_files(upstream: Upstream, tmp_path: Path) -> None:
    fork = upstream.dev({"pkg/a.bin": b"\0\1\2" * 50})
    head = upstream.request(1, {"pkg/a.bin": b"\0\1\3" * 50, "pkg/new.bin": b"\0\xff"}, fork)
    base = upstream.dev({"pkg/other.py": "1"})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert answer.result == "clean"
    assert [file.binary for file in answer.files] == [True, True]
    assert content(upstream, tmp_path, answer, "pkg/a.bin") == b"\0\1\3" * 50

    clashing = upstream.dev({"pkg/a.bin": b"\0\1\4" * 50})
    (conflict,) = applied(upstream, tmp_path, pin(1, head), clashing).conflicts
    assert conflict.kind == "binary"


def test_line_ends_stay_as_they_are(upstream: Upstream, tmp_path: Path) -> None:
    crlf = CORE.replace("\n", "\r\n")
    fork = upstream.dev({"pkg/dos.py": crlf, ".gitattributes": "* text=auto eol=lf\n"})
    new = crlf.replace("x + 1\r", "x + 10\r")
    head = upstream.request(1, {"pkg/dos.py": new}, fork)
    base = upstream.dev({"pkg/dos.py": crlf.replace("MIDDLE = 1\r", "MIDDLE = 9\r")})

    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert content(upstream, tmp_path, answer, "pkg/dos.py").decode() == new.replace(
        "MIDDLE = 1\r", "MIDDLE = 9\r"
    )

    clashing = upstream.dev({"pkg/dos.py": crlf.replace("x + 1\r", "x + 2\r")})
    (conflict,) = applied(upstream, tmp_path, pin(1, head), clashing).conflicts
    assert (conflict.ours, conflict.theirs) == (["first"], ["first"])


def test_a_thousand_files(upstream: Upstream, tmp_path: Path) -> None:
    fork = upstream.dev({f"pkg/m{n}.py": f"a = {n}\nb = 1\n" for n in range(1000)})
    changes: dict[str, bytes | str | None] = {
        f"pkg/m{n}.py": f"a = {n}\nb = 2\n" for n in range(1000)
    }
    head = upstream.request(1, changes, fork)
    base = upstream.dev({"pkg/core.py": CORE + "# new\n"})

    started = time.monotonic()
    answer = applied(upstream, tmp_path, pin(1, head), base)

    assert (answer.result, len(answer.files)) == ("clean", 1000)
    assert time.monotonic() - started < 30


def test_names_with_spaces_and_letters_of_other_scripts(upstream: Upstream, tmp_path: Path) -> None:
    name = "pkg/ä name – 名.py"
    fork = upstream.dev({name: CORE, "pkg/[x]*.py": CORE})
    head = upstream.request(1, {name: CHANGED, "pkg/[x]*.py": CHANGED}, fork)

    answer = applied(upstream, tmp_path, pin(1, head), tip(upstream))

    assert answer.result == "clean"
    assert {file.path: file.hunks for file in answer.files} == {name: 1, "pkg/[x]*.py": 1}


# Several at once


def test_the_branch_merged_into_a_request_is_not_its_change(
    upstream: Upstream, tmp_path: Path
) -> None:
    start = tip(upstream)
    own = upstream.commit({"pkg/core.py": CHANGED}, parents=[start])
    newer = upstream.dev({"pkg/other.py": "1"})
    head = upstream.commit(
        {"pkg/other.py": "1"}, parents=[own, newer], subject="Merge dev", ref="refs/pull/1/head"
    )

    answer = applied(upstream, tmp_path, pin(1, head), start)

    assert [file.path for file in answer.files] == ["pkg/core.py"]
    assert answer.result == "clean"


def test_a_stacked_request_is_recognised_and_its_order_checked(
    upstream: Upstream, tmp_path: Path
) -> None:
    base = tip(upstream)
    lower = upstream.request(1, {"pkg/core.py": CHANGED}, base)
    upper = upstream.request(2, {"pkg/core.py": CHANGED + "# upper\n"}, lower)
    made = bench(upstream, tmp_path / "cache", pin(1, lower), pin(2, upper), bases=[base])

    done, tree = made.apply_all([pin(1, lower), pin(2, upper)], base)
    assert [answer.result for answer in done] == ["clean", "clean"]
    assert sum(file.lines_added for file in done[1].files) == 1, "only its own part"
    alone, same = made.apply_all([pin(2, upper)], base)
    assert sum(file.lines_added for file in alone[0].files) == 2, "with what it stacks on"
    assert tree == same

    with pytest.raises(OrderError, match="put r-1 before it"):
        made.apply_all([pin(2, upper), pin(1, lower)], base)


def test_what_a_stacked_request_merged_from_its_target_is_not_its_change(
    upstream: Upstream, tmp_path: Path
) -> None:
    base = tip(upstream)
    low = upstream.request(1, {"pkg/core.py": CHANGED}, base)
    middle = upstream.request(2, {"pkg/middle.py": "m = 1\n"}, low)
    newer = upstream.dev({"pkg/other.py": "1"})
    merged = upstream.commit({"pkg/other.py": "1"}, parents=[middle, newer], subject="Merge dev")
    top = upstream.request(3, {"pkg/top.py": "t = 1\n"}, merged)
    pins = [pin(1, low), pin(2, middle), pin(3, top)]
    made = bench(upstream, tmp_path / "cache", *pins, bases=[base])

    done, tree = made.apply_all(pins, base)

    assert [[file.path for file in answer.files] for answer in done] == [
        ["pkg/core.py"], ["pkg/middle.py"], ["pkg/top.py"],
    ]  # fmt: skip
    assert [answer.result for answer in done] == ["clean"] * 3
    whole, _ = made.apply_all([pin(3, top)], base)
    assert whole[0].tree == tree


def test_what_comes_after_a_conflict_is_not_tried(upstream: Upstream, tmp_path: Path) -> None:
    base = tip(upstream)
    pins = [
        pin(
            number,
            upstream.request(number, {"pkg/core.py": CORE.replace("+ 1", f"+ {number}")}, base),
        )
        for number in (11, 12, 13)
    ]
    made = bench(upstream, tmp_path / "cache", *pins, bases=[base])

    done, tree = made.apply_all(pins, base)

    assert [answer.result for answer in done] == ["clean", "conflict"]
    assert tree is None


def test_the_same_inputs_give_the_same_tree_everywhere(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = upstream.request(1, {"pkg/core.py": CHANGED}, tip(upstream))
    base = upstream.dev({"pkg/core.py": AROUND})
    first = applied(upstream, tmp_path / "one", pin(1, head), base)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(
        "[user]\n\tname = someone\n[merge]\n\trenames = false\n[core]\n\tautocrlf = true\n"
        "[diff]\n\talgorithm = patience\n\tnoprefix = true\n\tmnemonicPrefix = true\n"
    )
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01")

    second = applied(upstream, tmp_path / "two", pin(1, head), base)

    assert second == first


# A head that can't be used


def test_a_recorded_base_that_is_no_ancestor(upstream: Upstream, tmp_path: Path) -> None:
    start = tip(upstream)
    head = upstream.request(1, {"pkg/core.py": CHANGED}, start)
    other = upstream.dev({"pkg/other.py": "1"})

    with pytest.raises(GitFailed, match="correct `base`"):
        applied(upstream, tmp_path, pin(1, head, fork=other), start)


def test_a_conflict_among_functions_of_the_same_lines(upstream: Upstream, tmp_path: Path) -> None:
    body = "    a = 1\n    b = 2\n    return a + b\n\n\n"
    text = "".join(f"def f{n}():\n    name = {n}\n{body}" for n in range(5))
    place = "def f3():\n    name = 3\n    a = 1\n"
    fork = upstream.dev({"pkg/same.py": text})
    head = upstream.request(1, {"pkg/same.py": text.replace(place, place + "    b = 7\n")}, fork)
    gone = text.replace(place + "    b = 2\n", place)
    base = upstream.dev({"pkg/same.py": gone})

    (conflict,) = applied(upstream, tmp_path, pin(1, head), base).conflicts

    assert (conflict.ours, conflict.theirs) == (["f3"], ["f3"])
