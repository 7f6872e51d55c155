"""Stacks with candidates on them, in the published data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from matrix.site import render
from matrix.stacks import stack_id
from tests.site.world import REQUESTED, World

HEAD = "2b3e3b70c2ae884dc4efb6ee621a8c21ac018ae0"
CANDIDATE = f"""
component = "megatron-core"
repository = "https://github.com/NVIDIA/Megatron-LM"
number = 6206
title = "t"
reason = "r"
claims = "c"
state = "open"
target = "dev"
head = "{HEAD}"
seen = 2026-11-30
"""


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.campaign(reported="4.5.2")
    made.rooms.candidates.mkdir(parents=True)
    (made.rooms.candidates / "mcore-6206.toml").write_text(CANDIDATE)
    return made


def patched(head: str = HEAD, id_: str = "mcore-6206") -> dict[str, Any]:
    return {
        "id": stack_id(REQUESTED, ((id_, head),)),
        "patches": [{"id": id_, "head": head, "result": "clean"}],
    }


def stacks(world: World) -> list[dict[str, Any]]:
    render(world.rooms)
    data = json.loads((world.rooms.docs / "api" / "v1" / "matrix.json").read_text())
    return list(data["stacks"])


def plan_it(world: World) -> None:
    file = world.rooms.campaigns / "default.toml"
    file.write_text(
        file.read_text()
        + '\n[[stack]]\nname = "with-6206"\nreason = "r"\npatches = ["mcore-6206"]\n'
        '[stack.components]\nnvidia-cutlass-dsl = "4.5.2"\n'
    )


def test_a_planned_stack_with_a_candidate_is_a_stack_of_its_own(world: World) -> None:
    plan_it(world)

    plain, planned = stacks(world)

    assert [name["name"] for name in plain["names"]] == ["reported"]
    assert [name["name"] for name in planned["names"]] == ["with-6206"]
    assert planned["id"] == patched()["id"]
    assert planned["patches"] == [{"id": "mcore-6206", "head": HEAD}]
    assert planned["verdict"] == "unknown"


def test_evidence_of_an_earlier_head_keeps_the_name(world: World) -> None:
    plan_it(world)
    world.run("compile", stack=patched("a" * 40))

    found = {stack["title"]: stack for stack in stacks(world)}

    assert found["with-6206"]["patches"] == [{"id": "mcore-6206", "head": "a" * 40}]
    assert found["reported"]["patches"] == []


def test_a_stack_of_the_command_line_is_called_after_what_it_changes(world: World) -> None:
    world.run("compile", stack=patched())
    world.run("compile", stack=patched("sha256:" + "0" * 64, "mine"))

    found = {stack["title"]: stack for stack in stacks(world)}

    assert set(found) == {"reported", "reported+6206", "reported+mine"}
    assert 'patches = ["mcore-6206"]' in found["reported+6206"]["campaign_entry"]
    assert found["reported+mine"]["campaign_entry"] == [], "a campaign has no patch files"


def test_a_patch_that_does_not_apply(world: World) -> None:
    facts = patched()
    facts["patches"][0]["result"] = "conflict"
    world.run("fingerprint", "fail", "patch:conflict", stack=facts, detail="in f")

    found = {stack["title"]: stack for stack in stacks(world)}

    assert found["reported+6206"]["summary"].startswith("A patch can't be applied")
