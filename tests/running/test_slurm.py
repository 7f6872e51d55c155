"""A campaign on a cluster: a real Slurm of one node, where its programs are installed."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from matrix.commands.cluster_options import cluster_options, task_arguments
from matrix.components import load_components
from matrix.errors import DataError, MatrixError
from matrix.planning.campaigns import load_campaign
from matrix.planning.sharding import asked_id, shard_of
from matrix.probe_specs import load_probe_specs
from matrix.reporting.events import CampaignEnded, read_event
from matrix.rooms import Rooms
from matrix.running.slurm import SlurmCampaign
from matrix.running.slurm_jobs import QueuedTask, SlurmSettings, minutes, with_options
from matrix.settings import load_settings
from tests.clusters import Cluster, cluster_or_skip
from tests.running.test_cell_runs import wait_for as wait_briefly_for
from tests.worlds import REPOSITORY, World, probe_source

#: Environments are built, and machines that run tests are busy.
wait_for = functools.partial(wait_briefly_for, seconds=200)

PASSES = "with probe.check('x') as check: check.expect(True, 'numerics', '')"


@pytest.mark.parametrize(
    ("time", "expected"),
    [("90", 90), ("2:30", 3), ("1:30:00", 90), ("1-00:00:00", 1440), ("1-2", 1560), ("0:01", 1)],
)
def test_times_are_read_as_sbatch_reads_them(time: str, expected: int) -> None:
    assert minutes(time) == expected


@pytest.mark.parametrize("time", ["", "0", "soon", "1:2:3:4", "-5", "1h"])
def test_other_times_are_refused(time: str) -> None:
    with pytest.raises(DataError, match="--slurm-time"):
        minutes(time)


def test_the_command_line_goes_before_the_settings_file(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path)
    rooms.settings.write_text(
        "[slurm]\npartition = 'h200'\ngpus = 2\ntasks = 4\nsetup = ['module load cuda']\n"
        "[slurm.extra]\naccount = 'lab'\n"
    )

    settings = with_options(load_settings(rooms).slurm, {"slurm_gpus": 8, "slurm_setup": ()})

    assert settings == SlurmSettings(
        partition="h200", gpus=8, tasks=4, setup=["module load cuda"], extra={"account": "lab"}
    )
    rooms.settings.write_text("[slurm]\ntasks = 0\n")
    with pytest.raises(DataError, match=r"slurm\.tasks"):
        load_settings(rooms)


def test_tasks_are_started_with_what_the_person_asked_for(tmp_path: Path) -> None:
    given: list[str] = []

    @click.command()
    @click.option("--campaign", default="default")
    @click.option("--stack", "stacks", multiple=True)
    @click.option("--again", is_flag=True)
    @click.option("--wheelhouse", type=click.Path(path_type=Path))
    @click.option("--json", "as_json", is_flag=True)
    @cluster_options
    @click.pass_context
    def command(context: click.Context, /, **_: Any) -> None:
        given.extend(task_arguments(context))

    line = ["--stack", "a b", "--stack", "--odd", "--again", "--json", "--executor", "slurm"]
    line += ["--tasks", "3", "--slurm-setup", "x", "--no-wait", "--wheelhouse", "w"]
    command.main(line, standalone_mode=False)

    assert given == [
        "--stack=a b",
        "--stack=--odd",
        "--again",
        f"--wheelhouse={Path('w').resolve()}",
    ]


def test_a_job_that_the_folder_does_not_know_is_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = QueuedTask(submission="lost", place=0, job="7", running=True)
    monkeypatch.setattr("matrix.running.slurm.queued", lambda _: [stranger])

    with pytest.raises(MatrixError, match="scancel 7"):
        SlurmCampaign(Rooms(tmp_path), SlurmSettings(), []).submit()


def test_other_options_and_files_are_another_campaign(tmp_path: Path) -> None:
    rooms = Rooms(tmp_path)
    keys = {
        SlurmCampaign(rooms, SlurmSettings(tasks=tasks), arguments, identity).key
        for tasks in (1, 2)
        for arguments in ([], ["--again"])
        for identity in ([], ["a"])
    }
    assert len(keys) == 8
    same = SlurmCampaign(rooms, SlurmSettings(partition="other"), [])
    assert same.key in keys, "where it runs makes no other campaign of it"


def test_without_slurm_it_is_said_what_is_missing(world: World, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    git = shutil.which("git")
    assert git is not None
    (programs / "git").symlink_to(git)

    done = world.run("--executor", "slurm", PATH=str(programs))

    assert done.status == 2
    assert "squeue is not on the PATH" in done.output


def test_a_report_that_a_cluster_can_not_give_is_refused(world: World, tmp_path: Path) -> None:
    done = world.run("--executor", "slurm", "--junit", str(tmp_path / "x.xml"))

    assert done.status == 2
    assert "use it without --executor slurm" in done.output


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with cluster_or_skip(nodes=1) as running:
        yield running


def slow(name: str, notes: Path, go: Path) -> str:
    """A probe that says that it runs, and goes on when it may."""
    return probe_source(
        name,
        f"""
        import os, time
        open({str(notes)!r} + '/' + str(os.getpid()), 'w').close()
        while not os.path.exists({str(go)!r}): time.sleep(0.05)
        {PASSES}
        """,
        limit=200,
    )


def told(world: World) -> set[tuple[Any, ...]]:
    """What the evidence says, without what differs between any two runs."""
    return {
        (
            record["stack"]["id"],
            record["stack"]["lock"],
            record["probe"]["id"],
            record["probe"]["revision"],
            record["machine"]["name"],
            record["status"],
            record["reason"],
        )
        for record in world.records()
    }


def start(world: World, cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        world.command("--executor", "slurm", "--slurm-time", "20", *arguments),
        cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1", **cluster.environment},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert "Traceback" not in output, output
    return process.returncode, output


def until(process: subprocess.Popen[str], words: str) -> str:
    """What a process says up to the line that has these words."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(seen)


def jobs(cluster: Cluster) -> list[str]:
    return cluster.ask("squeue", "--noheader", "--array", "--format=%i").split()


MORE_STACKS = """
[[stack]]
name = "newer"
reason = "two more, so that there is something to share out"
components = { nvidia-cudnn-frontend = "1.1", nvidia-cutlass-dsl = "3.0" }

[[stack]]
name = "mixed"
reason = "goes against a published requirement"
components = { nvidia-cudnn-frontend = "1.0", nvidia-cutlass-dsl = "3.0" }
"""


def parts_with_stacks(world: World) -> tuple[int, int]:
    """A number of parts of which several have stacks, and how many those are."""
    campaign = load_campaign(
        world.rooms, "default", load_components(world.rooms), load_probe_specs(world.rooms)
    )
    for parts in range(2, 20):
        used = {shard_of(asked_id(campaign, entry), parts) for entry in campaign.stacks}
        if len(used) > 1:
            return parts, len(used)
    raise AssertionError("hardly possible")


def test_a_cancelled_task_is_submitted_again_and_the_evidence_is_that_of_a_local_run(
    world: World, tmp_path: Path, cluster: Cluster
) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    notes.mkdir()
    world.probe("slow", slow("slow", notes, go))
    world.probe("bad", probe_source("bad", PASSES.replace("True", "False")))
    world.campaign("fingerprint", "sum", "bad", "slow", more=MORE_STACKS)
    shutil.copytree(world.root.parent, tmp_path / "local", symlinks=True)
    local = World(tmp_path / "local" / "project", world.wheels, world.upstream, world.revision)
    number, busy = parts_with_stacks(world)
    parts = ["--tasks", str(number)]

    status, output = finish(start(world, cluster, *parts, "--no-wait"))
    assert (status, f"Submitted {number} tasks" in output) == (0, True), output
    wait_for(lambda: len(list(notes.iterdir())) >= busy and len(jobs(cluster)) == busy)
    before = jobs(cluster)
    status, output = finish(start(world, cluster, *parts, "--no-wait"))
    assert (status, f"{busy} tasks of this campaign are in the queue" in output) == (0, True)
    assert jobs(cluster) == before, "nothing is submitted twice"

    cluster.ask("scancel", before[0])
    wait_for(lambda: jobs(cluster) == before[1:])
    follower = start(world, cluster, *parts)
    wait_for(lambda: len(jobs(cluster)) == busy)
    follower.send_signal(signal.SIGTERM)
    status, output = finish(follower)
    assert status == 1
    assert "stopped waiting; the tasks go on" in output
    assert "Submitted 1 tasks" in output
    follower = start(world, cluster, *parts)
    # What ended before it follows is in the table, and not told again.
    seen = until(follower, f"{busy} tasks of this campaign are in the queue")
    go.touch()
    status, output = finish(follower)

    assert status == 0, seen + output
    assert "✔ pass  part" in output
    assert "Combinations" in output
    assert jobs(cluster) == []
    done = local.run()
    assert done.status == 0, done.output
    assert told(world) == told(local)
    assert len(world.records("slow")) == 3, "nothing ran twice"
    status, output = finish(start(world, cluster, *parts))
    assert (status, "nothing is submitted" in output) == (0, True)


def running(notes: Path) -> list[str]:
    """Probes that said that they run, and do."""
    return [note.name for note in notes.iterdir() if Path(f"/proc/{note.name}").exists()]


def test_what_is_left_of_a_cancelled_task_is_named_and_a_preempted_one_goes_on(
    world: World, tmp_path: Path, cluster: Cluster
) -> None:
    notes, go = tmp_path / "notes", tmp_path / "go"
    notes.mkdir()
    world.probe("slow", slow("slow", notes, go))
    world.campaign("fingerprint", "slow")
    follower = start(world, cluster, "--json")
    wait_for(lambda: len(list(notes.iterdir())) == 1)

    cluster.ask("scancel", *jobs(cluster))
    status, output = finish(follower)

    assert status == 1
    assert "part 1 of 1 was ended before it was done" in output
    assert ".matrix/slurm/" in output
    assert world.records("slow") == []
    wait_for(lambda: not running(notes))
    events = [read_event(line) for line in output.splitlines() if line.startswith("{")]
    *theirs, ours = [event for event in events if isinstance(event, CampaignEnded)]
    assert all((event.part, event.interrupted) == (1, True) for event in theirs)
    assert (ours.part, ours.interrupted, len(ours.unfinished)) == (None, False, 1)

    follower = start(world, cluster)
    wait_for(lambda: len(list(notes.iterdir())) == 2)
    (job,) = jobs(cluster)
    cluster.ask("scancel", "--signal=USR2", job)
    wait_for(lambda: not running(notes))
    wait_for(lambda: "BeginTime" in cluster.ask("squeue", "--noheader", "--format=%r"))
    assert world.records("slow") == []
    go.touch()
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    status, output = finish(follower)

    assert (status, world.record("slow")["status"]) == (0, "pass"), output


def test_what_slurm_refuses_is_said_and_leaves_nothing_behind(
    world: World, cluster: Cluster
) -> None:
    status, output = finish(start(world, cluster, "--slurm-partition", "nowhere"))

    assert status == 1
    assert "Slurm did not take the job" in output
    assert list((world.rooms.cache / "slurm").glob("*/*.jsonl")) == []
    status, output = finish(start(world, cluster))
    assert status == 0, output
