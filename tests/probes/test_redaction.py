from __future__ import annotations

from pathlib import Path

import pytest

from probes.redaction import one_line, ordered, redactor


def test_prefixes_become_names_longest_first() -> None:
    redact = redactor([("/srv/a", "<env>"), ("/srv/a/tree", "<tree>"), ("/srv/home", "~")])
    assert redact("/srv/a/tree/x.py and /srv/a/lib, /srv/home/.cache") == (
        "<tree>/x.py and <env>/lib, ~/.cache"
    )


def test_a_prefix_is_a_whole_part_of_a_path() -> None:
    redact = redactor([("/srv/a", "<env>")])
    assert redact("'/srv/a': /srv/a/b /srv/abc/d") == "'<env>': <env>/b <path>/d"


def test_a_resolved_link_is_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    redact = redactor([(str(tmp_path / "link"), "<env>")])
    assert redact(f"{tmp_path}/real/x {tmp_path}/link/y") == "<env>/x <env>/y"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/opt/b/c.py", line 3', 'File "<path>/c.py", line 3'),
        ("relative/path/file.py stays", "relative/path/file.py stays"),
        ("3/4 and and/or stay", "3/4 and and/or stay"),
        ("https://example.org/a/b stays", "https://example.org/a/b stays"),
        ("<env>/lib/x stays", "<env>/lib/x stays"),
        ("~/x/y stays", "~/x/y stays"),
        ("/opt alone says nothing", "/opt alone says nothing"),
    ],
)
def test_other_paths_keep_their_last_part(text: str, expected: str) -> None:
    assert redactor([])(text) == expected


def test_the_root_and_nothing_are_no_prefixes() -> None:
    assert ordered([("/", "<env>")]) == []


def test_one_line() -> None:
    assert one_line(" a\n  b\tc ") == "a b c"
    assert one_line("x" * 600) == "x" * 499 + "…"
