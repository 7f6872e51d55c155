from __future__ import annotations

from pathlib import Path

import pytest

from matrix.errors import DataError
from matrix.probe_specs import load_probe_specs
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
        file.write("\n# changed\n")

    assert load_probe_specs(rooms)["sum"].revision != before


def test_a_revision_stays_when_something_else_changes(rooms: Rooms) -> None:
    before = load_probe_specs(rooms)["sum"].revision

    (rooms.probes / "other.py").write_text("y = 2\n")

    assert load_probe_specs(rooms)["sum"].revision == before


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
