"""Are the gradients of sparse attention right, for every width and with or without lengths?

Drives cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` by keyword, as Megatron Core's
sparse attention does: q, out and dout (rows, heads, 512) and kv (buffer rows, 512) in bfloat16,
lse (rows, heads) and the sinks (heads,) in float32, indices (rows, K) in int32, and per-row
lengths or none. `out` and `lse` come from our own forward. Cases are those of
`probes/sparse_gradients.py`, and no row is empty here.

The reference is float32 automatic differentiation of our own forward, from the same bfloat16
inputs; `probes/sparse_gradients.py` says what may differ, and why.

dq must come out the same, bit for bit, when the call is repeated: each of its elements is made by
one block. dkv and d_sink are summed by atomics, in any order.

The model's own number of heads must work. Another number that the frontend refuses is skipped: it
counts as refused when an exception that stands for a refusal comes from the frontend's own code,
names no CUDA error and speaks of heads (`probes/refusals.py`). A number that is accepted must give
right gradients.

Controls: one row's indices shifted by one, two rows of dq swapped, and a missing sink must each be
noticed by the same comparison.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward
from probes.devices import poison_works, poisoned_memory, use_device, wait
from probes.refusals import refusal
from probes.session import Check, Session, absent
from probes.sparse_gradients import (
    Inputs,
    arguments,
    as_answer,
    closenesses,
    draw,
    reference,
    same_bits,
    shape_faults,
)

PROBE: Final = {
    "id": "sparse-backward",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 600,
    "parameters": {
        "quick": {
            "device": "cuda",
            "rows": 200,
            "kv_rows": 3000,
            "model": "dsv4-flash",
            "heads": [64],
            "cases": ["640:length", "128:length", "640:holes", "200:length"],
            "other_heads": [],
            "other_cases": [],
        },
        "thorough": {
            "device": "cuda",
            "rows": 500,
            "kv_rows": 6000,
            "model": "dsv4-flash",
            "heads": [64, 128],
            "cases": [
                "640:length",
                "128:length",
                "640:holes",
                "640:full",
                "1024:length",
                "192:length",
                "200:length",
                "200:full",
                "1023:length",
            ],
            "other_heads": [16, 32],
            "other_cases": ["640:length", "640:holes", "128:length", "200:length"],
        },
    },
}


def run(probe: Session) -> None:
    """Every number of heads and case, the model's own first, then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    backward = fe_backward.wrapper(probe)
    probe.measure(poison_reaches_buffers=poison_works(torch, device))
    model = layouts.MODELS[probe.parameters["model"]]
    asked = [(int(heads), case) for heads in probe.parameters["heads"]
             for case in probe.parameters["cases"]]  # fmt: skip
    asked += [(int(heads), case) for heads in probe.parameters["other_heads"]
              for case in probe.parameters["other_cases"]]  # fmt: skip
    for heads, case in asked:
        with probe.check(f"heads {heads} K:{case}") as check:
            inputs = make_inputs(probe, torch, device, heads=heads, case=str(case))
            _check(
                probe, torch, device=device, backward=backward, inputs=inputs, check=check,
                may_refuse=heads != model.heads,
            )  # fmt: skip
    heads, case = asked[0]
    _controls(probe, torch, make_inputs(probe, torch, device, heads=heads, case=str(case)))


def make_inputs(probe: Session, torch: Any, device: Any, *, heads: int, case: str) -> Inputs:
    """The inputs of a case, in the sizes that the parameters give."""
    return draw(
        torch,
        device,
        case=case,
        seed=probe.seed,
        rows=int(probe.parameters["rows"]),
        kv_rows=int(probe.parameters["kv_rows"]),
        heads=heads,
        model=layouts.MODELS[probe.parameters["model"]],
    )


def _check(
    probe: Session, torch: Any, *, device: Any, backward: Any, inputs: Inputs, check: Check,
    may_refuse: bool,
) -> None:  # fmt: skip
    expected = reference(inputs)
    keywords = arguments(torch, inputs, expected)
    results: list[dict[str, Any]] = []
    for attempt in ("first", "repeated"):
        started = time.perf_counter()
        with probe.tested("call", f"sparse_attention_backward_wrapper, {attempt} call"):
            try:
                with poisoned_memory(torch):
                    answer = backward(**keywords)
                    wait(torch, device)
            except Exception as error:
                said = refusal(error, sys.modules["cudnn"], "head") if may_refuse else None
                if said is None or results:
                    raise
                raise absent(f"{inputs.q.shape[1]} heads are refused: {said}") from error
            results.append({name: answer[name].clone() for name in ("dq", "dkv", "d_sink")})
            wait(torch, device)
        check.measure[f"{attempt}_call_s"] = round(time.perf_counter() - started, 4)
    # The first call compiles, the repeated one does not.
    check.measure["compile_s"] = round(
        check.measure["first_call_s"] - check.measure["repeated_call_s"], 3
    )
    faults = shape_faults(results[0], inputs)
    check.expect(not faults, "numerics", "; ".join(faults))
    if faults:
        return
    for name, closeness in closenesses(torch, results[0], expected).items():
        check.measure[f"{name}_relative_error"] = closeness.relative_error
        check.measure[f"{name}_worst_row_error"] = closeness.worst_row
        check.measure[f"{name}_worst_element_error"] = closeness.worst_element
        check.expect(closeness.within, "numerics", f"{name}: {closeness}")
    repeats = {name: same_bits(torch, results[0][name], results[1][name]) for name in results[0]}
    check.measure["dkv_repeats"] = repeats["dkv"]
    check.measure["d_sink_repeats"] = repeats["d_sink"]
    check.expect(repeats["dq"], "nondeterministic", "dq differs between two equal calls")


def _controls(probe: Session, torch: Any, inputs: Inputs) -> None:
    """Give wrong answers, made by the reference and rounded as a kernel's are, to the check."""
    probe.step("controls")
    expected = reference(inputs)
    right = as_answer(torch, expected)
    row = inputs.indices.shape[0] // 2
    shifted = inputs.indices.clone()
    shifted[row] = torch.where(
        shifted[row] >= 0, (shifted[row] + 1) % inputs.kv.shape[0], shifted[row]
    )
    nothing = torch.full_like(inputs.sink, -math.inf)
    swapped = right["dq"].clone()
    swapped[[row, row + 1]] = right["dq"][[row + 1, row]]
    wrong = {
        "one row's indices shifted": as_answer(torch, reference(replace(inputs, indices=shifted))),
        "two rows of dq swapped": {**right, "dq": swapped},
        "no sink": as_answer(torch, reference(replace(inputs, sink=nothing))),
    }
    fine = all(item.within for item in closenesses(torch, right, expected).values())
    for name, answer in wrong.items():
        judged = closenesses(torch, answer, expected)
        noticed = [key for key, item in judged.items() if not item.within]
        # A check that also refuses the right answer has caught nothing.
        probe.control(name, failed=noticed and fine, detail=f"noticed in {', '.join(noticed)}")
