"""Does an index outside of the table of keys stay without effect?

Drives cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` as `sparse-backward` does, with
bfloat16 data (rows, heads, 512) and (buffer rows, 512) and int32 indices (rows, K), of which a few
are bad: -1 inside the prefix that a row's length covers, -1000, the number of buffer rows, that
number plus 1000, or 2^31 - 1. `length` gives per-row lengths, and each bad index stands among the
first of its row, so it is inside the prefix. `full` gives none; there -1 is a legal hole, and is
not asked about. Upstream calls these inputs invalid; what matters is that a corrupt table can't
turn into corrupt memory, whose error some later launch reports.

A case passes when the call refuses (`probes/refusals.py`), or when it gives the gradients of the
float32 reference without the bad indices, within the tolerances of `probes/sparse_gradients.py`.
Nothing may be written outside of a buffer and nothing outside may count: kv lies between rows of
NaN in one allocation, and every buffer that the frontend allocates through torch lies between
margins with a pattern (`probes/guards.py`), wide enough for all but the last value. 2^31 - 1 leads
out of all memory, unless the arithmetic overflows. An ordinary call afterwards in the same process
must be right. Each case is a process of its own, since an illegal address spoils one.

Controls: writing one number before a buffer, or after it, must be noticed; so must gradients into
which the row before kv counted.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from probes import children, layouts
from probes.adapters import fe_backward
from probes.children import Call, Ended
from probes.devices import use_device, wait
from probes.guards import between_rows, guarded_allocations
from probes.refusals import refusal
from probes.session import Session
from probes.sparse_gradients import (
    Inputs,
    arguments,
    as_answer,
    closenesses,
    draw,
    reference,
    shape_faults,
)

PROBE: Final = {
    "id": "index-bounds",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": False,
    "group": "functional",
    "time_limit_s": 420,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 70,
            "kv_rows": 600,
            "guard_rows": 2048,
            "widths": [128],
            "cases": ["length:-1", "length:rows", "length:largest", "full:rows", "full:largest"],
            "limit_s": 15,
            "at_once": 6,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 500,
            "kv_rows": 6000,
            "guard_rows": 2048,
            "widths": [128, 640],
            "cases": [
                "length:-1",
                "length:-1000",
                "length:rows",
                "length:rows+1000",
                "length:largest",
                "full:-1000",
                "full:rows",
                "full:rows+1000",
                "full:largest",
            ],
            "limit_s": 25,
            "at_once": 6,
        },
    },
}

ORDINARY: Final = "an ordinary call of the same form"
BAD: Final = "the call with bad indices"
AFTERWARDS: Final = "an ordinary call afterwards"
PREPARING_S: Final = 150.0
"""Longest time for importing, and for compiling, where several processes do so at once."""


def run(probe: Session) -> None:
    """Every case in a child, some at a time; then what each came to."""
    probe.require("nvidia-cudnn-frontend")
    parameters = probe.parameters
    limit_s = float(parameters["limit_s"])
    cases = [
        {"width": int(width), "case": case}
        for width in parameters["widths"]
        for case in parameters["cases"]
    ]
    calls = [
        _call("one_case", f"K={case['width']} {case['case']}", case, limit_s) for case in cases
    ]
    calls.append(_call("wrong_answers", "controls", cases[0], limit_s))
    *found, controls = children.run_all(probe, calls, at_once=int(parameters["at_once"]))
    for call, ended in zip(calls, found, strict=False):
        _judge(probe, call.name, ended)
    _controls(probe, controls)


def _call(function: str, name: str, case: dict[str, Any], limit_s: float) -> Call:
    limits = {BAD: limit_s, AFTERWARDS: limit_s}
    return Call(
        "index-bounds", function, case, name=name, limit_s=PREPARING_S, step_limits_s=limits
    )


def _judge(probe: Session, name: str, ended: Ended) -> None:
    with probe.check(name, step=False) as check:
        facts = ended.result_for(check)
        if facts is None:
            return
        check.measure.update(facts["measure"])
        found = faults(facts)
        check.expect(not found, "numerics", "; ".join(found))


def faults(facts: dict[str, Any]) -> list[str]:
    """What is wrong with an answer; nothing for a refusal or a right one."""
    found = [f"wrote {text}" for text in facts["damages"]]
    found += facts["shapes"]
    found += [f"{name}: {how}" for name, how in facts["far"].items()]
    return found + [f"afterwards {name}: {how}" for name, how in facts["far_afterwards"].items()]


def one_case(probe: Session, arguments_: dict[str, Any]) -> dict[str, Any]:
    """In a child: an ordinary call, the one with bad indices, and an ordinary one again."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    backward = fe_backward.wrapper(probe)
    ordinary, bad, ignoring = _inputs(probe, torch, device, arguments_)
    usual = reference(ordinary)
    expected = reference(ignoring)
    margin = int(probe.parameters["guard_rows"]) * ordinary.kv.shape[1] * 4
    wait(torch, device)

    def call(step: str, inputs: Inputs, truth: Any) -> Any:
        keywords = arguments(torch, inputs, truth)
        probe.step(step)
        with probe.tested("call", step):
            answer = backward(**keywords)
            wait(torch, device)
        return answer

    call(ORDINARY, ordinary, usual)
    answer: Any = None
    refused = None
    with guarded_allocations(torch, device, margin) as guards:
        keywords = arguments(torch, bad, expected)
        probe.step(BAD)
        with probe.tested("call", BAD):
            try:
                answer = backward(**keywords)
                wait(torch, device)
            except Exception as error:
                refused = refusal(error, sys.modules["cudnn"], "ind(ex|ices)|range|bound|topk")
                if refused is None:
                    raise
    facts = _facts(torch, answer, expected, inputs=bad, damages=guards.damages())
    facts["measure"]["guarded_buffers_count"] = len(guards.buffers)
    facts["measure"]["refused_with"] = refused
    again = call(AFTERWARDS, ordinary, usual)
    facts["far_afterwards"] = _far(torch, again, usual)
    return facts


def wrong_answers(probe: Session, arguments_: dict[str, Any]) -> dict[str, Any]:
    """In a child: what the comparison makes of a right answer and of wrong ones."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    case = {**arguments_, "case": "length:-1"}
    ordinary, bad, ignoring = _inputs(probe, torch, device, case)
    expected = reference(ignoring)
    right = as_answer(torch, expected)
    guard_rows = int(probe.parameters["guard_rows"])
    # Numbers in the guard rows, not NaN: it must show that they count, and nothing else.
    whole = between_rows(torch, bad.kv, guard_rows).nan_to_num(nan=1.0)
    moved = torch.where(ignoring.indices >= 0, ignoring.indices + guard_rows, -1)
    moved[ignoring.indices != ordinary.indices] = guard_rows - 1
    strayed = reference(replace(bad, kv=whole, indices=moved))
    kept = slice(guard_rows, guard_rows + bad.kv.shape[0])
    strayed = replace(strayed, dkv=strayed.dkv[kept])
    answers = {"right": right, "counting the row before kv": as_answer(torch, strayed)}
    facts = {
        name: _facts(torch, answer, expected, inputs=bad, damages=[])
        for name, answer in answers.items()
    }
    for name, offset in (("before", -1), ("after", bad.kv.numel())):
        with guarded_allocations(torch, device, guard_rows * 4) as guards:
            sums = torch.zeros(tuple(bad.kv.shape), dtype=torch.float32, device=device)
            outside = torch.as_strided(sums, (1,), (1,), sums.storage_offset() + offset)
            outside += 1e-3
        facts[f"writing {name} a buffer"] = _facts(
            torch, right, expected, inputs=bad, damages=guards.damages()
        )
    return facts


def _controls(probe: Session, ended: Ended) -> None:
    if ended.how != "returned":
        with probe.check("controls", step=False) as check:
            ended.result_for(check)
        return
    judged = {name: faults(facts) for name, facts in ended.value.items()}
    # A check that also refuses the right answer has caught nothing.
    fine = not judged.pop("right")
    for name, found in judged.items():
        probe.control(name, failed=found and fine, detail="; ".join(found))


def _inputs(
    probe: Session, torch: Any, device: Any, case: dict[str, Any]
) -> tuple[Inputs, Inputs, Inputs]:
    """Ordinary inputs, the same with bad indices, and these with -1 in their place.

    kv lies between guard rows in all three. The last is what a right call comes to: for the
    reference, -1 is no index wherever it stands.
    """
    kind, _, text = case["case"].partition(":")
    parameters = probe.parameters
    model = layouts.MODELS[parameters["model"]]
    kv_rows, guard_rows = int(parameters["kv_rows"]), int(parameters["guard_rows"])
    ordinary = draw(
        torch, device, case=f"{case['width']}:{kind}", seed=probe.seed,
        rows=int(parameters["rows"]), kv_rows=kv_rows, heads=model.heads, model=model,
    )  # fmt: skip
    whole = between_rows(torch, ordinary.kv, guard_rows)
    ordinary = replace(ordinary, kv=whole[guard_rows : guard_rows + kv_rows])
    values = {
        "-1": -1, "-1000": -1000, "rows": kv_rows, "rows+1000": kv_rows + 1000,
        "largest": 2**31 - 1,
    }  # fmt: skip
    # No row becomes empty: that is another probe's question. Row 1 has all K indices, and another
    # row has many.
    another = ordinary.q.shape[0] // 2
    if ordinary.lengths is not None:
        another = 2 + int(ordinary.lengths[2:].argmax().item())
    places = [(1, 0), (1, case["width"] // 2), (1, case["width"] - 1), (another, 1)]
    bad, without = ordinary.indices.clone(), ordinary.indices.clone()
    for row, column in places:
        bad[row, column] = values[text]
        without[row, column] = -1
    return ordinary, replace(ordinary, indices=bad), replace(ordinary, indices=without)


def _far(torch: Any, answer: Any, expected: Any) -> dict[str, str]:
    found = closenesses(torch, answer, expected)
    return {name: str(closeness) for name, closeness in found.items() if not closeness.within}


def _facts(
    torch: Any, answer: Any, expected: Any, *, inputs: Inputs, damages: list[str]
) -> dict[str, Any]:
    """What a parent needs to judge an answer, as JSON; `answer` is None after a refusal."""
    facts: dict[str, Any] = {
        "damages": damages[:4],
        "shapes": [],
        "far": {},
        "far_afterwards": {},
        "measure": {"buffers_written_outside_count": len(damages)},
    }
    if answer is not None:
        facts["shapes"] = shape_faults(answer, inputs)
        if not facts["shapes"]:
            facts["far"] = _far(torch, answer, expected)
    return facts
