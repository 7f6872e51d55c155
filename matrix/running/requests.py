"""The one JSON request that a probe process gets."""

from __future__ import annotations

from pathlib import Path

from matrix.building.preparing import Ready
from matrix.components import NONE, Component
from matrix.keeping.records import Number
from matrix.probe_specs import ProbeSpec
from matrix.running.outcomes import PROTOCOL


def make_request(
    *,
    spec: ProbeSpec,
    parameters: dict[str, Number | list[Number]],
    ready: Ready,
    components: dict[str, Component],
    scratch: Path,
    gpu_turn: Path | None,
) -> dict[str, object]:
    """What a probe is asked, with all it needs to know of its stack."""
    locked = ready.resolution.packages
    described: dict[str, object] = {}
    for name, version in ready.stack.requested.items():
        component = components[name]
        if version == NONE or name in ready.absent:
            origin = None
        elif name in ready.trees:
            origin = "tree"
        else:
            origin = "image" if name in ready.stack.provided else "environment"
        described[name] = {
            "requested": version,
            "resolved": _locked(component, locked),
            "distribution": component.distribution,
            "module": component.module,
            "origin": origin,
            "absent": ready.absent.get(name),
        }
    return {
        "protocol": PROTOCOL,
        "probe": spec.id,
        "parameters": parameters,
        "components": described,
        "trees": {
            name: {"path": str(tree.path), "revision": tree.revision, "tree": tree.tree}
            for name, tree in ready.trees.items()
        },
        "environment": str(ready.environment.folder),
        "image": ready.environment.marker.image,
        "scratch": str(scratch),
        "gpu_turn": None if spec.gpu is None or gpu_turn is None else str(gpu_turn),
        # Health is asked when a GPU seems broken: whoever else is on it must not hold that up.
        "shares_gpu": spec.gpu is not None and spec.alone != "children" and spec.group != "health",
    }


def _locked(component: Component, locked: dict[str, str]) -> str | None:
    """A component's version in the lock; cuDNN's distribution is called after a CUDA version."""
    if component.kind == "cudnn":
        return next((v for name, v in locked.items() if name.startswith("nvidia-cudnn-cu")), None)
    return locked.get(component.distribution or component.name)
