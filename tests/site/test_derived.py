"""What the pages about one thing derive from stacks: order, turns, coverage, changes, dates."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.site import load_matrix, render
from matrix.site.changes import FEED_FILE
from matrix.site.published import Matrix
from matrix.site.table import (
    LETTERS,
    Table,
    build_table,
    codes,
    equal_columns,
    table_text,
    version_order,
)
from tests.site.golden import STACKS, make_golden
from tests.site.world import REQUESTED, World


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_golden(tmp_path_factory.mktemp("derived"))


@pytest.fixture(scope="module")
def matrix(golden: World) -> Matrix:
    return load_matrix(golden.rooms)


@given(
    st.lists(st.from_regex(r"[a-z0-9]+(-[a-z0-9]+){0,3}", fullmatch=True), unique=True, max_size=60)
)
def test_no_two_probes_have_one_code(probes: list[str]) -> None:
    found = codes(probes)

    assert list(found) == probes
    assert len(set(found.values())) == len(probes)
    assert all(len(code) == 2 for code in found.values())


def test_versions_sort_by_number() -> None:
    shuffled = ["1.10.0", "none", "a" * 40, "1.9.0", "system", "1.10.0.post1", "0.1.15.post2"]

    assert sorted(shuffled, key=version_order) == [
        "none",
        "system",
        "0.1.15.post2",
        "1.9.0",
        "1.10.0",
        "1.10.0.post1",
        "a" * 40,
    ]


def test_the_table_says_what_the_matrix_says(matrix: Matrix) -> None:
    table = Table.model_validate_json(table_text(build_table(matrix)))
    letters = {letter: status for status, letter in LETTERS.items()}

    for stack, row in zip(matrix.stacks, table.stacks, strict=True):
        shown = {
            c.name: c.versions[at] for c, at in zip(table.components, row.versions, strict=True)
        }
        assert shown == {choice.component: choice.version for choice in stack.components}
        assert [letters[x] for x in row.cells] == [cell.status for cell in stack.cells]
        assert [table.patches[at].id for at in row.patches] == [p.id for p in stack.patches]


def test_what_is_equal_in_all_rows(matrix: Matrix) -> None:
    table = build_table(matrix)
    names = {part.name for part in table.components}

    assert names - set(equal_columns(table, table.stacks)) == {
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
    }
    assert set(equal_columns(table, table.stacks[:1])) == names
    assert equal_columns(table, []) == {}


def test_a_plan_that_takes_what_a_machine_has_differs_from_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    world.campaign(reported="4.5.2", newest="4.8.1")
    file = world.rooms.campaigns / "default.toml"
    file.write_text(file.read_text().replace('torch = "2.11.0"', 'torch = "system"'))
    world.passes()
    table = build_table(load_matrix(world.rooms))

    assert equal_columns(table, table.stacks)["torch"] == "2.11.0"


def test_where_an_answer_turns(matrix: Matrix) -> None:
    by_id = {probe.id: probe for probe in matrix.probes}
    turns = {s.component: s.turns for s in by_id["layout-indices"].strips}

    # The report's DSL fails without a patch and passes with it, so no version can be named.
    assert turns == {"nvidia-cudnn-frontend": None, "nvidia-cutlass-dsl": None}


def test_a_turn_needs_failing_before_and_passing_after(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    for version, status in (("4.5.2", "fail"), ("4.6.0", "fail"), ("4.8.1", "pass")):
        world.run(
            "compile",
            status,
            "numerics" if status == "fail" else None,
            requested=REQUESTED | {"nvidia-cutlass-dsl": version},
        )
    (strip,) = next(p for p in load_matrix(world.rooms).probes if p.id == "compile").strips

    assert strip.turns == "4.8.1"
    assert [column.version for column in strip.columns] == ["4.5.2", "4.6.0", "4.8.1"]


@pytest.mark.parametrize(("passes", "turns"), [(3, None), (20, "4.8.1")])
def test_what_comes_and_goes_turns_after_more_passes_than_chance_explains(
    tmp_path: Path, passes: int, turns: str | None
) -> None:
    world = World(tmp_path / "project")
    for version, failed, passed in (("4.5.2", 2, 2), ("4.8.1", 0, passes)):
        asked = REQUESTED | {"nvidia-cutlass-dsl": version}
        for _ in range(failed):
            world.run("compile", "fail", "numerics", requested=asked)
        for _ in range(passed):
            world.run("compile", requested=asked)

    (strip,) = next(p for p in load_matrix(world.rooms).probes if p.id == "compile").strips

    assert strip.turns == turns


def test_pairs_are_counted(matrix: Matrix) -> None:
    coverage = matrix.coverage
    assert coverage is not None
    frontends = {v["nvidia-cudnn-frontend"] for v in STACKS.values()}
    dsls = {v["nvidia-cutlass-dsl"] for v in STACKS.values()}
    ran = {
        (v["nvidia-cudnn-frontend"], v["nvidia-cutlass-dsl"])
        for name, v in STACKS.items()
        if name != "planned"
    }
    missing = {(pair.one_version, pair.other_version) for pair in coverage.missing}

    assert missing == set(itertools.product(frontends, dsls)) - ran
    assert coverage.possible == len(frontends) * len(dsls)
    assert coverage.seen + len(missing) == coverage.possible
    for proposal in coverage.proposals:
        pair = (
            proposal.components["nvidia-cudnn-frontend"],
            proposal.components["nvidia-cutlass-dsl"],
        )
        assert pair in missing
        assert proposal.pairs == 1


def test_each_day_is_told_with_what_changed(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    world.campaign(reported="4.5.2")
    world.passes()
    world.moment += dt.timedelta(days=2)
    world.run("layout-indices", "fail", "numerics")
    world.moment += dt.timedelta(days=2)
    world.run("layout-indices", "fail", "numerics")
    changes = load_matrix(world.rooms).changes

    assert [(change.before, change.after) for change in changes] == [
        ("supported", "caveat"),
        (None, "supported"),
    ]
    (cause,) = changes[0].causes
    assert (cause.probe, cause.before, cause.after) == ("layout-indices", "pass", "flaky")
    assert changes[0].day - changes[1].day == dt.timedelta(days=2)


def test_the_feed_is_atom(golden: World) -> None:
    render(golden.rooms)
    root = ET.fromstring((golden.rooms.docs / FEED_FILE).read_text())  # noqa: S314 - our own
    atom = "{http://www.w3.org/2005/Atom}"
    entries = root.findall(f"{atom}entry")

    assert root.tag == f"{atom}feed"
    for element in (root, *entries):
        for needed in ("id", "title", "updated"):
            assert element.findtext(f"{atom}{needed}")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT00:00:00Z", element.findtext(f"{atom}updated") or "")
    assert len({entry.findtext(f"{atom}id") for entry in entries}) == len(entries)
    for entry in entries:
        link = entry.find(f"{atom}link")
        assert link is not None
        page = (golden.rooms.docs / FEED_FILE).parent / link.attrib["href"]
        assert page.with_suffix(".md").resolve().is_file()


def test_the_state_of_a_day(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    world.campaign(reported="4.5.2")
    world.passes()
    day = world.moment.date()
    before = every(world, day)
    world.moment += dt.timedelta(days=1)
    world.run("layout-indices", "fail", "numerics")

    assert load_matrix(world.rooms).stacks[0].verdict == "caveat"
    assert every(world, day) == before
    data = json.loads((world.rooms.docs / "api/v1/matrix.json").read_text())
    assert data["as_of"] == str(day)
    assert data["stacks"][0]["verdict"] == "supported"


def test_a_day_before_all_evidence(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    world.campaign(reported="4.5.2")
    world.passes()

    data = load_matrix(world.rooms, world.moment.date() - dt.timedelta(days=30))

    assert (data.runs, data.stacks[0].verdict) == (0, "unknown")


def every(world: World, day: dt.date) -> dict[str, bytes]:
    render(world.rooms, day)
    return {
        path.relative_to(world.rooms.docs).as_posix(): path.read_bytes()
        for path in sorted(world.rooms.docs.rglob("*"))
        if path.is_file()
    }
