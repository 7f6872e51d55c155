"""What Slurm is asked for, and what it says of a campaign's jobs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from matrix.errors import DataError, MatrixError
from matrix.models import Model
from matrix.visible import visible

#: Minutes that a task may take where nothing else is said.
DEFAULT_TIME = "4:00:00"

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class SlurmSettings(Model):
    """How a cluster is asked: the table `[slurm]` of the settings file, and the command line."""

    partition: str | None = None
    """None is the cluster's default."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs of each task on each of its nodes; None asks for none."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of each task. A probe that takes all GPUs gets all of them; everything else runs on the
    first."""
    cpus: int | None = Field(default=None, ge=1)
    """Processors of each task; how many probes run side by side depends on it."""
    time: str = DEFAULT_TIME
    """Longest time of a task, as sbatch writes it: minutes, H:MM:SS or D-HH:MM."""
    tasks: int = Field(default=1, ge=1, le=1000)
    """How many parts the campaign is cut into; each is one task of the array."""
    setup: list[str] = Field(default_factory=list)
    """Shell lines before each task, such as `module load cuda`."""
    extra: dict[str, str | int | bool] = Field(default_factory=dict)
    """Further options of sbatch by their long names: account, qos, constraint, mem."""


def minutes(time: str) -> int:
    """A time of sbatch in whole minutes, rounded up.

    Raises:
        DataError: it is written otherwise.
    """
    found = _TIME.fullmatch(time.strip())
    if found is None:
        raise DataError(f"--slurm-time {time}: write minutes, H:MM:SS or D-HH:MM, as sbatch does.")
    days, first, second, third = found.groups()
    if days is not None:
        parts = (int(days) * 24 + int(first), int(second or 0), int(third or 0))
    elif third is not None:
        parts = (int(first), int(second), int(third))
    else:
        parts = (0, int(first), int(second or 0))
    hours, whole, seconds = parts
    total = hours * 60 + whole + (1 if seconds else 0)
    if total < 1:
        raise DataError(f"--slurm-time {time}: a task needs at least a minute.")
    return total


def with_options(settings: SlurmSettings, options: Mapping[str, Any]) -> SlurmSettings:
    """The settings file's table with what the command line says on top."""
    given = {
        name: options.get(option)
        for name, option in (
            ("partition", "slurm_partition"),
            ("gpus", "slurm_gpus"),
            ("nodes", "slurm_nodes"),
            ("cpus", "slurm_cpus"),
            ("time", "slurm_time"),
            ("tasks", "tasks"),
        )
    }
    if options.get("slurm_setup"):
        given["setup"] = list(options["slurm_setup"])
    changes = {name: value for name, value in given.items() if value is not None}
    return settings.model_copy(update=changes)


@dataclass(frozen=True)
class QueuedTask:
    """A task that waits or runs."""

    submission: str
    """Which submission it belongs to."""
    place: int
    """Its number within the submission, from 0."""
    job: str
    """Slurm's name of it: `12_1`, or `12` for a task alone."""
    running: bool


def queued(name: str) -> list[QueuedTask]:
    """The tasks of all jobs of this name that have not ended.

    Raises:
        MatrixError: Slurm does not answer.
    """
    done = _ask(
        # %F job, %K place in the array, %T state, %k comment: our submission's name
        ["squeue", "--me", "--noheader", "--array", f"--name={name}", "--format=%F|%K|%T|%k"]
    )
    tasks = []
    for line in done.splitlines():
        job, place, state, submission = line.strip().split("|", 3)
        alone = not place.isdecimal()
        tasks.append(
            QueuedTask(
                submission=submission,
                place=0 if alone else int(place),
                job=job if alone else f"{job}_{place}",
                running=state in ("RUNNING", "COMPLETING"),
            )
        )
    return tasks


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError:
        raise DataError(
            f"{command[0]} is not on the PATH. Run this where jobs are submitted from."
        ) from None
    except subprocess.TimeoutExpired:
        raise MatrixError("Slurm does not answer. The jobs go on; try again later.") from None
    if done.returncode != 0:
        raise MatrixError(f"{command[0]} failed: {visible(done.stderr.strip())}")
    return done.stdout


def submit(
    settings: SlurmSettings,
    *,
    name: str,
    submission: str,
    logs: Path,
    tasks: Sequence[Callable[[], Any]],
) -> list[str]:
    """Submit one array job and return Slurm's names of its tasks.

    Args:
        settings: what to ask for.
        name: the job's name; jobs are found again by it.
        submission: kept as the job's comment.
        logs: where each task's output goes.
        tasks: what each task does; it must be importable where it runs.

    Raises:
        DataError: submitit is not installed.
        MatrixError: Slurm refuses.
    """
    try:
        # Few machines submit jobs, so this is no requirement of the host side.
        from submitit import SlurmExecutor  # noqa: PLC0415
        from submitit.core.utils import FailedJobError, FailedSubmissionError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise DataError(
            "--executor slurm needs submitit. Start with `nox -s matrix`, which installs it, or "
            "install the dependency group `slurm`."
        ) from None
    if SlurmExecutor.affinity() < 0:
        raise DataError("srun is not on the PATH. Run this where jobs are submitted from.")
    executor = SlurmExecutor(logs, max_num_timeout=0)
    limit = minutes(settings.time)
    asked: dict[str, Any] = {
        "job_name": name,
        "comment": submission,
        "time": limit,
        # Enough to end politely; a short task must not be warned before it has begun.
        "signal_delay_s": min(90, limit * 15),
        "partition": settings.partition,
        "gpus_per_node": settings.gpus,
        "nodes": settings.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": settings.cpus,
        "setup": settings.setup or None,
        # submitit's own word would be refused where accounting knows no such key.
        "wckey": None,
        "additional_parameters": settings.extra,
        # Since 22.05 srun no longer takes this over from sbatch.
        "srun_args": [f"--cpus-per-task={settings.cpus}"] if settings.cpus else [],
    }
    try:
        executor.update_parameters(**asked)
        jobs = executor.submit_array(list(tasks))
    except (FailedJobError, FailedSubmissionError, OSError) as error:
        raise MatrixError(f"Slurm did not take the job: {visible(str(error))}") from None
    return [str(job.job_id) for job in jobs]
