"""What the pages about campaigns show is what works."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from matrix.commands.cli import ROOT, cli
from matrix.components import load_components
from matrix.planning.campaign_forms import Bisection, Campaign
from matrix.planning.campaigns import load_campaign
from matrix.planning.offers import BUILD_S, CANDIDATE, DISPUTED, FIRST, OLDER, STALE
from matrix.planning.rules import Rule
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms

CAMPAIGNS = (ROOT / "docs" / "campaigns.md").read_text()
RUNNERS = (ROOT / "docs" / "runners.md").read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"(?s)```{language}\n(.*?)```", page)


def test_the_example_gives_the_stacks_that_the_page_names(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path)
    rooms.campaigns.mkdir(parents=True)
    own = Rooms(ROOT)
    (rooms.campaigns / "example.toml").write_text(blocks(CAMPAIGNS, "toml")[0])

    found = load_campaign(rooms, "example", load_components(own), load_probe_specs(own))

    assert [stack.name for stack in found.stacks] == [
        "reported",
        "fe-1.28.0",
        "fe-1.29.0+dsl-4.6.3",
        "dsl-4.5.0",
        "dsl-4.6.3",
        "dsl-4.8.1",
    ]
    for name in [stack.name for stack in found.stacks]:
        assert f"`{name}`" in CAMPAIGNS


def test_the_bisection_is_one() -> None:
    data = tomllib.loads(blocks(CAMPAIGNS, "toml")[1])

    assert Bisection.model_validate(data["bisect"]).flaky is False


def test_every_field_is_told() -> None:
    aliases = {"stacks": "[[stack]]", "rules": "[[rule]]", "name": None}
    tables = {"components", "reference", "axes", "bisect", "tags"}
    for field in Campaign.model_fields:
        shown = aliases.get(field, f"[{field}]" if field in tables else field)
        assert shown is None or re.search(rf"(?m)^\| `{re.escape(shown)}`", CAMPAIGNS), field
    for field in Bisection.model_fields:
        assert re.search(rf"(?m)^\| .*`{field}`.* \| ", CAMPAIGNS.split("## Bisect")[1]), field
    for field in ("exclude", "requires", "include", "reason", "link"):
        assert field in Rule.model_fields
        assert f"`{field}" in CAMPAIGNS


def test_the_numbers_of_a_budget_are_those_of_the_code() -> None:
    told = CAMPAIGNS.split("## Within a budget")[1]

    assert f"| the first answer of a cell | {FIRST:g} |" in told
    assert f"| {CANDIDATE:g} more; {2 * CANDIDATE:g} where" in told
    assert f"| a cell whose runs disagree | {DISPUTED:g} |" in told
    assert f"has answered | {OLDER:g} |" in told
    assert f"older than 90 days | {STALE:g} |" in told
    assert f"{BUILD_S:g} s where it was never built" in told


def test_every_campaign_of_the_project_is_listed() -> None:
    for path in sorted(Rooms(ROOT).campaigns.glob("*.toml")):
        strategy = tomllib.loads(path.read_text()).get("strategy", "explicit")
        assert f"| `{path.stem}` | {strategy} |" in CAMPAIGNS, path.stem


@pytest.fixture
def workflow() -> dict[Any, Any]:
    (text,) = blocks(RUNNERS, "yaml")
    return dict(yaml.safe_load(text))


def test_the_workflow_hands_jobs_over_as_a_matrix(workflow: dict[Any, Any]) -> None:
    plan, run = workflow["jobs"]["plan"], workflow["jobs"]["run"]

    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"workflow_dispatch"}, "nothing of a fork starts a job"
    assert plan["outputs"]["jobs"] == "${{ steps.list.outputs.jobs }}"
    assert run["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.jobs) }}"
    assert "gpu-sm90" in run["runs-on"]
    checkouts = [
        step
        for job in (plan, run)
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert [step["with"]["persist-credentials"] for step in checkouts] == [False, False]
    # Evidence that an earlier job left would change what a covering campaign chooses.
    assert {"run": "git clean -ffdq"} in run["steps"]


def test_the_workflow_names_options_that_there_are(workflow: dict[Any, Any]) -> None:
    command = cli.commands["run"]
    known = {name for option in command.params for name in option.opts}
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            text = step.get("run", "")
            if "matrix" in text:
                # What a job puts into a script from outside goes through the environment.
                assert "${{" not in text
                named = [part.rstrip(")") for part in shlex.split(text.replace("$(", " "))]
                options = {part for part in named if part.startswith("--") and part != "--"}
                assert options <= known, options
