"""Bad input gives one clear message that names the file and the entry, and loses nothing."""

from __future__ import annotations

import pytest

from tests.wheels import make_wheel
from tests.worlds import CAMPAIGN, World

OTHER = """
[[stack]]
name = "other"
reason = "does not fit"
components = {{ nvidia-cudnn-frontend = "{frontend}", nvidia-cutlass-dsl = "{dsl}" }}
"""


def refused(world: World, *arguments: str) -> str:
    """Run and expect exit status 2 with nothing kept; the message."""
    done = world.run(*arguments)
    assert done.status == 2, done.output
    assert world.records() == []
    return done.output


def test_an_unknown_component(world: World) -> None:
    text = world.rooms.campaigns / "default.toml"
    text.write_text(text.read_text().replace("nvidia-cutlass-dsl =", "nvidia-cutlas-dsl ="))

    message = refused(world)

    assert "matrix/catalogue/campaigns/default.toml: stack 'good'" in message
    assert "unknown component 'nvidia-cutlas-dsl'" in message
    assert "Known components: torch, nvidia-cudnn," in message


def test_an_unknown_probe(world: World) -> None:
    world.campaign("fingerprint", "sums")

    message = refused(world)

    assert "campaigns/default.toml: probes: unknown probe 'sums'" in message
    assert "Known probes: fingerprint, sum" in message


def test_a_probe_that_the_campaign_does_not_have(world: World) -> None:
    assert "--probe sums: not in campaign 'default'" in refused(world, "--probe", "sums")


def test_a_stack_that_does_not_exist(world: World) -> None:
    assert "Stacks: good." in refused(world, "--stack", "god")


def test_a_campaign_that_does_not_exist(world: World) -> None:
    message = refused(world, "--campaign", "nightly")

    assert "no campaign 'nightly'" in message
    assert "Known campaigns: default" in message


@pytest.mark.parametrize("name", ["campaigns/default.toml", "components.toml"])
def test_malformed_toml(world: World, name: str) -> None:
    with (world.rooms.catalogue / name).open("a") as file:
        file.write("\n[[stack\n")

    message = refused(world)

    assert f"matrix/catalogue/{name} is not valid TOML" in message
    assert "line" in message


def test_malformed_settings(world: World) -> None:
    world.rooms.settings.write_text('wheelhuose = "x"\n')

    message = refused(world)

    assert "matrix.local.toml" in message
    assert "wheelhuose: Extra inputs are not permitted" in message


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("latest", "'latest' is not a version"),
        ("system", "is installed for each stack, not taken from the runner's image"),
        ("none", "can't be left out"),
    ],
)
def test_a_version_that_is_none(world: World, version: str, problem: str) -> None:
    world.campaign("fingerprint", more=OTHER.format(frontend=version, dsl="2.0"))

    message = refused(world)

    assert "stack 'other': nvidia-cudnn-frontend" in message
    assert problem in message


def test_a_shortened_revision(world: World) -> None:
    world.campaign("fingerprint", text=CAMPAIGN.replace("{revision}", world.revision[:10]))

    assert "is not a full commit SHA" in refused(world)


def test_a_stack_that_leaves_a_component_out(world: World) -> None:
    world.campaign("fingerprint", text=CAMPAIGN.replace('torch = "system"\n', ""))

    assert "stack 'good' says nothing of torch" in refused(world)


def test_a_source_of_something_that_is_not_git(world: World) -> None:
    assert "The source torch: not a git component" in refused(world, "--source", "torch=x")


def test_a_source_without_a_place(world: World) -> None:
    assert "write COMPONENT=PATH" in refused(world, "--source", "megatron-core")


def test_a_wheelhouse_that_is_no_folder(world: World) -> None:
    message = refused(world, "--wheelhouse", str(world.root / "nowhere"))

    assert "is not a folder" in message
    assert "nox -s wheelhouse" in message


def test_a_python_that_does_not_run(world: World) -> None:
    assert "there is no Python at this path" in refused(world, "--python", "/no/python3")


def test_a_python_that_is_neither_a_path_nor_a_version(world: World) -> None:
    assert "write a version such as 3.12" in refused(world, "--python", "foo")


def test_a_source_that_is_no_repository_is_said_in_the_plan(world: World) -> None:
    (world.root / "empty").mkdir()

    done = world.run("--plan", "--source", f"megatron-core={world.root / 'empty'}", source=False)

    assert "can't be reached from here" in done.output


def test_a_python_version_that_is_not_here(world: World) -> None:
    done = world.run("--python", "3.3")

    assert done.status == 0, done.output
    assert "Python 3.3 is not on this machine" in done.output
    assert "not here  fingerprint" in done.output
    assert world.records() == []


def test_a_version_that_no_wheelhouse_or_index_has_stops_one_stack_only(world: World) -> None:
    world.campaign("fingerprint", "sum", more=OTHER.format(frontend="9.9", dsl="2.0"))

    done = world.run()

    assert done.status == 1
    statuses = {r["stack"]["requested"]["nvidia-cudnn-frontend"]: r for r in world.records()}
    assert statuses["1.0"]["status"] == "pass"
    assert statuses["9.9"]["status"] == "miss"
    assert statuses["9.9"]["reason"] == "wheelhouse:missing-wheel"
    assert "nvidia-cudnn-frontend==9.9" in statuses["9.9"]["detail"]
    assert str(world.wheels) not in statuses["9.9"]["detail"]
    assert "nox -s wheelhouse" in done.output

    again = world.run()

    assert again.status == 1
    assert len(world.records("fingerprint")) == 2, "trying again is no new result"


def test_a_wheelhouse_that_lacks_what_a_wheel_requires(world: World) -> None:
    make_wheel(
        world.wheels, "nvidia-cudnn-frontend", "1.2", {"cudnn/__init__.py": ""}, requires=("gone",)
    )
    world.campaign("fingerprint", more=OTHER.format(frontend="1.2", dsl="2.0"))

    done = world.run("--stack", "other")

    assert done.status == 1
    assert world.record("fingerprint")["reason"] == "wheelhouse:missing-wheel"
    assert "gone" in world.record("fingerprint")["detail"]


def test_an_unreachable_remote_is_said_in_the_plan_and_the_rest_goes_on(world: World) -> None:
    done = world.run(source=False)

    assert done.status == 0, done.output
    assert "not here: megatron-core (source:unreachable)" in done.output
    assert "--source megatron-core=PATH" in done.output
    gate = world.record("fingerprint")
    assert (gate["status"], gate["reason"]) == ("miss", "source:unreachable")
    assert gate["stack"]["absent"] == {"megatron-core": "source:unreachable"}
    assert world.record("sum")["status"] == "pass"

    again = world.run(source=False)

    assert again.status == 0
    assert len(world.records()) == 2, "what is missing still is not tried again"

    with_source = world.run()

    assert with_source.status == 0
    assert [record["status"] for record in world.records("fingerprint")] == ["miss", "pass"]


def test_a_revision_that_does_not_exist(world: World) -> None:
    world.campaign("fingerprint", "sum", text=CAMPAIGN.replace("{revision}", "0" * 40))

    done = world.run()

    assert done.status == 1
    assert f"has no revision {'0' * 40}" in done.output
    assert "Correct the SHA" in done.output
    assert world.record("fingerprint")["reason"] == "source:no-such-revision"


def test_an_evidence_file_cut_in_half(world: World) -> None:
    assert world.run().status == 0
    (path,) = world.rooms.evidence.glob("*/*/sum--*.json")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    before = {file: file.read_bytes() for file in world.rooms.evidence.rglob("*.json")}

    done = world.run()

    assert done.status == 2
    assert path.name in done.output
    assert "git checkout --" in done.output
    assert {file: file.read_bytes() for file in world.rooms.evidence.rglob("*.json")} == before


def test_an_evidence_file_with_a_foreign_key(world: World) -> None:
    assert world.run().status == 0
    (path,) = world.rooms.evidence.glob("*/*/sum--*.json")
    path.write_text(path.read_text().replace('"status": "pass"', '"status": "passed"', 1))

    done = world.run("--plan")

    assert done.status == 2
    assert "not an evidence record of schema 1" in done.output


def test_an_evidence_file_in_the_wrong_place(world: World) -> None:
    assert world.run().status == 0
    (path,) = world.rooms.evidence.glob("*/*/sum--*.json")
    path.rename(path.with_name(path.name.replace("sum", "product")))

    done = world.run("--plan")

    assert done.status == 2
    assert "this record belongs at" in done.output
