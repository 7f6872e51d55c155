"""Several nodes of one Slurm allocation, for a probe that takes all the GPUs it can get."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from matrix.probe_specs import ProbeSpec
from matrix.running.isolation import network

_COUNT = "SLURM_JOB_NUM_NODES"
#: What srun needs to start a step on all nodes, and what says over which interfaces nodes talk.
_SHOWN = (
    _COUNT, "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_CONF", "NCCL_SOCKET_IFNAME",
    "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME",
)  # fmt: skip


def nodes_of(spec: ProbeSpec, environment: Mapping[str, str] = os.environ) -> int:
    """How many nodes a probe's processes may be on: all of this allocation, or this one alone."""
    shown = environment.get(_COUNT, "1")
    return int(shown) if spec.all_gpus and shown.isdecimal() else 1


def variables(spec: ProbeSpec, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables by which a probe starts processes on its other nodes; none for one."""
    if nodes_of(spec, environment) < 2:
        return {}
    return {name: environment[name] for name in _SHOWN if name in environment}


def reach(spec: ProbeSpec) -> Literal["none", "host"]:
    """The network that a probe's process gets: nodes can only talk over the host's."""
    return "host" if nodes_of(spec) > 1 else network().reach
