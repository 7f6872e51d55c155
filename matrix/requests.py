"""The one JSON request that a probe process gets."""

from __future__ import annotations

from pathlib import Path

from matrix.components import NONE, Component
from matrix.environments import Environment
from matrix.outcomes import PROTOCOL
from matrix.probe_specs import ProbeSpec
from matrix.records import Number
from matrix.resolution import read_lock
from matrix.stacks import Stack
from patches.sources import Worktree


def make_request(
    *,
    spec: ProbeSpec,
    parameters: dict[str, Number | list[Number]],
    stack: Stack,
    components: dict[str, Component],
    environment: Environment,
    trees: dict[str, Worktree],
    absent: dict[str, str],
    scratch: Path,
) -> dict[str, object]:
    """What a probe is asked, with all it needs to know of its stack."""
    locked = read_lock((environment.folder / "lock.txt").read_text(encoding="utf-8"))
    described: dict[str, object] = {}
    for name, version in stack.requested.items():
        component = components[name]
        if version == NONE or name in absent:
            origin = None
        elif name in trees:
            origin = "tree"
        else:
            origin = "image" if name in stack.provided else "environment"
        described[name] = {
            "requested": version,
            "resolved": _locked(component, locked),
            "distribution": component.distribution,
            "module": component.module,
            "origin": origin,
            "absent": absent.get(name),
        }
    return {
        "protocol": PROTOCOL,
        "probe": spec.id,
        "parameters": parameters,
        "components": described,
        "trees": {
            name: {"path": str(tree.path), "revision": tree.revision, "tree": tree.tree}
            for name, tree in trees.items()
        },
        "environment": str(environment.folder),
        "image": environment.marker.image,
        "scratch": str(scratch),
    }


def _locked(component: Component, locked: dict[str, str]) -> str | None:
    """A component's version in the lock; cuDNN's distribution is called after a CUDA version."""
    if component.kind == "cudnn":
        return next((v for name, v in locked.items() if name.startswith("nvidia-cudnn-cu")), None)
    return locked.get(component.distribution or component.name)
