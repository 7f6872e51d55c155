"""All that is published of the golden world, compared with what is expected of it.

After a wanted change: `MATRIX_GOLDEN=write pytest tests/site/test_golden.py`, and read the diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from matrix.judging.verdicts import CELL_MEANING, VERDICT_MEANING
from matrix.rooms import Rooms
from matrix.site import render
from tests.site.golden import make_golden

EXPECTED = Path(__file__).with_name("golden")


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Rooms:
    made = make_golden(tmp_path_factory.mktemp("golden"))
    render(made.rooms)
    return made.rooms


def api(rooms: Rooms) -> Path:
    return rooms.docs / "api" / "v1"


def published(rooms: Rooms) -> dict[str, str]:
    """Every file of data but evidence and schemas; lists of words are tested where they are."""
    found = {}
    for path in sorted(api(rooms).rglob("*")):
        name = path.relative_to(api(rooms)).as_posix()
        if path.is_dir() or name.startswith(("evidence/", "schema/")):
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            data = json.loads(text)
            data.pop("reasons", None)
            text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
        found[name] = text
    return found


def test_everything_is_as_expected(rooms: Rooms) -> None:
    found = published(rooms)
    if os.environ.get("MATRIX_GOLDEN") == "write":
        for name, text in found.items():
            (EXPECTED / name).parent.mkdir(parents=True, exist_ok=True)
            (EXPECTED / name).write_text(text, encoding="utf-8")
    expected = {
        path.relative_to(EXPECTED).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(EXPECTED.rglob("*"))
        if path.is_file()
    }

    assert found.keys() == expected.keys()
    for name, text in found.items():
        assert text == expected[name], name


def test_every_verdict_and_every_state_of_a_cell_is_there(rooms: Rooms) -> None:
    data = matrix(rooms)

    assert {stack["verdict"] for stack in data["stacks"]} == set(VERDICT_MEANING)
    assert {cell["status"] for stack in data["stacks"] for cell in stack["cells"]} == set(
        CELL_MEANING
    )
    assert {claim["outcome"] for claim in data["claims"]} == {"contradicted"}
    assert data["reports"][0]["differs"] == {"nvidia-cudnn": ["9.15.0.1", "9.16.0.29"]}


@pytest.mark.parametrize("name", ["matrix", "table"])
def test_data_fit_their_schemas(rooms: Rooms, name: str) -> None:
    rules = json.loads((api(rooms) / f"schema/{name}.schema.json").read_text())

    data = json.loads((api(rooms) / f"{name}.json").read_text())
    jsonschema.Draft202012Validator(rules).validate(data)


def test_badges_fit_their_schema_and_say_the_verdict(rooms: Rooms) -> None:
    rules = json.loads((api(rooms) / "schema/badge.schema.json").read_text())

    for stack in matrix(rooms)["stacks"]:
        badge = json.loads((api(rooms) / f"badges/{stack['id']}.json").read_text())
        jsonschema.Draft202012Validator(rules).validate(badge)
        assert badge["message"].startswith(stack["verdict"])


def matrix(rooms: Rooms) -> dict[str, Any]:
    return dict(json.loads((api(rooms) / "matrix.json").read_text()))
