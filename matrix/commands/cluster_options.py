"""The options of a campaign that runs on a cluster, and those that its tasks are started with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

#: Options that are for the command that submits, and not for its tasks.
_NOT_FOR_TASKS = frozenset(
    {"executor", "no_wait", "tasks", "as_json", "junit", "plan_only", "shard", "list_jobs"}
)


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where a campaign's cells run, and what a cluster is asked for."""
    for option in reversed(
        [
            click.option(
                "--executor",
                type=click.Choice(["local", "slurm"]),
                default="local",
                show_default=True,
                help="Run on this machine, or as one array job of a Slurm cluster.",
            ),
            click.option("--slurm-partition", help="Partition of the tasks."),
            click.option(
                "--slurm-gpus", type=click.IntRange(min=0), help="GPUs of each task, on each node."
            ),
            click.option(
                "--slurm-nodes",
                type=click.IntRange(min=1),
                help="Nodes of each task, for probes that take all GPUs.",
            ),
            click.option(
                "--slurm-cpus", type=click.IntRange(min=1), help="Processors of each task."
            ),
            click.option("--slurm-time", help="Longest time of a task: minutes or D-HH:MM."),
            click.option(
                "--tasks",
                type=click.IntRange(1, 1000),
                help="Parts to cut the campaign into, each a task.",
            ),
            click.option(
                "--slurm-setup", multiple=True, help="Shell line before each task; repeatable."
            ),
            click.option("--no-wait", is_flag=True, help="Submit, and don't wait for the end."),
        ]
    ):
        command = option(command)
    return command


def only_with_slurm(context: click.Context) -> list[str]:
    """The options on this command line that ask a cluster for something."""
    asked = [
        option.opts[0]
        for option in context.command.params
        if (option.name or "").startswith("slurm_") or option.name in ("tasks", "no_wait")
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
    ]
    return sorted(asked)


def task_arguments(context: click.Context, *but: str) -> list[str]:
    """The options of this command line that its tasks are started with.

    Args:
        context: of the command.
        but: parameters that are left out too.
    """
    arguments = []
    for option in context.command.params:
        name = option.name or ""
        if name in _NOT_FOR_TASKS or name.startswith("slurm_") or name in but:
            continue
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value: Any = context.params[name]
        if isinstance(option, click.Option) and option.is_flag:
            arguments.append(option.opts[0])
            continue
        values = value if isinstance(value, tuple) else (value,)
        for each in values:
            shown = each.resolve() if isinstance(each, Path) else each
            arguments.append(f"{option.opts[0]}={shown}")
    return arguments
