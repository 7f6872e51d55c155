"""A real Slurm of one node or several, started on this host in a folder of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

#: What a machine needs for it; Debian: slurm-wlm and munge.
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")

CONFIGURATION = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=3
MinJobAge=300
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
"""


def missing_programs() -> list[str]:
    """What this machine lacks to run a cluster of its own."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass(frozen=True)
class Cluster:
    """A running Slurm."""

    folder: Path
    environment: dict[str, str]
    """What a command needs in its environment to speak with it."""

    def ask(self, *command: str) -> str:
        """The output of one of Slurm's commands."""
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


@contextmanager
def start_cluster(folder: Path, nodes: int = 1) -> Iterator[Cluster]:
    """Start munge, the controller and the nodes; end them on leaving."""
    host = socket.gethostname().split(".")[0]
    names = [host] if nodes == 1 else [f"node{number}" for number in range(nodes)]
    for name in ("state", *(f"spool-{name}" for name in names)):
        (folder / name).mkdir(parents=True)
    # munge wants a path that nobody else can write, and a socket's path is short.
    folder.chmod(0o755)
    controller, *daemons = _free_ports(1 + nodes)
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path}
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host,
            folder=folder,
            controller=controller,
            nodes="\n".join(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 "
                "State=UNKNOWN"
                for name, port in zip(names, daemons, strict=True)
            ),
            user=getpass.getuser(),
        )
    )
    cluster = Cluster(folder, environment)
    key = folder / "munge.key"
    cluster.ask("mungekey", "--create", "--keyfile", str(key))
    programs = [
        ["munged", "--foreground", "--force", f"--key-file={key}",
         f"--socket={folder / 'munge.socket'}", f"--pid-file={folder / 'munged.pid'}",
         f"--log-file={folder / 'munged.log'}", f"--seed-file={folder / 'munged.seed'}"],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", name] for name in names),
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for program in programs:
            with (folder / f"{program[0]}-{len(running)}.out").open("wb") as out:
                running.append(
                    subprocess.Popen(
                        program,
                        env={**os.environ, **environment},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                    )
                )
            if program[0] == "munged":
                _wait((folder / "munge.socket").exists, folder)
        _wait(lambda: _idle(cluster), folder)
        yield cluster
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _idle(cluster: Cluster) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() == "idle"


def _wait(holds: Callable[[], bool], folder: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            said = "\n".join(
                f"{path.name}: {path.read_text(errors='replace')[-2000:]}"
                for pattern in ("*.out", "*.log")
                for path in sorted(folder.glob(pattern))
            )
            raise AssertionError(f"the cluster did not start\n{said}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def cluster_or_skip(nodes: int) -> Iterator[Cluster]:
    """A Slurm for the tests of a module; they are skipped where its programs are missing."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"no Slurm here: {', '.join(missing)} missing (Debian: slurm-wlm, munge)")
    # Sockets need short paths.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with start_cluster(folder, nodes=nodes) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)
