"""Environments whose files somebody changed: noticed before and after each run, and made anew."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from matrix.building.environments import site_packages
from matrix.building.wholeness import stats
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
    assert "files of the environment were changed while it ran" in record["detail"]
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass"]


@pytest.mark.parametrize("width", ["1", "4"])
def test_who_changes_an_environment_spoils_no_other_run(world: World, width: str) -> None:
    hostile = """
    import pathlib, time
    import torch
    time.sleep(1.5)
    with probe.check("leaves something that Python runs at its start"):
        (pathlib.Path(torch.__file__).parents[1] / "late.pth").write_text("# nothing")
    """
    harmless = """
    import time
    time.sleep(1)
    with probe.check("one") as check:
        check.expect(True, "numerics", "no")
    """
    others = ["one", "two", "three"]
    world.probe("hostile", probe_source("hostile", hostile))
    for name in others:
        world.probe(name, probe_source(name, harmless))
    world.campaign("fingerprint", "hostile", *others)

    first, second = world.run("--width", width), world.run("--width", width)

    assert (first.status, second.status) == (1, 1), first.output + second.output
    assert [run["status"] for run in world.records("hostile")] == ["void", "void"]
    for name in others:
        assert world.record(name)["status"] == "pass"


def late_import(world: World) -> None:
    """A probe that imports a component again and again, for some seconds."""
    body = """
    import importlib, sys, time
    import cutlass
    end = time.time() + 5
    failed = ""
    while time.time() < end and not failed:
        time.sleep(0.001)
        sys.modules.pop("cutlass", None)
        importlib.invalidate_caches()
        try:
            import cutlass
        except ImportError as error:
            failed = str(error)
    with probe.check("imports at any time") as check:
        check.expect(not failed, "numerics", failed)
    """
    world.probe("late", probe_source("late", body, needs="['torch', 'nvidia-cutlass-dsl']"))
    world.campaign("fingerprint", "late")


@pytest.mark.parametrize("spoilt", ["bytecode", "python", "marker"])
def test_an_environment_is_not_made_anew_under_a_run(world: World, spoilt: str) -> None:
    late_import(world)
    campaign = world.rooms.campaigns / "default.toml"
    second = campaign.read_text().replace('"late"', '"sum"')
    (world.rooms.campaigns / "second.toml").write_text(second)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(world.run)
        while not list(world.rooms.scratch.glob("*/*-late")):
            time.sleep(0.05)
        time.sleep(1)
        (marker,) = world.rooms.environments.glob("*/matrix-environment.json")
        before = json.loads(marker.read_text())["build"]
        if spoilt == "bytecode":
            (marker.parent / "bytecode" / "x.pyc").write_bytes(b"x")
        elif spoilt == "python":
            (marker.parent / "bin" / "python").unlink()
        else:
            marker.write_text("{}")
        done = world.run("--campaign", "second")

    assert json.loads(marker.read_text())["build"] != before
    assert done.status == 0, done.output
    assert world.record("sum")["status"] == "pass"
    # Without its marker an environment is not what anybody knows; then nothing is said of the run.
    late = world.record("late")
    assert late["status"] == ("void" if spoilt == "marker" else "pass"), late
    assert first.result().status == (1 if spoilt == "marker" else 0)


def test_two_campaigns_mend_one_environment(world: World) -> None:
    late_import(world)
    assert world.run().status == 0
    write_into(installed(world))
    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(lambda _: world.run("--again"), range(2)))

    assert [done.status for done in ran] == [0, 0], ran[0].output + ran[1].output
    assert {run["status"] for run in world.records("fingerprint")} == {"pass"}
    assert {run["status"] for run in world.records("late")} == {"pass"}


@pytest.mark.parametrize("content", [CHANGED, "raise RuntimeError('broken by hand')\n"])
def test_a_changed_copy_of_the_installer_is_not_used(world: World, content: str) -> None:
    assert world.run().status == 0
    installed(world).write_text(content)
    shutil.rmtree(world.rooms.environments)

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "pass"]
    assert "copies of nvidia-cutlass-dsl were changed; fresh ones are taken" in done.output
    assert installed(world).read_text() not in (CHANGED, content)
    assert not list(world.rooms.environments.glob("*/fresh"))


def test_neither_is_one_of_what_is_no_component(world: World) -> None:
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

    assert world.run("--again").status == 0
    assert [run["status"] for run in world.records("other")] == ["pass", "pass"]


def test_an_edit_that_keeps_size_and_time_is_noticed_by_the_gate(world: World) -> None:
    assert world.run().status == 0
    path = installed(world)
    facts = path.stat()
    path.write_text(path.read_text().replace('"2.0"', '"2.1"'))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [gate["status"] for gate in world.records("fingerprint")] == ["pass", "void", "pass"]
    assert "the environment is built anew" in done.output
    assert [sum_["status"] for sum_ in world.records("sum")] == ["pass", "pass"]


@pytest.mark.parametrize("content", [b"\xff\xfe,sha256=x,1\n", b""])
def test_a_list_of_files_that_nobody_can_read_is_made_anew(world: World, content: bytes) -> None:
    assert world.run().status == 0
    (listed,) = world.rooms.environments.glob(
        "*/lib/python3*/site-packages/nvidia_cutlass_*/RECORD"
    )
    listed.unlink()
    listed.write_bytes(content)

    assert world.run("--again").status == 0
    (marker,) = world.rooms.environments.glob("*/matrix-environment.json")
    made = marker.stat().st_mtime_ns
    assert world.run("--again").status == 0
    assert marker.stat().st_mtime_ns == made


def test_a_moved_environment_is_whole(world: World) -> None:
    assert world.run().status == 0
    (marker,) = world.rooms.environments.glob("*/matrix-environment.json")
    moved = world.root.parent / "moved"
    shutil.copytree(marker.parent, moved, symlinks=True)

    known = json.loads(marker.read_text())

    assert stats(site_packages(moved), known["build"]) == known["files"]


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
        assert "are not what their wheel lists, in a fresh copy too" in done.output
    gate = world.record("fingerprint")
    assert (gate["status"], gate["reason"]) == ("miss", "install:failed")
    assert world.records("sum") == []
