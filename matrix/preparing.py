"""From a stack to something that probes can be put to: lock, environment, worktrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matrix.components import Component
from matrix.environments import Environment, build
from matrix.here import Setup
from matrix.resolution import Resolution, Target, resolve
from matrix.rooms import Rooms
from matrix.stacks import Stack
from patches.sources import Source, SourceError, Worktree


@dataclass(frozen=True)
class Ready:
    """A stack that probes can be put to."""

    stack: Stack
    setup: Setup
    resolution: Resolution
    environment: Environment
    trees: dict[str, Worktree]
    absent: dict[str, str]
    """Components that this machine can't provide, with the `miss` reason."""


def prepare(
    stack: Stack,
    setup: Setup,
    *,
    sources: dict[str, Source],
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None],
    give_up: Callable[[str], None],
) -> Ready:
    """Resolve, build and check out what a stack consists of.

    Args:
        stack: what is asked for.
        setup: how its environment is made on this machine.
        sources: mirrors of the git components.
        components: the catalogue.
        rooms: the project folder.
        doing: told what takes a while.
        give_up: told what can't be had; the rest of the stack goes on without it.

    Raises:
        ResolutionConflict: the versions exclude each other.
        Unavailable: the environment can't be made here.
    """
    resolution = setup.resolution
    if resolution is None:
        doing(f"{stack.name}: resolving versions")
        resolution = resolve(
            requested=stack.requested,
            components=components,
            torch_requirements=setup.torch.requirements,
            excluded=("torch",) if "torch" in stack.provided else (),
            target=Target.of(setup.interpreter),
            packages=setup.torch.packages,
            rooms=rooms,
            python_version=setup.interpreter.version,
        )
    doing(f"{stack.name}: building the environment")
    environment = build(
        resolution=resolution,
        interpreter=setup.interpreter,
        image=setup.torch.image,
        packages=setup.torch.packages,
        components=components,
        rooms=rooms,
    )
    absent = {name: reason for name, reason, _ in stack.absent}
    trees: dict[str, Worktree] = {}
    for name, source in sources.items():
        version = stack.requested[name]
        if name in absent or not components[name].is_revision(version):
            continue
        doing(f"{stack.name}: checking out {name} {version[:12]}")
        try:
            trees[name] = source.worktree(version)
        except SourceError as error:
            absent[name] = error.reason
            give_up(f"{stack.name}: {error}")
    return Ready(stack, setup, resolution, environment, trees, absent)
