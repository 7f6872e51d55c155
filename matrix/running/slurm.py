"""A campaign as one array job of a Slurm cluster: submitted once, followed, gone on with.

Tasks work in this project folder, which every node must see. A task is a campaign of its own on one
part of the cells. Evidence needs no collecting: its files have names that occur once and are
written whole, and an environment that one task built serves the others.

A task's events (`matrix/reporting/events.py`) are all that is known of it: no accounting of
Slurm's is needed. A part is done when a task of it wrote its last event and left nothing
unfinished.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from filelock import FileLock
from pydantic import ValidationError

from matrix.errors import MatrixError
from matrix.reporting.events import CampaignBegan, CampaignEnded, Event, read_event
from matrix.rooms import Rooms
from matrix.running.slurm_jobs import QueuedTask, SlurmSettings, queued, submit

#: Seconds between two looks at the queue, at first and after a while.
_FIRST_LOOK, _LAST_LOOK = 1.0, 15.0
#: Seconds that a shared folder may take to show what a task on another node wrote last.
_SETTLE = 10.0


class Follower(Protocol):
    """Who is told what tasks do."""

    def follow(self, part: int, event: Event) -> None:
        """The task of a part wrote an event."""

    def doing(self, text: str) -> None:
        """What the queue looks like."""


def run_part(command: list[str], events: str) -> int:
    """What a task does on its node: a campaign on its part, its events kept in a file.

    Where a task has several nodes, this runs on each; the first does everything, and probes that
    take all GPUs start what they need on the others.

    Args:
        command: the campaign's command.
        events: the file; its folder exists.
    """
    if int(os.environ.get("SLURM_PROCID", "0")) > 0:
        return 0
    # Slurm's warning before a time limit or a preemption goes to every process of a task. submitit
    # ends this one for it, which ends the campaign politely; without the trap that would just die
    # of it. After a preemption the task is queued anew and goes on from what is kept.
    trapped = ["sh", "-c", "trap '' USR2; exec \"$@\"", "sh", *command]
    with Path(events).open("ab") as out:
        process = subprocess.Popen(trapped, stdout=out)
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=60)


@dataclass
class _Part:
    """One part of the campaign, and the files that its tasks wrote."""

    number: int
    """From 1."""
    files: list[Path] = field(default_factory=list)
    """One for each submission that had this part, oldest first."""
    read: dict[Path, int] = field(default_factory=dict)
    """How much of each file was told, in bytes."""
    end: CampaignEnded | None = None
    """The last event of the newest task, where there is one."""

    @property
    def done(self) -> bool:
        return self.end is not None and not self.end.interrupted and not self.end.unfinished


class SlurmCampaign:
    """One campaign on a cluster.

    Args:
        rooms: the project folder, seen by every node.
        settings: what to ask Slurm for.
        arguments: the campaign's options, without those about Slurm.
        identity: whatever else makes two campaigns different: files, revisions.
    """

    def __init__(
        self,
        rooms: Rooms,
        settings: SlurmSettings,
        arguments: Sequence[str],
        identity: Sequence[str] = (),
    ) -> None:
        self._rooms = rooms
        self._settings = settings
        self._arguments = list(arguments)
        content = [str(rooms.root), str(settings.tasks), *arguments, *identity]
        self.key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        self.name = f"matrix-{self.key}"
        self.folder = rooms.cache / "slurm" / self.key
        self._parts = [_Part(number + 1) for number in range(settings.tasks)]

    def submit(self) -> tuple[int, list[QueuedTask]]:
        """Submit the parts that are neither done nor in the queue.

        Returns:
            How many were submitted, and the tasks that were in the queue already.

        Raises:
            DataError: this is no place to submit from, or a value has the wrong form.
            MatrixError: Slurm refuses or does not answer.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / "submit.lock", timeout=120)
            with lock:
                self._find_files()
                self._read(lambda *_: None)
                waiting = queued(self.name)
                busy = {self._part_of(task) for task in waiting}
                todo = [
                    part.number for part in self._parts if not part.done and part.number not in busy
                ]
                for part in self._parts:
                    if part.number in busy:
                        part.read, part.end = {}, None  # what it did so far is told again
                if todo:
                    self._submit(todo)
        except OSError as error:
            raise MatrixError(
                f"{self._rooms.shown(self.folder)} can't be written: {error.strerror}."
            ) from None
        return len(todo), waiting

    def _submit(self, parts: list[int]) -> None:
        submission = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
        # Known before Slurm knows it: a command that is killed now finds its job again later.
        (self.folder / f"{submission}.json").write_text(json.dumps(parts), encoding="utf-8")
        tasks: list[Callable[[], int]] = []
        for number in parts:
            path = self._events(submission, number)
            path.touch()
            command = [
                sys.executable, "-m", "matrix", "--root", str(self._rooms.root), "run", "--json",
                f"--shard={number}/{self._settings.tasks}", *self._arguments,
            ]  # fmt: skip
            tasks.append(functools.partial(run_part, command, str(path)))
        try:
            submit(
                self._settings,
                name=self.name,
                submission=submission,
                logs=self.folder / "logs",
                tasks=tasks,
            )
        except BaseException:
            for number in parts:
                self._events(submission, number).unlink(missing_ok=True)
            (self.folder / f"{submission}.json").unlink()
            raise
        self._find_files()

    def _events(self, submission: str, number: int) -> Path:
        return self.folder / f"{submission}.part-{number}.jsonl"

    def _part_of(self, task: QueuedTask) -> int:
        try:
            text = (self.folder / f"{task.submission}.json").read_text(encoding="utf-8")
            return int(json.loads(text)[task.place])
        except (OSError, ValueError, LookupError, TypeError):
            raise MatrixError(
                f"job {task.job} belongs to this campaign, but {self._rooms.shown(self.folder)} "
                f"does not know it. End it with `scancel {task.job}`, or wait until it has ended."
            ) from None

    def _find_files(self) -> None:
        for part in self._parts:
            found = sorted(self.folder.glob(f"*.part-{part.number}.jsonl"))
            if found != part.files:
                part.files, part.end = found, None

    def _read(self, told: Callable[[int, Event], None]) -> None:
        """Tell what is new in the files of the newest tasks."""
        for part in self._parts:
            for path in part.files[-1:]:
                with path.open("rb") as file:
                    file.seek(part.read.get(path, 0))
                    fresh = file.read()
                whole = fresh[: fresh.rfind(b"\n") + 1]
                part.read[path] = part.read.get(path, 0) + len(whole)
                for line in whole.decode("ascii", errors="replace").splitlines():
                    try:
                        event = read_event(line)
                    except ValidationError:
                        continue  # half a line of a task that was killed
                    if isinstance(event, CampaignBegan | CampaignEnded):
                        # Slurm may start a task anew after it was preempted.
                        part.end = event if isinstance(event, CampaignEnded) else None
                    told(part.number, event)

    def wait(self, follower: Follower) -> list[str]:
        """Follow all tasks until none is left in the queue.

        Returns:
            What could not be finished, one sentence each.

        Raises:
            MatrixError: Slurm stopped answering; the tasks go on.
        """
        pause = _FIRST_LOOK
        while True:
            tasks = queued(self.name)
            self._read(follower.follow)
            running = sum(task.running for task in tasks)
            follower.doing(f"{running} tasks running, {len(tasks) - running} waiting")
            if not tasks:
                break
            # Files are looked at more often than Slurm, which all users of a cluster share.
            until = time.monotonic() + pause
            while time.monotonic() < until:
                time.sleep(_FIRST_LOOK / 2)
                self._read(follower.follow)
                if all(part.end is not None for part in self._parts):
                    break
            pause = min(_LAST_LOOK, pause * 1.5)
        deadline = time.monotonic() + _SETTLE
        while any(part.end is None for part in self._parts) and time.monotonic() < deadline:
            time.sleep(0.5)
            self._read(follower.follow)
        return self._unfinished()

    def _unfinished(self) -> list[str]:
        lines = []
        for part in self._parts:
            if part.end is None or part.end.interrupted:
                lines.append(
                    f"part {part.number} of {len(self._parts)} was ended before it was done; its "
                    f"output is in {self.logs}. The same command submits it again."
                )
            else:
                lines += part.end.unfinished
        return lines

    @property
    def logs(self) -> str:
        """Where tasks write what they print, as messages show it."""
        return self._rooms.shown(self.folder / "logs")


def carry_out(
    campaign: SlurmCampaign, follower: Follower, say: Callable[[str], None], *, wait: bool
) -> list[str]:
    """Submit what is still to be done, and follow it to its end.

    Args:
        campaign: the campaign.
        follower: who is told what tasks do.
        say: takes a sentence for the person at the terminal.
        wait: whether to wait for the end.

    Returns:
        What could not be finished, one sentence each; none without waiting.

    Raises:
        DataError: this is no place to submit from, or a value has the wrong form.
        MatrixError: Slurm refuses or does not answer, or somebody stopped waiting.
    """
    submitted, waiting = campaign.submit()
    if waiting:
        say(f"{len(waiting)} tasks of this campaign are in the queue already.")
    if submitted:
        say(f"Submitted {submitted} tasks as {campaign.name}. Logs are in {campaign.logs}.")
    if not submitted and not waiting:
        say(
            "Every part of this campaign has been carried out; nothing is submitted. Where nodes "
            f"have changed since, remove {campaign.logs.removesuffix('/logs')} and run again."
        )
        return []
    if not wait:
        say("The same command without --no-wait follows them.")
        return []
    try:
        return campaign.wait(follower)
    except KeyboardInterrupt:
        raise MatrixError(
            "stopped waiting; the tasks go on. The same command follows them again, and "
            f"`scancel --name={campaign.name}` ends them."
        ) from None
