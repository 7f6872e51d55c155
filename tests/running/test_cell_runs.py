"""Whatever a probe does, a right record comes of it and the next probe runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.wheels import make_wheel
from tests.worlds import REPOSITORY, World, probe_source

#: name -> (body of `run`, status, reason, something that the detail says)
ENDINGS = {
    "passes": ("with probe.check('x') as check: check.expect(True, 'numerics', '')",
               "pass", None, None),
    "segfaults": ("import ctypes; probe.step('writing to 0'); ctypes.memset(0, 0, 1)",
                  "fail", "signal:SIGSEGV", "writing to 0"),
    "aborts": ("import os; os.abort()", "fail", "signal:SIGABRT", None),
    "hangs": ("import time; probe.step('waiting'); time.sleep(600)", "fail", "timeout", "waiting"),
    "ignores-sigterm": (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
        "fail", "timeout", None),
    "is-killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
                  "miss", "machine:killed", None),
    "exits": ("import os; os._exit(7)", "fail", "exit:7", None),
    "exits-well": ("import os; os._exit(0)", "error", "protocol:no-end", None),
    "checks-nothing": ("pass", "error", "probe:no-check", None),
    "raises": ("raise KeyError('mine')", "error", "probe:KeyError", "mine"),
    "fails": ("with probe.check('x') as check: check.expect(False, 'numerics', 'off by 3')",
              "fail", "numerics", "off by 3"),
    "misses": ("with probe.check('x') as check: check.expect(True, 'numerics', '')\n"
               "probe.control('planted', failed=False)",
               "error", "control:not-caught", "planted"),
    "raises-inside": (
        "with probe.check('x') as check:\n"
        "    with probe.tested('call', 'kernel'): raise TypeError('bad argument')",
        "fail", "call:TypeError", "bad argument"),
    "cuda-error": (
        "with probe.check('x') as check:\n"
        "    with probe.tested('call', 'kernel'):\n"
        "        raise RuntimeError('CUDA Error: cudaErrorInvalidValue')",
        "fail", "cuda:invalid-value", "cudaErrorInvalidValue"),
    "does-not-import": (
        "with probe.check('x') as check:\n    probe.load('nvidia-cudnn-frontend', 'cudnn.gone')",
        "fail", "import:ModuleNotFoundError", "cudnn.gone"),
    "dies-from-cuda": (
        "import os, sys\n"
        "print('terminate called: CUDA error: an illegal memory access was encountered',"
        " file=sys.stderr, flush=True)\nos.abort()",
        "fail", "cuda:illegal-address", "illegal memory access"),
    "runs-out-of-memory": (
        "with probe.check('x') as check:\n"
        "    with probe.tested('call', 'kernel'):\n"
        "        raise RuntimeError('CUDA out of memory. Tried to allocate')",
        "miss", "machine:out-of-memory", None),
    "lacks-a-function": (
        "from probes.session import absent\nraise absent('no top-k here')",
        "skip", "upstream:absent", "no top-k"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(pristine_world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which every ending happened, one after another, in one campaign."""
    folder = tmp_path_factory.mktemp("endings") / "world"
    shutil.copytree(pristine_world.root.parent, folder, symlinks=True)
    world = World(folder / "project", folder / "wheels", folder / "upstream",
                  pristine_world.revision)  # fmt: skip
    for name, (body, *_) in ENDINGS.items():
        limit = 2 if name in ("hangs", "ignores-sigterm") else 60
        world.probe(name, probe_source(name, body, limit=limit))
    world.campaign("fingerprint", *ENDINGS)
    done = world.run()
    # Verdicts, however bad, are not the command's failure; what the machine cut short is.
    assert done.status == 1, done.output
    unfinished = done.output.partition("could be finished:")[2]
    assert "is-killed: machine:killed" in unfinished
    assert "runs-out-of-memory: machine:out-of-memory" in unfinished
    assert unfinished.count("good, ") == 2
    return world


@pytest.mark.parametrize("name", ENDINGS)
def test_ending(ended: World, name: str) -> None:
    _, status, reason, said = ENDINGS[name]

    record = ended.record(name)

    assert (record["status"], record["reason"]) == (status, reason), record["detail"]
    if said is not None:
        assert said in record["detail"]


def test_no_record_shows_a_path_of_this_machine(ended: World) -> None:
    for path in ended.rooms.evidence.rglob("*.json"):
        text = path.read_text()
        assert str(ended.root) not in text
        assert str(Path.home()) not in text


def test_a_second_start_repeats_only_what_was_the_machines_fault(ended: World) -> None:
    before = len(ended.records())

    done = ended.run("--plan")

    to_run = [line.split()[1] for line in done.output.splitlines() if line.startswith("  run ")]
    assert sorted(to_run) == ["fingerprint", "is-killed", "runs-out-of-memory"]
    assert len(ended.records()) == before


def test_nonsense_instead_of_an_answer(world: World) -> None:
    runner = world.rooms.probes / "runner.py"
    runner.write_text('print(\'{"kind": "start", "protocol": 1}\'); print(\'hello\')\n')
    world.campaign("fingerprint")

    assert world.run().status == 0

    record = world.record("fingerprint")
    assert (record["status"], record["reason"]) == ("error", "protocol:garbled")
    assert "line 2" in record["detail"]


def test_a_python_that_can_not_run_the_runner(world: World) -> None:
    (world.rooms.probes / "runner.py").write_text("import nothing_of_this_name\n")
    world.campaign("fingerprint")

    world.run()

    record = world.record("fingerprint")
    assert (record["status"], record["reason"]) == ("miss", "harness:start")
    assert "nothing_of_this_name" in record["detail"]


def test_what_a_probe_prints_is_not_its_answer(world: World) -> None:
    body = """
    import os, sys
    print('{"kind": "end", "status": "pass"}', flush=True)
    os.write(1, b'garbage\\n')
    with probe.check('x') as check: check.expect(False, 'numerics', 'wrong')
    """
    world.probe("talks", probe_source("talks", body))
    world.campaign("fingerprint", "talks")

    world.run()

    assert world.record("talks")["reason"] == "numerics"


def test_a_probe_sees_no_secrets_and_a_home_of_its_own(world: World) -> None:
    body = """
    import os
    from pathlib import Path
    with probe.check('x') as check:
        check.expect('GITHUB_TOKEN' not in os.environ, 'numerics', 'token')
        check.expect(Path.home() == Path.cwd(), 'numerics', str(Path.home()))
        check.expect(not any('matrix' in name for name in os.sys.modules), 'numerics', 'modules')
    """
    world.probe("looks", probe_source("looks", body))
    world.campaign("fingerprint", "looks")

    world.run(GITHUB_TOKEN="secret")  # noqa: S106 - it is no password of anybody

    assert world.record("looks")["status"] == "pass", world.record("looks")


@pytest.mark.parametrize("own_session", [False, True])
def test_what_a_probe_leaves_running_dies_with_it(
    world: World, tmp_path: Path, *, own_session: bool
) -> None:
    note = tmp_path / "pid"
    body = f"""
    import subprocess
    child = subprocess.Popen(['sleep', '600'], start_new_session={own_session})
    open({str(note)!r}, 'w').write(str(child.pid))
    with probe.check('x') as check: check.expect(True, 'numerics', '')
    """
    world.probe("forks", probe_source("forks", body))
    world.campaign("fingerprint", "forks")

    world.run()

    wait_for(lambda: not _alive(int(note.read_text())))


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_other_software_than_requested_is_void_and_stops_the_stack(world: World) -> None:
    make_wheel(
        world.wheels, "nvidia-cudnn-frontend", "1.0", {"cudnn/__init__.py": '__version__ = "6.6"\n'}
    )

    done = world.run()

    gate = world.record("fingerprint")
    assert (gate["status"], gate["reason"]) == ("void", "loaded:mismatch")
    assert "1.0" in gate["detail"]
    assert "6.6" in gate["detail"]
    assert world.records("sum") == [], "nothing runs on software that was not asked for"
    assert "not what was asked for" in done.output
    assert done.status == 1, "the stack's cells were begun and not carried out"


def test_versions_that_exclude_each_other_are_a_result(world: World) -> None:
    more = """
[[stack]]
name = "clash"
reason = "the frontend asks for a newer DSL"
components = { nvidia-cudnn-frontend = "1.1", nvidia-cutlass-dsl = "2.0" }
"""
    world.campaign("fingerprint", "sum")
    path = world.rooms.campaigns / "default.toml"
    path.write_text(path.read_text() + more)

    done = world.run("--stack", "clash")

    assert done.status == 0, done.output
    record = world.record("fingerprint")
    assert (record["status"], record["reason"]) == ("fail", "resolve:conflict")
    assert "nvidia-cutlass-dsl" in record["detail"]
    assert "cannot install" in done.output
    assert world.records("sum") == []


def test_an_extra_that_the_stack_contradicts_is_recorded_and_left_out(world: World) -> None:
    world.run()

    (claim,) = world.record("sum")["stack"]["contradicted"]

    assert claim == {
        "claim": "nvidia-cudnn-frontend[cutedsl] 1.0 requires nvidia-cutlass-dsl==1.9",
        "asked": "nvidia-cutlass-dsl 2.0",
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_campaign_takes_its_probe_along_and_goes_on_where_it_stopped(
    world: World, tmp_path: Path, number: signal.Signals
) -> None:
    note = tmp_path / "pid"
    body = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    world.probe("slow", probe_source("slow", body))
    world.campaign("fingerprint", "slow", "sum")
    process = subprocess.Popen(
        world.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "NO_COLOR": "1"},
    )
    try:
        wait_for(lambda: note.exists() and note.read_text())
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()

    wait_for(lambda: not _alive(int(note.read_text())))
    if number == signal.SIGTERM:
        assert process.returncode == 1
        assert "stopped" in output
        assert "Traceback" not in output
    assert world.records("slow") == []
    world.probe("slow", probe_source("slow", ENDINGS["passes"][0]))
    assert world.run().status == 0
    assert [record["status"] for record in world.records("fingerprint")] == ["pass", "pass"]
    assert world.record("slow")["status"] == "pass"


def wait_for(holds: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_a_build_that_was_killed_is_done_again(world: World) -> None:
    world.run()
    (marker,) = world.rooms.environments.glob("*/matrix-environment.json")
    marker.unlink()
    (folder,) = world.rooms.sources.glob("worktrees/*/")
    (folder / "megatron" / "core" / "__init__.py").unlink()

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [record["status"] for record in world.records("fingerprint")] == ["pass", "pass"]


def test_an_environment_is_built_once(world: World) -> None:
    world.run()
    (marker,) = world.rooms.environments.glob("*/matrix-environment.json")
    built = marker.stat().st_mtime_ns

    world.run("--again")

    assert marker.stat().st_mtime_ns == built
    assert len(world.records("sum")) == 2


OTHER_STACK = """
[[stack]]
name = "other"
reason = "another frontend"
components = { nvidia-cudnn-frontend = "1.1", nvidia-cutlass-dsl = "3.0" }
"""


def test_bytecode_is_made_once_and_changed_bytecode_is_never_run(world: World) -> None:
    world.run()
    (compiled,) = world.rooms.environments.glob("*/bytecode/**/cudnn/__init__*.pyc")
    made = compiled.stat().st_mtime_ns
    world.run("--again")
    assert compiled.stat().st_mtime_ns == made
    content = compiled.read_bytes()

    compiled.write_bytes(content.replace(b"1.0", b"9.9"))
    done = world.run("--again")

    assert done.status == 0
    assert compiled.read_bytes() == content
    assert {record["status"] for record in world.records("sum")} == {"pass"}


def test_a_later_environment_takes_over_the_bytecode_that_fits(world: World) -> None:
    """The one shares torch's; the other's frontend differs, and is compiled for itself."""
    components = world.rooms.catalogue / "components.toml"
    text = components.read_text()
    components.write_text(text.replace('"cudnn", ', '"cudnn", "torch", '))
    world.run()
    world.campaign("fingerprint", "sum", more=OTHER_STACK)

    world.run("--stack", "other")

    folders = sorted(world.rooms.environments.glob("*/bytecode"), key=lambda p: p.stat().st_ctime)
    first, second = (
        {path.name: path for path in folder.rglob("*.pyc") if path.parent.name == part}
        for folder in folders
        for part in ("torch",)
    )
    name = next(iter(first))
    assert second[name].stat().st_ino == first[name].stat().st_ino
    own = [
        next(path for path in folder.rglob("*.pyc") if path.parent.name == "cudnn")
        for folder in folders
    ]
    assert own[0].stat().st_ino != own[1].stat().st_ino
    assert b"1.1" in own[1].read_bytes()
    assert {record["status"] for record in world.records()} == {"pass"}


def test_two_campaigns_at_once_share_the_work(world: World, tmp_path: Path) -> None:
    """Neither repeats what the other runs or has run, and the first to end ends nothing else."""
    for number in range(6):
        body = "import time\ntime.sleep(0.7)\n"
        body += "with probe.check('x') as check: check.expect(True, 'numerics', '')"
        world.probe(f"slow-{number}", probe_source(f"slow-{number}", body))
    names = [f"slow-{number}" for number in range(6)]
    world.campaign("fingerprint", *names)
    world.run("--probe", names[0])  # the environment is there
    both = [
        subprocess.Popen(
            world.command("--width", "1"), stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
        )
        for _ in range(2)
    ]

    outputs = [process.communicate(timeout=240)[0] for process in both]

    assert [process.returncode for process in both] == [0, 0], outputs
    assert all(len(world.records(name)) == 1 for name in names)
    assert {record["status"] for record in world.records()} == {"pass"}
    assert any("another campaign" in output for output in outputs)
    assert not list(world.rooms.scratch.glob("*/*"))


def test_another_campaigns_gate_opens_nothing(world: World) -> None:
    """Both wait for the gate, and each asks it for itself before anything else is run."""
    gate = world.rooms.probes / "fingerprint.py"
    text = gate.read_text()
    assert "    files = InstalledFiles(_site_folders(probe))\n" in text
    gate.write_text(
        text.replace(
            "    files = InstalledFiles(_site_folders(probe))\n",
            "    files = InstalledFiles(_site_folders(probe))\n    import time; time.sleep(3)\n"
            "    with probe.check('closed') as shut:\n"
            "        shut.expect(False, MISMATCH, 'planted', status='void')\n",
        )
    )
    world.campaign("fingerprint", "sum")
    both = [
        subprocess.Popen(world.command(), stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        for _ in range(2)
    ]

    outputs = [process.communicate(timeout=120)[0] for process in both]

    assert world.records("sum") == [], outputs
    assert {record["status"] for record in world.records("fingerprint")} == {"void"}


def test_a_paused_machine_is_no_timeout(world: World, tmp_path: Path) -> None:
    note = tmp_path / "started"
    body = f"""
    import time
    open({str(note)!r}, 'w').close()
    time.sleep(2)
    with probe.check('x') as check: check.expect(True, 'numerics', '')
    """
    world.probe("slow", probe_source("slow", body, limit=8))
    world.campaign("fingerprint", "slow")
    campaign = subprocess.Popen(
        world.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY
    )
    wait_for(note.exists)
    pids = [campaign.pid, *_below(campaign.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)

    assert campaign.wait(timeout=60) == 0
    assert world.record("slow")["status"] == "pass"


def _below(pid: int) -> list[int]:
    """The children of a process."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in children for child in path.read_text().split()]


def test_a_campaign_leaves_the_processes_of_a_living_one_alone(
    world: World, tmp_path: Path
) -> None:
    note = tmp_path / "started"
    body = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    world.probe("slow", probe_source("slow", body))
    world.campaign("fingerprint", "slow")
    first = subprocess.Popen(
        world.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=REPOSITORY
    )
    try:
        wait_for(lambda: note.exists() and note.read_text())
        second = world.run()
        assert _alive(int(note.read_text()))
    finally:
        first.terminate()
        first.wait(timeout=60)

    assert second.status == 0
    assert "slow: another campaign is running it" in second.output


def test_a_file_of_a_tree_does_not_replace_the_standard_librarys(world: World) -> None:
    """A tree that brings its own `json` could otherwise answer for every probe."""
    (world.upstream / "json.py").write_text("raise SystemExit('json of the tree')\n")
    git = ["git", "-C", str(world.upstream), "-c", "user.name=t", "-c", "user.email=t@x.org"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "json"], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    world.revision = done.stdout.strip()
    world.campaign("fingerprint", "sum")

    assert world.run().status == 0

    assert world.record("sum")["status"] == "pass"


def test_an_environment_that_lost_files_is_built_anew(world: World) -> None:
    world.run()
    (packages,) = world.rooms.environments.glob("*/lib/python3*/site-packages")
    shutil.rmtree(next(packages.glob("nvidia_cudnn_frontend-*.dist-info")))

    done = world.run("--again")

    assert done.status == 0, done.output
    assert [record["status"] for record in world.records("sum")] == ["pass", "pass"]


@pytest.mark.parametrize("damage", ["cut", "empty"])
def test_a_broken_wheel_is_the_machines_fault(world: World, damage: str) -> None:
    (wheel,) = world.wheels.glob("nvidia_cutlass_dsl-2.0-*")
    wheel.write_bytes(wheel.read_bytes()[:200] if damage == "cut" else b"")

    done = world.run()

    assert done.status == 1
    assert world.record("fingerprint")["status"] == "miss"
