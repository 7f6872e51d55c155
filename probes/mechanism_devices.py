"""Which errors come out of compiled functions where a process sees two GPUs?

The DSL loads a compiled function at its first call, on every GPU that the process sees, and is
content when one of these loads worked. A rank of a training that sees its neighbours' GPUs as well
depends on them, then. Each part creates one condition in a child process of its own and records the
text and code of the first call that fails, and what the calls after it gave. "First" is the GPU
that is current, unless said otherwise; functions of ours ask for 214,016 bytes of dynamic shared
memory, as the frontend's sparse backward does, which a load must allow on each GPU:

* several GPUs: a function of ours is called for the first time on the first or the second of two
  visible GPUs, then on the other, with `CUDA_MODULE_LOADING` LAZY and EAGER; and so are Megatron
  Core's `build_attention_indices` and `CompressorInputCompact` and cuDNN Frontend's
  `indexer_forward_wrapper`, `indexer_top_k_wrapper` and `sparse_attention_backward_wrapper`, on the
  second GPU while it is the current one, against the answers of the first;
* a crowded GPU: while a kernel spins on the second GPU, while another process works there, or while
  this or another process has taken all its memory in blocks down to 2 MiB, fresh functions are
  called on the first. Then, with room again, the same functions are called on the second: there a
  load that failed in silence shows. Also with the first GPU's memory taken, and the second one
  visible or not;
* the wrong GPU: a stream, an address or tensors of the second GPU are given to a function of ours,
  and tensors to upstream's functions as above, while the first GPU is current. An answer that
  differs from the first GPU's, from a call that reported success, has the code `WrongAnswer` or
  `WrongCount`;
* what is touched: contexts of this process and memory that is gone, on each GPU, after first calls
  on the first one, as a process that only looks on sees it. So much does a rank take of each GPU
  that it sees and does not use.

A part passes when the condition was there and something was recorded. What comes out is compared
with nothing. The control of each is the same calls without the condition: all must succeed. That of
the last one sees one GPU, and nothing may be gone from the other.

No part has ever run on real GPUs, for want of a machine with two: what is known of this probe comes
from a simulated driver. The kernels are known to compile.
"""

from __future__ import annotations

from typing import Any, Final

from probes import children
from probes.children import Call
from probes.conditions import Condition, examine
from probes.device_conditions import (
    ACTIONS,
    ME,
    count_gpus,
    crowded,
    first_calls,
    strange_launch,
    touched,
)
from probes.device_subjects import strange_tensors, upstream_elsewhere
from probes.neighbours import be_neighbour
from probes.session import Session

PROBE: Final = {
    "id": "mechanism-devices",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "megatron-core"],
    "gpus": 2,
    "required": False,
    "group": "mechanism",
    "time_limit_s": 1800,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 1024,
            "shared_bytes": 214016,
            "functions": 8,
            "loading": ["LAZY", "EAGER"],
            "spin_s": 3,
            "hang_s": 30,
            "subjects": ["attention indices", "compaction", "indexer scores", "indexer top-k"],
            "at_once": 4,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 8192,
            "shared_bytes": 214016,
            "functions": 100,
            "loading": ["LAZY", "EAGER"],
            "spin_s": 10,
            "hang_s": 60,
            "subjects": [
                "attention indices",
                "compaction",
                "indexer scores",
                "indexer top-k",
                "sparse backward",
            ],
            "at_once": 4,
        },
    },
}

__all__ = ["PROBE", "be_neighbour", "run"]
"""What runs in children is found by name in this module."""


def run(probe: Session) -> None:
    """One after another what measures or takes memory; then the rest, a few at a time."""
    enough = False
    with probe.check("two GPUs") as check:
        call = Call(ME, count_gpus.__name__, name="count", limit_s=120)
        found = children.run(probe, call).result_for(check)
        if found is not None:
            check.measure.update(found)
            enough = found["gpus_count"] > 1
            seen = f"{found['gpus_count']} GPU is visible, and nothing here can be asked of one"
            check.expect(enough, "machine:no-condition", seen, status="miss")
    if enough:
        examine(probe, ME, alone(probe))
        examine(probe, ME, beside(probe), at_once=int(probe.parameters["at_once"]))


def alone(probe: Session) -> list[Condition]:
    """Conditions that nobody else may be on either GPU for."""
    parameters = probe.parameters
    shared = int(parameters["shared_bytes"])
    functions = int(parameters["functions"])
    sizes = {"shared_bytes": shared, "functions": functions}
    listed = [
        Condition(
            f"what first calls touch, {way} loading",
            touched.__name__,
            {"visible": 2, **sizes},
            {"visible": 1, **sizes},
            _loading(way),
            limit_s=300,
            step_limits_s=_limits(probe),
        )
        for way in parameters["loading"]
    ]
    spin = float(parameters["spin_s"])

    def crowd(name: str, how: str, on: int, way: str | None, visible: int = 2) -> Condition:
        common: dict[str, Any] = {"visible": visible, "shared_bytes": shared, "spin_s": spin}
        return Condition(
            name if way is None else f"{name}, {way} loading",
            crowded.__name__,
            {**common, "how": how, "on": on},
            {**common, "how": "not", "on": 0},
            {} if way is None else _loading(way),
            limit_s=150,
            step_limits_s=_limits(probe),
        )

    listed += [
        crowd("second GPU busy", "busy", 1, None),
        crowd("second GPU used by another process", "work", 1, None),
    ]
    for way in parameters["loading"]:
        listed += [
            crowd("second GPU full", "full", 1, way),
            crowd("second GPU filled by another process", "fill", 1, way),
            crowd("first GPU full", "full", 0, way),
            crowd("first GPU full and alone", "full", 0, way, visible=1),
        ]
    return listed


def beside(probe: Session) -> list[Condition]:
    """Conditions that need little of a GPU."""
    parameters = probe.parameters
    shared = int(parameters["shared_bytes"])
    listed = [
        Condition(
            f"first call on the {name} of two GPUs, {way} loading",
            first_calls.__name__,
            {"visible": 2, "on": on, "shared_bytes": shared},
            {"visible": 1, "on": 0, "shared_bytes": shared},
            _loading(way),
            limit_s=120,
            step_limits_s=_limits(probe),
        )
        for way in parameters["loading"]
        for on, name in enumerate(("first", "second"))
    ]
    for name, memory, stream in (
        ("stream of the second GPU", 0, 1),
        ("address on the second GPU", 1, 0),
        ("stream and address of the second GPU", 1, 1),
    ):
        odd = {"memory": memory, "stream": stream}
        own = {"memory": 0, "stream": 0}
        listed.append(Condition(name, strange_launch.__name__, odd, own, limit_s=120))
    for name, target, source, lane in (
        ("tensors of the second GPU", 1, 1, None),
        ("tensors and stream of the second GPU", 1, 1, 1),
        ("tensors of the second GPU, stream of the first", 1, 1, 0),
        ("tensors of the first GPU, stream of the second", 0, 0, 1),
        ("written on the first GPU, read on the second", 0, 1, None),
        ("written on the second GPU, read on the first", 1, 0, None),
    ):
        tensors = {"target": target, "source": source, "stream": lane}
        plain = {"target": 0, "source": 0, "stream": None}
        listed.append(Condition(name, strange_tensors.__name__, tensors, plain, limit_s=120))
    for subject in parameters["subjects"]:
        for name, current in (("on the second GPU", 1), ("of the second GPU, first current", 0)):
            listed.append(
                Condition(
                    f"{subject} {name}",
                    upstream_elsewhere.__name__,
                    {"subject": subject, "tensors": 1, "current": current},
                    {"subject": subject, "tensors": 0, "current": 0},
                    limit_s=150,
                )
            )
    return listed


def _loading(way: str) -> dict[str, str]:
    return {"CUDA_MODULE_LOADING": str(way)}


def _limits(probe: Session) -> dict[str, float]:
    return dict.fromkeys(ACTIONS, float(probe.parameters["hang_s"]))
