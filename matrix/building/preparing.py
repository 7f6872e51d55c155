"""From a stack to something that probes can be put to: lock, environment, worktrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from matrix.building.environments import Environment, build
from matrix.building.here import Setup
from matrix.building.resolution import Resolution, Target, resolve
from matrix.components import Component
from matrix.errors import PatchConflict
from matrix.rooms import Rooms
from matrix.stacks import Stack
from matrix.visible import visible
from patches.patched import Patcher
from patches.results import Applied
from patches.sources import Source, SourceError, Worktree

#: What stands in a record for a patch that comes after one that could not be applied.
NOT_TRIED = "not tried"


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
    patches: tuple[tuple[str, str, str], ...] = ()
    """(candidate, head, result) for each patch of the stack, in order."""


def prepare(
    stack: Stack,
    setup: Setup,
    *,
    sources: dict[str, Source],
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None],
    give_up: Callable[[str], None],
    going_on: Callable[[], bool],
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
        going_on: whether to wait for other campaigns that have the environment.

    Raises:
        ResolutionConflict: the versions exclude each other, or a patch does not apply.
        Unavailable: the environment can't be made here.
        Stopped: `going_on` said no.
    """
    absent = {name: reason for name, reason, _ in stack.absent}
    # Patches come first: merging takes a second, resolving and building take minutes.
    trees, results = _patched(
        stack,
        setup,
        absent,
        sources=sources,
        components=components,
        rooms=rooms,
        doing=doing,
        give_up=give_up,
    )
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
    environment = _built(
        resolution,
        setup,
        components=components,
        rooms=rooms,
        doing=lambda text: doing(f"{stack.name}: {text}"),
        going_on=going_on,
    )
    for name, source in sources.items():
        version = stack.requested[name]
        if name in absent or name in trees or not components[name].is_revision(version):
            continue
        doing(f"{stack.name}: checking out {name} {version[:12]}")
        try:
            trees[name] = source.worktree(version)
        except SourceError as error:
            absent[name] = error.reason
            give_up(f"{stack.name}: {error}")
    return Ready(stack, setup, resolution, environment, trees, absent, results)


def prepare_again(
    ready: Ready,
    *,
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None],
    going_on: Callable[[], bool],
) -> Ready:
    """A stack with its environment as the lock says, after somebody changed or rebuilt that.

    Raises:
        Unavailable: the environment can't be made any more.
        Stopped: `going_on` said no.
    """
    doing(f"{ready.stack.name}: making the environment anew, since it was changed")
    environment = _built(
        ready.resolution,
        ready.setup,
        components=components,
        rooms=rooms,
        doing=lambda text: doing(f"{ready.stack.name}: {text}"),
        going_on=going_on,
    )
    return replace(ready, environment=environment)


def _built(
    resolution: Resolution,
    setup: Setup,
    *,
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None],
    going_on: Callable[[], bool],
) -> Environment:
    return build(
        resolution=resolution,
        interpreter=setup.interpreter,
        image=setup.torch.image,
        packages=setup.torch.packages,
        components=components,
        rooms=rooms,
        doing=doing,
        going_on=going_on,
    )


def _patched(
    stack: Stack,
    setup: Setup,
    absent: dict[str, str],
    *,
    sources: dict[str, Source],
    components: dict[str, Component],
    rooms: Rooms,
    doing: Callable[[str], None],
    give_up: Callable[[str], None],
) -> tuple[dict[str, Worktree], tuple[tuple[str, str, str], ...]]:
    """The patched trees of a stack, and what came of each patch; adds to `absent`.

    Raises:
        PatchConflict: a patch does not apply.
    """
    trees: dict[str, Worktree] = {}
    found: dict[str, str] = {}
    failed: Applied | None = None
    for name in dict.fromkeys(pin.component for pin in setup.pins):
        version = stack.requested[name]
        if name in absent:
            if absent[name] == "patch:unavailable":
                unknown = next((p.id for p in setup.pins if p.head == "unknown"), None)
                found |= {unknown: "unavailable"} if unknown else {}
            continue
        pins = [pin for pin in setup.pins if pin.component == name]
        doing(f"{stack.name}: {name} {version[:12]} with {', '.join(pin.id for pin in pins)}")
        patcher = Patcher(sources[name].remote, rooms.sources, components[name].roots)
        try:
            patched = patcher.make(version, pins)
        except SourceError as error:
            absent[name] = error.reason
            give_up(f"{stack.name}: {error}")
            continue
        found |= {answer.id: answer.result for answer in patched.applied}
        last = patched.applied[-1]
        if patched.path is not None and patched.tree is not None:
            trees[name] = Worktree(patched.path, version, patched.tree)
        elif last.result == "unavailable":
            absent[name] = "patch:unavailable"
            give_up(f"{stack.name}: {last.id} can't be had: {visible(last.why or '')}")
        else:
            failed = failed or last
    results = tuple((pin.id, pin.head, found.get(pin.id, NOT_TRIED)) for pin in setup.pins)
    if failed is not None:
        raise PatchConflict(f"patch:{failed.result}", _told(failed), results)
    return trees, results


def _told(failed: Applied) -> str:
    """Why a patch could not be applied, on one line; nothing in it acts."""
    if failed.result == "unsafe":
        return visible(f"{failed.id} is refused: {failed.why}")
    places = []
    for conflict in failed.conflicts:
        functions = ", ".join(dict.fromkeys([*conflict.ours, *conflict.theirs]))
        places.append(f"{conflict.path} ({functions or conflict.kind})")
    return visible(f"{failed.id} conflicts with {failed.base[:12]} in {'; '.join(places)}")[:900]
