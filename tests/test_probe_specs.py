from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

from matrix.errors import DataError
from matrix.probe_specs import code_of, load_probe_specs
from matrix.rooms import Rooms
from tests.worlds import REPOSITORY, probe_source


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    rooms = Rooms(tmp_path)
    rooms.probes.mkdir()
    (rooms.probes / "__init__.py").touch()
    (rooms.probes / "runner.py").write_text("from probes import shared\n")
    (rooms.probes / "shared.py").write_text("x = 1\n")
    (rooms.probes / "other.py").write_text("y = 1\n")
    (rooms.probes / "sum.py").write_text(
        probe_source("sum", "import torch\nfrom probes.refs.adding import add")
    )
    (rooms.probes / "refs").mkdir()
    (rooms.probes / "refs" / "__init__.py").touch()
    (rooms.probes / "refs" / "adding.py").write_text("add = 1\n")
    return rooms


def test_a_probe_is_read_without_being_imported(rooms: Rooms) -> None:
    spec = load_probe_specs(rooms)["sum"]

    assert spec.question == "What does sum show?"
    assert spec.needs == ["torch"]


@pytest.mark.parametrize("name", ["sum.py", "shared.py", "runner.py", "refs/adding.py"])
def test_a_revision_changes_with_all_that_a_probe_imports(rooms: Rooms, name: str) -> None:
    before = load_probe_specs(rooms)["sum"].revision

    with (rooms.probes / name).open("a") as file:
        file.write("\nchanged = 1\n")

    assert load_probe_specs(rooms)["sum"].revision != before


def test_a_revision_stays_when_something_else_changes(rooms: Rooms) -> None:
    before = load_probe_specs(rooms)["sum"].revision

    (rooms.probes / "other.py").write_text("y = 2\n")

    assert load_probe_specs(rooms)["sum"].revision == before


@pytest.mark.parametrize("words", ["\n# changed\n", '\n"""Why."""\n', "\n\n    # indented\n"])
def test_a_revision_stays_when_words_change(rooms: Rooms, words: str) -> None:
    before = load_probe_specs(rooms)["sum"].revision

    for name in ("sum.py", "shared.py"):
        with (rooms.probes / name).open("a") as file:
            file.write(words)

    assert load_probe_specs(rooms)["sum"].revision == before


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "probes").rglob("*.py")), ids=lambda path: path.stem
)
def test_only_words_are_left_out_of_a_revision(path: Path) -> None:
    """What is taken out by its form is what a parser calls a docstring, a comment or nothing."""
    text = path.read_text(encoding="utf-8")
    docstrings = {
        (node.lineno, node.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    kept = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in (tokenize.COMMENT, tokenize.NL)
        and not any(first <= token.start[0] <= (last or 0) for first, last in docstrings)
        and token.type not in (tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
        and token.string.strip()
    ]

    code = code_of(text.encode()).decode()

    words = [token.string for token in kept]
    place = 0
    for word in words:
        found = code.find(word, place)
        assert found >= 0, f"{word!r} of {path.name} is not in what the revision is made of"
        place = found + len(word)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def run(:", "does not parse"),
        ('"""Q?"""\nPROBE = dict(id="bad")', "plain literal"),
        ('"""Q?"""\nPROBE = {"id": "bad"}', "does not fit a probe's form"),
        (probe_source("good", ""), "its file must match"),
        (probe_source("bad", "").partition("\n")[2], "first line must be the probe's question"),
        (probe_source("bad", "").replace("'quick'", "'fast'"), "no parameter setting 'quick'"),
    ],
)
def test_a_malformed_probe_is_named(rooms: Rooms, source: str, problem: str) -> None:
    (rooms.probes / "bad.py").write_text(source)

    with pytest.raises(DataError, match=problem) as caught:
        load_probe_specs(rooms)
    assert "probes/bad.py" in str(caught.value)


def test_the_probes_of_this_project() -> None:
    specs = load_probe_specs(Rooms(REPOSITORY))

    assert next(iter(specs)) == "fingerprint"
    assert specs["fingerprint"].group == "gate"
    assert specs["compile"].gpu is None
    assert specs["layout-indices"].gpu == "sm90"
    assert specs["sparse-backward"].gpu == "sm90"
