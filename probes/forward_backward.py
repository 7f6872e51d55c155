"""Are output and gradients of Megatron Core's own sparse attention right, forward and backward?

Drives Megatron Core's differentiable function of the CSA path, `csa_sparse_attn`, or under its
older name `dsa_sparse_attn`, end to end: its forward is FlashMLA's, its backward is cuDNN
Frontend's `DSA.sparse_attention_backward_wrapper`, run by torch's autograd in the thread that
autograd chooses. q (rows, heads, 512) and kv (buffer rows, 512) in bfloat16, sinks (heads,) in
float32, int32 indices (rows, K), per-row lengths or none, packed layout. Cases are those of
`probes/sparse_gradients.py`; no row is empty. Unlike `sparse-backward`, nothing of ours stands
between the two: the backward gets the output and the log of the sum that the forward left.

FlashMLA is on no package index and is provided by the runner, or not at all: then the question is
skipped. The reference is float32 automatic differentiation of our own forward from the same
bfloat16 inputs. The output gets the tolerances of the gradients: on its way lie a rounding of the
weights before a product, and its own. Output and dq must repeat bit for bit.

Controls: one row's indices shifted by one, a missing sink, and two swapped rows of the output must
each be noticed by the same comparison.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Final

from probes import layouts
from probes.adapters import mcore_attention
from probes.devices import poison_works, poisoned_memory, use_device, wait
from probes.session import Check, Session, absent
from probes.sparse_gradients import (
    Closeness,
    Inputs,
    as_answer,
    closeness,
    closenesses,
    draw,
    reference,
    same_bits,
    shape_faults,
)

PROBE: Final = {
    "id": "forward-backward",
    "needs": [
        "gpu:sm90",
        "torch",
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
        "megatron-core",
        "flash-mla",
    ],
    "required": True,
    "group": "functional",
    "time_limit_s": 420,
    "parameters": {
        "quick": {
            "device": "cuda",
            "rows": 200,
            "kv_rows": 3000,
            "model": "dsv4-flash",
            "cases": ["640:length", "128:length", "640:holes", "200:length"],
        },
        "thorough": {
            "device": "cuda",
            "rows": 1000,
            "kv_rows": 10000,
            "model": "dsv4-flash",
            "cases": [
                "640:length",
                "128:length",
                "640:holes",
                "640:full",
                "1024:length",
                "200:length",
                "200:full",
                "1023:length",
            ],
        },
    },
}

NAMES: Final = ("out", "dq", "dkv", "d_sink")


def run(probe: Session) -> None:
    """Every case, then the controls."""
    probe.step("look for FlashMLA")
    require_forward(probe)
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    probe.load("nvidia-cudnn-frontend")
    probe.load("flash-mla")
    function = mcore_attention.load(probe)
    probe.measure(poison_reaches_buffers=poison_works(torch, device))
    cases = [str(case) for case in probe.parameters["cases"]]
    for case in cases:
        with probe.check(f"K:{case}") as check:
            inputs = make_inputs(probe, torch, device, case)
            _check(probe, torch, device=device, function=function, inputs=inputs, check=check)
    _controls(probe, torch, make_inputs(probe, torch, device, cases[0]))


def require_forward(probe: Session) -> None:
    """Make sure that there is a FlashMLA.

    Raises:
        Concluded: the runner provides none, or this machine can't.
    """
    entry = probe.components.get("flash-mla")
    if entry is None or entry.get("requested") == "none":
        raise absent("the runner provides no FlashMLA, which is Megatron Core's only fused forward")
    probe.require("flash-mla")


def make_inputs(probe: Session, torch: Any, device: Any, case: str) -> Inputs:
    """The inputs of a case, in the sizes that the parameters give."""
    model = layouts.MODELS[probe.parameters["model"]]
    return draw(
        torch,
        device,
        case=case,
        seed=probe.seed,
        rows=int(probe.parameters["rows"]),
        kv_rows=int(probe.parameters["kv_rows"]),
        heads=model.heads,
        model=model,
    )


def _check(
    probe: Session, torch: Any, *, device: Any, function: Any, inputs: Inputs, check: Check
) -> None:
    results = []
    for attempt in ("first", "repeated"):
        started = time.perf_counter()
        results.append(_call(probe, torch, device, function, inputs, attempt=attempt))
        check.measure[f"{attempt}_call_s"] = round(time.perf_counter() - started, 4)
    faults = shape_faults(results[0], inputs)
    check.expect(not faults, "numerics", "; ".join(faults))
    if faults:
        return
    for name, close in compare(torch, results[0], reference(inputs)).items():
        check.measure[f"{name}_relative_error"] = close.relative_error
        check.measure[f"{name}_worst_row_error"] = close.worst_row
        check.measure[f"{name}_worst_element_error"] = close.worst_element
        check.expect(close.within, "numerics", f"{name}: {close}")
    for name in NAMES:
        repeats = same_bits(torch, results[0][name], results[1][name])
        check.measure[f"{name}_repeats"] = repeats
        if name in ("out", "dq"):
            check.expect(repeats, "nondeterministic", f"{name} differs between two equal calls")


def _call(
    probe: Session, torch: Any, device: Any, function: Any, inputs: Inputs, *, attempt: str
) -> dict[str, Any]:
    """Forward and backward the way a layer does it; the output is (rows, heads, dim) here."""
    leaves = {"dq": inputs.q, "dkv": inputs.kv, "d_sink": inputs.sink}
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    probe.step(f"forward, {attempt} call")
    with probe.tested("call", f"forward, {attempt} call"), poisoned_memory(torch):
        out = function(
            leaves["dq"],
            leaves["dkv"],
            leaves["d_sink"],
            inputs.indices,
            inputs.scale,
            topk_length=inputs.lengths,
            indexer_topk=0,
            is_thd=True,
        )
        wait(torch, device)
    probe.step(f"backward, {attempt} call")
    with probe.tested("call", f"backward, {attempt} call"), poisoned_memory(torch):
        # As a contiguous tensor: an expanded one would have strides that no layer's has.
        out.backward(inputs.dout.reshape(out.shape).contiguous())
        wait(torch, device)
    return {
        "out": out.detach().reshape(inputs.q.shape),
        **{name: leaf.grad.clone() for name, leaf in leaves.items()},
    }


def compare(torch: Any, found: Any, expected: Any) -> dict[str, Closeness]:
    """Compare output and gradients; `found` by name, `expected` by attribute."""
    return {
        "out": closeness(torch, found["out"], expected.out),
        **closenesses(torch, found, expected),
    }


def _controls(probe: Session, torch: Any, inputs: Inputs) -> None:
    """Give wrong answers, made by the reference and rounded as a kernel's are, to the check."""
    probe.step("controls")
    expected = reference(inputs)

    def answer(made: Any) -> dict[str, Any]:
        return {"out": made.out.to(torch.bfloat16), **as_answer(torch, made)}

    right = answer(expected)
    row = inputs.indices.shape[0] // 2
    shifted = inputs.indices.clone()
    moved = (shifted[row] + 1) % inputs.kv.shape[0]
    shifted[row] = torch.where(shifted[row] >= 0, moved, shifted[row])
    nothing = torch.full_like(inputs.sink, -math.inf)
    swapped = right["out"].clone()
    swapped[[row, row + 1]] = right["out"][[row + 1, row]]
    wrong = {
        "one row's indices shifted": answer(reference(replace(inputs, indices=shifted))),
        "no sink": answer(reference(replace(inputs, sink=nothing))),
        "two rows of the output swapped": {**right, "out": swapped},
    }
    fine = all(close.within for close in compare(torch, right, expected).values())
    for name, given in wrong.items():
        noticed = [
            key for key, close in compare(torch, given, expected).items() if not close.within
        ]
        # A check that also refuses the right answer has caught nothing.
        probe.control(name, failed=noticed and fine, detail=f"noticed in {', '.join(noticed)}")
