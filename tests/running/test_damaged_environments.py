"""Environments whose files somebody changed: noticed by the gate, and built anew."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheels import make_wheel
from tests.worlds import World

CHANGED = '__version__ = "2.0"\nchanged = True\n'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of the installer that no other test uses."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


def installed(world: World) -> Path:
    (found,) = world.rooms.environments.glob("*/lib/python3*/site-packages/tiny_dsl/**/__init__.py")
    return found


def replace(path: Path) -> None:
    path.unlink()
    path.write_text(CHANGED)


def write_into(path: Path) -> None:
    """As some editors do: the installer's own copy, which is the same file, changes too."""
    path.write_text(CHANGED)


@pytest.mark.parametrize("change", [replace, write_into])
def test_a_changed_file_is_noticed_and_the_environment_built_anew(
    world: World, change: Callable[[Path], None]
) -> None:
    assert world.run().status == 0
    change(installed(world))

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "void", "pass"]
    assert len(world.records("sum")) == 2
    assert "files of nvidia-cutlass-dsl were changed after they were installed" in done.output
    assert "changed" not in installed(world).read_text()
    assert not list(world.rooms.environments.glob("*.damaged"))


def test_a_new_environment_from_a_changed_copy_of_the_installer_is_mended_too(
    world: World,
) -> None:
    assert world.run().status == 0
    write_into(installed(world))
    shutil.rmtree(world.rooms.environments)

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "void", "pass"]
    assert "changed" not in installed(world).read_text()


def test_a_wheel_that_is_not_what_it_says_is_not_tested(world: World) -> None:
    name = "tiny_dsl/packages/cutlass/__init__.py"
    files = {name: '__version__ = "2.0"\n', "tiny_dsl.pth": "tiny_dsl/packages\n"}
    wheel = make_wheel(world.wheels, "nvidia-cutlass-dsl", "2.0", files)
    with zipfile.ZipFile(wheel) as archive:
        contents = {each: archive.read(each) for each in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for each, content in (contents | {name: CHANGED.encode()}).items():
            archive.writestr(each, content)

    for done in (world.run(), world.run()):
        assert done.status == 1, done.output
        assert "again not what the wheel brought" in done.output
    assert [(gate["status"], gate["reason"]) for gate in world.records("fingerprint")] == [
        ("void", "loaded:mismatch"),
        ("miss", "install:failed"),
    ]
    assert world.records("sum") == []
