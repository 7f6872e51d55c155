"""Of wheels that write the same paths, the one whose name comes last stands everywhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from matrix.building.environments import site_packages
from matrix.building.settling import settle
from matrix.building.uv import Packages, run_uv
from matrix.building.wholeness import stats
from matrix.errors import Unavailable
from tests.wheels import make_wheel
from tests.worlds import World

LIBRARIES = ("tiny-dsl-base", "tiny-dsl-cu13")
SHARED = [f"tiny_dsl/packages/cutlass/part_{number}.py" for number in range(20)]


def fill(wheels: Path, libraries: tuple[str, ...] = LIBRARIES) -> None:
    """A DSL whose libraries write the same paths with different content."""
    make_wheel(
        wheels,
        "nvidia-cutlass-dsl",
        "2.0",
        {
            "tiny_dsl/packages/cutlass/__init__.py": '__version__ = "2.0"\n',
            "tiny_dsl.pth": "tiny_dsl/packages\n",
        },
        requires=libraries,
    )
    for name in libraries:
        files = dict.fromkeys(SHARED, f'FROM = "{name}"\n')
        make_wheel(wheels, name, "2.0", files | {f"{name.replace('-', '_')}_own.py": "\n"})


def contents(folder: Path) -> set[str]:
    return {(folder / path).read_text() for path in SHARED}


def installed(folder: Path, wheels: Path, libraries: tuple[str, ...]) -> tuple[Path, Path]:
    """An environment with the libraries, the first one written last; its Python and its lock."""
    python = folder / "env" / "bin" / "python"
    lock = folder / "lock.txt"
    packages = Packages(wheels).arguments()
    assert run_uv("venv", str(folder / "env"), "--python", sys.executable).ok
    names = folder / "names.txt"
    names.write_text("nvidia-cutlass-dsl\n")
    answer = run_uv("pip", "compile", str(names), "--generate-hashes", "-o", str(lock), *packages)
    assert answer.ok, answer.errors
    for name in reversed(libraries):
        answer = run_uv("pip", "install", "--no-deps", name, "--python", str(python), *packages)
        assert answer.ok, answer.errors
    return python, lock


@pytest.mark.parametrize("libraries", [LIBRARIES, (*LIBRARIES, "tiny-dsl-cu14")])
def test_the_last_name_stands_everywhere(tmp_path: Path, libraries: tuple[str, ...]) -> None:
    wheels = tmp_path / "wheels"
    fill(wheels, libraries)
    python, lock = installed(tmp_path, wheels, libraries)
    site = site_packages(tmp_path / "env")
    # A mixture, as wheels that are written side by side leave it.
    (site / SHARED[0]).write_text(f'FROM = "{libraries[-1]}"\n')
    assert len(contents(site)) == 2

    settle(python, site, lock, Packages(wheels))

    assert contents(site) == {f'FROM = "{libraries[-1]}"\n'}
    assert all((site / f"{name.replace('-', '_')}_own.py").exists() for name in libraries)


def test_what_no_wheel_brought_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    fill(wheels)
    python, lock = installed(tmp_path, wheels, LIBRARIES)
    site = site_packages(tmp_path / "env")

    def writes_nothing(*_: str) -> object:
        (site / SHARED[3]).write_text("other")
        return run_uv("--version")

    monkeypatch.setattr("matrix.building.settling.run_uv", writes_nothing)

    with pytest.raises(Unavailable, match="overwrite each other") as caught:
        settle(python, site, lock, Packages(wheels))
    assert caught.value.reason == "install:failed"


def test_a_wheel_that_is_gone_can_not_be_written_again(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    fill(wheels)
    python, lock = installed(tmp_path, wheels, LIBRARIES)
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()

    with pytest.raises(Unavailable, match="tiny-dsl-cu13 could not be written again"):
        settle(python, site_packages(tmp_path / "env"), lock, Packages(nowhere))


def test_an_environment_is_settled_before_anything_runs_in_it(world: World) -> None:
    fill(world.wheels)

    done = world.run()

    assert done.status == 0, done.output
    (folder,) = world.rooms.environments.glob("*/")
    assert contents(site_packages(folder)) == {'FROM = "tiny-dsl-cu13"\n'}
    notes = world.record("fingerprint")["stack"]["loaded"]["nvidia-cutlass-dsl"]["notes"]
    told = notes["overwrites: tiny-dsl-base + tiny-dsl-cu13"]
    assert told.startswith("20 paths: tiny-dsl-cu13 won 20;")


def test_an_environment_from_before_there_was_settling_is_built_anew(world: World) -> None:
    fill(world.wheels)
    world.run("--probe", "fingerprint")
    (marker,) = world.rooms.environments.glob("*/*.json")
    site = site_packages(marker.parent)
    for path in SHARED:
        # Another file: the one that stands there is also the installer's own copy.
        (site / path).unlink()
        (site / path).write_text('FROM = "tiny-dsl-base"\n')
    told = json.loads(marker.read_text())
    assert told.pop("settled") is True
    marker.write_text(json.dumps(told))

    done = world.run()

    assert done.status == 0, done.output
    assert contents(site) == {'FROM = "tiny-dsl-cu13"\n'}


def leave_to_chance(world: World, winner: str) -> None:
    """One shared path has this library's content, as in environments that were never settled."""
    (path,) = world.rooms.environments.glob("*/matrix-environment.json")
    site = site_packages(path.parent)
    (site / SHARED[0]).unlink()
    (site / SHARED[0]).write_text(f'FROM = "{winner}"\n')
    marker = json.loads(path.read_text())
    path.write_text(json.dumps(marker | {"files": stats(site, marker["build"])}))


def test_runs_in_an_environment_left_to_chance_are_made_again(world: World) -> None:
    fill(world.wheels)
    world.run("--probe", "fingerprint")
    leave_to_chance(world, "tiny-dsl-base")
    first = world.run("--again")
    assert "pass" in first.output
    assert len(world.records("sum")) == 1

    plan = world.run("--plan")
    leave_to_chance(world, "tiny-dsl-cu13")
    again = world.run()
    settled = world.run("--plan")

    assert "0 to run" not in plan.output, plan.output
    assert again.status == 0
    assert len(world.records("sum")) == 2
    assert len(world.records("fingerprint")) == 3
    assert "0 to run" in settled.output, settled.output
