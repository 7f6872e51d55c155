"""Does the sparse attention backward stand rows that select no key?

Drives cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` as `sparse-backward` does, with
bfloat16 data (rows, heads, 512) and (buffer rows, 512) and an int32 index table of width K. A row
is empty in one of two ways: `length` gives per-row lengths, of which that row's is 0 and its
indices are -1; `holes` gives no lengths and all of that row's indices are -1. Its `out` is zero and
its `lse` plus infinity, which is what Megatron Core's forward, FlashMLA, leaves there. Empty are
some rows, all rows, the first row, or the last.

Every gradient must be finite, dq of an empty row exactly zero, and all three gradients must match
the float32 reference within the tolerances of `probes/sparse_gradients.py`, where a row of kv that
nobody lists has none. The call must come back: in some releases one empty row leaves half a block
waiting for the other half for ever. So each case is a process of its own. It first makes an
ordinary call of the same form, which compiles the kernels, and then has `limit_s` seconds for the
call with empty rows, which takes milliseconds where it works. A case that hangs is a `timeout` and
hides no other.

Controls: an answer with a NaN in an empty row of dq, one with a number there, and one with a NaN in
a row of dkv that nobody lists must each be noticed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from probes import children, layouts
from probes.adapters import fe_backward
from probes.children import Call, Ended
from probes.devices import poisoned_memory, use_device, wait
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
    "id": "empty-rows",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 420,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 70,
            "kv_rows": 600,
            "widths": [128],
            "kinds": ["length", "holes"],
            "places": ["some", "all", "first", "last"],
            "limit_s": 15,
            "at_once": 8,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "rows": 500,
            "kv_rows": 6000,
            "widths": [128, 640, 200],
            "kinds": ["length", "holes"],
            "places": ["some", "all", "first", "last"],
            "limit_s": 25,
            "at_once": 8,
        },
    },
}

ORDINARY: Final = "an ordinary call of the same form"
EMPTY: Final = "the call with empty rows"
PREPARING_S: Final = 150.0
"""Longest time for importing, and for compiling, where several processes do so at once."""


def run(probe: Session) -> None:
    """Every case in a child, some at a time; then what each came to."""
    probe.require("nvidia-cudnn-frontend")
    parameters = probe.parameters
    cases = [
        {"width": int(width), "kind": kind, "place": place}
        for width in parameters["widths"]
        for kind in parameters["kinds"]
        for place in parameters["places"]
    ]
    calls = [_call("one_case", _name(case), case, float(parameters["limit_s"])) for case in cases]
    calls.append(_call("wrong_answers", "controls", cases[0], PREPARING_S))
    *found, controls = children.run_all(probe, calls, at_once=int(parameters["at_once"]))
    for case, ended in zip(cases, found, strict=True):
        _judge(probe, _name(case), ended)
    _controls(probe, controls)


def _name(case: dict[str, Any]) -> str:
    return f"K={case['width']} {case['kind']}: {case['place']}"


def _call(function: str, name: str, case: dict[str, Any], limit_s: float) -> Call:
    return Call(
        "empty-rows",
        function,
        case,
        name=name,
        limit_s=PREPARING_S,
        step_limits_s={EMPTY: limit_s},
    )


def _judge(probe: Session, name: str, ended: Ended) -> None:
    with probe.check(name, step=False) as check:
        check.measure["call_s"] = ended.step_seconds.get(EMPTY)
        facts = ended.result_for(check)
        if facts is None:
            return
        check.measure.update(facts["measure"])
        found = faults(facts)
        check.expect(not found, "numerics", "; ".join(found))


def faults(facts: dict[str, Any]) -> list[str]:
    """What is wrong with an answer; nothing for a right one."""
    found = list(facts["shapes"])
    found += [f"{name} is not finite" for name in facts["not_finite"]]
    if facts["nonzero_rows"]:
        found.append(f"dq is not zero in {facts['nonzero_rows']} empty rows")
    return found + [f"{name}: {how}" for name, how in facts["far"].items()]


def one_case(probe: Session, arguments_: dict[str, Any]) -> dict[str, Any]:
    """In a child: an ordinary call, then the one with empty rows, and what it gave."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    backward = fe_backward.wrapper(probe)
    ordinary = _ordinary(probe, torch, device, arguments_)
    emptied, empty = _emptied(torch, ordinary, arguments_, probe.seed)
    for step, inputs in ((ORDINARY, ordinary), (EMPTY, emptied)):
        expected = reference(inputs)
        keywords = arguments(torch, inputs, expected)
        wait(torch, device)
        probe.step(step)
        with probe.tested("call", step), poisoned_memory(torch):
            answer = backward(**keywords)
            wait(torch, device)
    probe.step("compare")
    return _facts(torch, answer, expected, inputs=emptied, empty=empty)


def wrong_answers(probe: Session, arguments_: dict[str, Any]) -> dict[str, Any]:
    """In a child: what the comparison makes of a right answer and of wrong ones."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    ordinary = _ordinary(probe, torch, device, arguments_)
    inputs, empty = _emptied(torch, ordinary, {**arguments_, "place": "some"}, probe.seed)
    # Nobody lists row 0 of kv.
    inputs = replace(inputs, indices=inputs.indices.masked_fill(inputs.indices == 0, -1))
    expected = reference(inputs)
    right = as_answer(torch, expected)
    row = int(empty.nonzero()[0, 0].item())
    nan, number, stray = ({key: tensor.clone() for key, tensor in right.items()} for _ in range(3))
    nan["dq"][row, 0, 0] = math.nan
    number["dq"][row, 0, 0] = 2.0**-20
    stray["dkv"][0] = math.nan
    answers = {
        "right": right,
        "a NaN in an empty row of dq": nan,
        "a number in an empty row of dq": number,
        "a NaN in a row of dkv that nobody lists": stray,
    }
    return {
        name: _facts(torch, answer, expected, inputs=inputs, empty=empty)
        for name, answer in answers.items()
    }


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


def _ordinary(probe: Session, torch: Any, device: Any, case: dict[str, Any]) -> Inputs:
    model = layouts.MODELS[probe.parameters["model"]]
    return draw(
        torch,
        device,
        case=f"{case['width']}:{case['kind']}",
        seed=probe.seed,
        rows=int(probe.parameters["rows"]),
        kv_rows=int(probe.parameters["kv_rows"]),
        heads=model.heads,
        model=model,
    )


def _emptied(torch: Any, inputs: Inputs, case: dict[str, Any], seed: int) -> tuple[Inputs, Any]:
    """The same inputs with empty rows, and which rows are empty, (rows,) bool."""
    rows = inputs.q.shape[0]
    device = inputs.q.device
    empty = torch.zeros(rows, dtype=torch.bool)
    place = case["place"]
    if place == "some":
        empty = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.3
        empty[rows // 2 : rows // 2 + 2] = True  # neighbours, too
        empty[0] = empty[-1] = False
    elif place == "all":
        empty[:] = True
    elif place in ("first", "last"):
        empty[0 if place == "first" else -1] = True
    else:
        raise ValueError(f"no such place for empty rows: {place}")
    empty = empty.to(device)
    indices = inputs.indices.masked_fill(empty[:, None], -1)
    lengths = None if inputs.lengths is None else inputs.lengths.masked_fill(empty, 0)
    return replace(inputs, indices=indices, lengths=lengths), empty


def _facts(torch: Any, answer: Any, expected: Any, *, inputs: Inputs, empty: Any) -> dict[str, Any]:
    """What a parent needs to judge an answer, as JSON."""
    facts: dict[str, Any] = {
        "shapes": shape_faults(answer, inputs),
        "not_finite": [],
        "nonzero_rows": 0,
        "far": {},
        "measure": {"empty_rows_count": int(empty.sum().item())},
    }
    if facts["shapes"]:
        return facts
    names = ("dq", "dkv", "d_sink")
    facts["not_finite"] = [n for n in names if not bool(answer[n].isfinite().all().item())]
    # A NaN is not zero either.
    nonzero = (answer["dq"] != 0).flatten(1).any(dim=1) & empty
    facts["nonzero_rows"] = int(nonzero.sum().item())
    for name, closeness in closenesses(torch, answer, expected).items():
        facts["measure"][f"{name}_relative_error"] = closeness.relative_error
        if not closeness.within:
            facts["far"][name] = str(closeness)
    return facts
