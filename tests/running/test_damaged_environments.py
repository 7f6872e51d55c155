"""Environments whose files somebody changed: noticed by the gate, and built anew."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheels import make_wheel
from tests.worlds import World, probe_source

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


def break_it(path: Path) -> None:
    path.unlink()
    path.write_text("raise RuntimeError('broken by hand')\n")


def remove(path: Path) -> None:
    path.unlink()


def end_python(path: Path) -> None:
    site = next(parent for parent in path.parents if parent.name == "site-packages")
    (site / "zz.pth").write_text("import os; raise SystemExit\n")


def trip(path: Path) -> None:
    site = next(parent for parent in path.parents if parent.name == "site-packages")
    (site / "sitecustomize.py").write_text("import os\nos._exit(3)\n")


@pytest.mark.parametrize("change", [replace, write_into, break_it, remove, end_python, trip])
def test_a_changed_environment_is_built_anew_before_anything_runs(
    world: World, change: Callable[[Path], None]
) -> None:
    assert world.run().status == 0
    change(installed(world))

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "pass"]
    assert [sum_["status"] for sum_ in world.records("sum")] == ["pass", "pass"]
    assert "changed" not in installed(world).read_text()
    assert not list(world.rooms.environments.glob("*.damaged"))


def test_an_environment_that_nobody_changed_is_used_again(world: World) -> None:
    assert world.run().status == 0
    (before,) = world.rooms.environments.glob("*/matrix-environment.json")
    made = before.stat().st_mtime_ns

    assert world.run("--again").status == 0

    assert before.stat().st_mtime_ns == made


@pytest.mark.parametrize("ends", ["raise RuntimeError('broken')", "pass"])
def test_a_run_that_changes_its_environment_is_void_whatever_it_says(
    world: World, ends: str
) -> None:
    body = f"""
    import pathlib
    import cutlass
    with probe.check("changes what it runs on"):
        path = pathlib.Path(cutlass.__file__)
        path.unlink()
        path.write_text("changed = True")
        {ends}
    """
    needs = "['torch', 'nvidia-cutlass-dsl']"
    world.probe("hostile", probe_source("hostile", body, needs=needs))
    world.campaign("fingerprint", "hostile")

    done = world.run()

    assert done.status == 1, done.output
    (record,) = world.records("hostile")
    assert (record["status"], record["reason"]) == ("void", "loaded:mismatch")
    assert "files of the environment were changed" in record["detail"]
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass"]


@pytest.mark.parametrize("content", [CHANGED, "raise RuntimeError('broken by hand')\n"])
def test_a_new_environment_from_a_changed_copy_of_the_installer_is_mended_too(
    world: World, content: str
) -> None:
    assert world.run().status == 0
    installed(world).write_text(content)
    shutil.rmtree(world.rooms.environments)

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "void", "pass"]
    assert "the environment is built anew" in done.output
    assert installed(world).read_text() not in (CHANGED, content)


def test_a_failure_in_an_environment_made_from_a_changed_copy_is_void(world: World) -> None:
    """The gate imports components alone; what else is installed may be what fails."""
    make_wheel(world.wheels, "tiny-other", "1.0", {"tiny_other.py": "one = 1\n"})
    make_wheel(
        world.wheels,
        "nvidia-cutlass-dsl",
        "2.0",
        {
            "tiny_dsl/packages/cutlass/__init__.py": '__version__ = "2.0"\n',
            "tiny_dsl.pth": "tiny_dsl/packages\n",
        },
        requires=("tiny-other",),
    )
    body = """
    import tiny_other
    with probe.check("one") as check:
        check.expect(tiny_other.one == 1, "numerics", "not one")
    """
    world.probe("other", probe_source("other", body))
    world.campaign("fingerprint", "other")
    assert world.run().status == 0
    (other,) = world.rooms.environments.glob("*/lib/python3*/site-packages/tiny_other.py")
    other.write_text("one = 2\n")
    shutil.rmtree(world.rooms.environments)

    first, second = world.run("--again"), world.run("--again")

    assert (first.status, second.status) == (1, 0), first.output + second.output
    told = [(run["status"], run["reason"]) for run in world.records("other")]
    assert told == [("pass", None), ("void", "loaded:mismatch"), ("pass", None)]


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
