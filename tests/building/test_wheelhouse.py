from __future__ import annotations

from pathlib import Path

import pytest

from matrix.building.uv import run_uv
from matrix.building.wheelhouse import fill, platform_tags
from matrix.components import load_components
from matrix.errors import DataError, MatrixError
from matrix.planning.campaigns import load_campaign
from matrix.probe_specs import load_probe_specs
from tests.worlds import World


def filled(world: World, folder: Path, *host: str) -> list[str]:
    """Fill a folder for another machine's Python; the distributions in it."""
    components = load_components(world.rooms)
    fill(
        rooms=world.rooms,
        campaign=load_campaign(world.rooms, "default", components, load_probe_specs(world.rooms)),
        components=components,
        host_requirements=list(host),
        folder=folder,
        python="3.12",
        platform="x86_64-manylinux_2_28",
        say=lambda _: None,
    )
    return sorted("-".join(path.name.split("-")[:2]) for path in folder.glob("*.whl"))


@pytest.mark.usefixtures("index")
def test_a_wheelhouse_holds_the_stacks_and_the_host_side_and_no_torch(
    world: World, tmp_path: Path
) -> None:
    """A stack that takes torch from the image needs none; the host side may need other versions."""
    found = filled(world, tmp_path / "filled", "nvidia-cutlass-dsl==3.0")

    assert found == [
        "nvidia_cudnn_frontend-1.0", "nvidia_cutlass_dsl-2.0", "nvidia_cutlass_dsl-3.0",
    ]  # fmt: skip


@pytest.mark.usefixtures("index")
def test_a_host_side_that_can_not_be_resolved_is_said(world: World, tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="the host side can't be resolved"):
        filled(world, tmp_path / "filled", "nothing-of-this-name")


def test_no_python_is_fetched_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go into the user's home; without a network, uv tries for ten seconds."""
    program = tmp_path / "uv"
    program.write_text('#!/bin/sh\necho "$UV_PYTHON_DOWNLOADS"\n')
    program.chmod(0o755)
    monkeypatch.setattr("matrix.building.uv.find_uv_bin", lambda: str(program))
    monkeypatch.delenv("UV_PYTHON_DOWNLOADS", raising=False)

    assert run_uv("pip", "compile").output == "never\n"


def test_every_older_glibc_is_accepted_newest_first() -> None:
    tags = platform_tags("x86_64-manylinux_2_28")

    assert tags[0] == "manylinux_2_28_x86_64"
    assert "manylinux_2_17_x86_64" in tags
    assert "manylinux2014_x86_64" in tags
    assert "manylinux_2_31_x86_64" not in tags


@pytest.mark.parametrize("name", ["linux", "macos", "x86_64-manylinux_2_x", "x86_64-musllinux_1_2"])
def test_other_platforms_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="x86_64-manylinux_2_28"):
        platform_tags(name)
