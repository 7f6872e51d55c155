"""Resolving against a package index: a small one on this machine's loopback."""

from __future__ import annotations

import pytest

from matrix.building.interpreters import find_interpreter
from matrix.building.resolution import Resolution, Target, resolve
from matrix.building.uv import Packages
from matrix.components import load_components
from matrix.errors import ResolutionConflict, Unavailable
from tests.wheels import make_wheel
from tests.worlds import World


def resolved(world: World, packages: Packages | None = None, **versions: str) -> Resolution:
    requested = {"nvidia-cudnn-frontend": "1.0", "nvidia-cutlass-dsl": "2.0"}
    interpreter = find_interpreter(None)
    return resolve(
        requested=requested | {name.replace("_", "-"): v for name, v in versions.items()},
        components=load_components(world.rooms),
        torch_requirements=(),
        excluded=(),
        target=Target.of(interpreter),
        packages=packages or Packages(),
        rooms=world.rooms,
        python_version=interpreter.version,
    )


@pytest.mark.usefixtures("index")
def test_versions_come_from_the_index_with_their_hashes(world: World) -> None:
    found = resolved(world)

    assert found.packages == {"nvidia-cudnn-frontend": "1.0", "nvidia-cutlass-dsl": "2.0"}
    assert found.lock.count("--hash=sha256:") == 2
    assert "127.0.0.1" not in found.lock, "a lock names no index"
    assert found.without_extra == ("nvidia-cudnn-frontend",)


@pytest.mark.usefixtures("index")
def test_a_version_that_no_index_has(world: World) -> None:
    with pytest.raises(Unavailable, match=r"nvidia-cudnn-frontend==9\.9") as caught:
        resolved(world, nvidia_cudnn_frontend="9.9")
    assert caught.value.reason == "registry:no-such-version"
    assert "Correct the version" in str(caught.value)


@pytest.mark.usefixtures("index")
def test_versions_that_exclude_each_other(world: World) -> None:
    with pytest.raises(ResolutionConflict, match="nvidia-cutlass-dsl"):
        resolved(world, nvidia_cudnn_frontend="1.1")


def test_a_version_for_another_python_is_no_conflict(world: World) -> None:
    files = {"cudnn/__init__.py": '__version__ = "1.2"\n'}
    make_wheel(world.wheels, "nvidia-cudnn-frontend", "1.2", files, python=">=3.98")

    with pytest.raises(Unavailable, match=r"nvidia-cudnn-frontend==1\.2") as caught:
        resolved(world, Packages(world.wheels), nvidia_cudnn_frontend="1.2")
    assert caught.value.reason == "wheelhouse:missing-wheel"


def test_an_index_out_of_reach(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")

    with pytest.raises(Unavailable, match="could not be reached") as caught:
        resolved(world)
    assert caught.value.reason == "registry:unreachable"
