"""Are the rows that every rank's compressor reads, and their gradients, exactly right?

Drives Megatron Core's `CompressorInputCompact` (packed THD, contiguous partition) as its CSA layers
do, forward and backward through autograd: the rank's own rows (local rows, 1, hidden) and those of
its left neighbour (window, 1, hidden), int32 prefix sums, room for as many groups as callers make.
Returned are the compacted rows (room * ratio, 1, hidden) and the groups' numbers (room,) in int32;
then the gradients of both inputs. A case is `R:dtype`, compression ratio and dtype of the rows.

The rows hold arbitrary bits, NaN and denormal numbers included, since they are copied and never
computed with. Everything is compared bit for bit with a plain reference, so there is no tolerance.
All elements of all results are defined: unused rows and rows that nobody reads are zero, unused
numbers are -1. Buffers that the function allocates are poisoned first, by torch's own switch.

Room for no group at all is asked for in a child process, since no caller asks for it and it may
end in anything. It counts as right when the results are empty and the gradients zero, or when the
call is refused with an error that leaves the device usable: an ordinary call must be right after
it. How it ended is measured.

Controls: two swapped rows, a wrong number, an unused row that is not zero, a gradient in the
neighbouring row and a lost gradient of the boundary must each be noticed by the same comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from probes import children, layouts, reasons
from probes.adapters import mcore_layout
from probes.adapters.shapes import expect_parameters, member
from probes.children import Call
from probes.devices import poison_works, poisoned_memory, use_device, wait
from probes.layouts import Layout
from probes.session import Concluded, Session

PROBE: Final = {
    "id": "layout-compaction",
    "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl", "megatron-core"],
    "required": True,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 8192,
            "model": "dsv4-flash",
            "alignment": 1,
            "cases": ["4:bfloat16", "128:bfloat16"],
            "layouts": [
                "ordinary",
                "one-sequence",
                "short-sequences",
                "zero-lengths",
                "no-whole-sequence",
                "padding-rank",
            ],
            "child_limit_s": 90,
        },
        "thorough": {
            "device": "cuda",
            "cp_size": 32,
            "local_rows": 8192,
            "model": "dsv4-flash",
            "alignment": 1,
            "cases": ["4:bfloat16", "128:bfloat16", "4:float32", "128:float32"],
            "layouts": [
                "ordinary",
                "one-sequence",
                "many-sequences",
                "short-sequences",
                "zero-lengths",
                "spanning",
                "no-whole-sequence",
                "padding-rank",
                "padding-tail",
                "odd-lengths",
                "only-short",
            ],
            "child_limit_s": 180,
        },
    },
}

OUTPUTS: Final = ("compact", "groups", "own_gradient", "boundary_gradient")


@dataclass(frozen=True)
class Result:
    """Everything a caller may read."""

    compact: Any
    """(room * ratio, 1, hidden)"""
    groups: Any
    """(room,) int32"""
    own_gradient: Any
    """(rows, 1, hidden)"""
    boundary_gradient: Any
    """(boundary rows, 1, hidden)"""


@dataclass(frozen=True)
class Inputs:
    """Rows of arbitrary bits; the same for every rank and layout, since bits are only copied."""

    own: Any
    """(rows, 1, hidden)"""
    boundary: Any
    """(boundary rows, 1, hidden)"""
    gradient: Any
    """(room * ratio, 1, hidden)"""


@dataclass
class _Totals:
    rows: int = 0
    mismatches: int = 0


@dataclass(frozen=True)
class Comparison:
    """How a result compares with the reference."""

    mismatches: int
    """Elements that differ; every element of an output with the wrong form counts."""
    detail: str


def run(probe: Session) -> None:
    """Every layout and case over the ranks that tell most, no room at all, then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    function, module = _function(probe)
    totals = _Totals()
    for case in probe.parameters["cases"]:
        inputs = make_inputs(probe, torch, device, str(case))
        for name in probe.parameters["layouts"]:
            layout = _layout(probe, str(name))
            label = f"{layout.name} ratio {case}"
            with probe.check(label) as check:
                worst = Comparison(0, "")
                rows = 0
                for rank, question in _questions(probe, torch, device, layout, str(case)):
                    probe.step(f"{label} rank {rank}")
                    result = _call(
                        probe,
                        torch,
                        device=device,
                        function=function,
                        question=question,
                        inputs=inputs,
                    )
                    compared = compare(torch, result, expected(question, inputs))
                    rows += question.rows + question.capacity * question.ratio
                    if compared.mismatches > worst.mismatches:
                        worst = Comparison(compared.mismatches, f"rank {rank}: {compared.detail}")
                    totals.mismatches += compared.mismatches
                    del result
                totals.rows += rows
                check.measure["rows_compared_count"] = rows
                check.measure["sequences_count"] = len(layout.lengths)
                check.measure["worst_rank_mismatches_count"] = worst.mismatches
                check.expect(rows > 0, "probe:NoRows", "no rank was compared", status="error")
                check.expect(worst.mismatches == 0, "numerics", worst.detail)
    probe.measure(
        rows_compared_count=totals.rows,
        mismatches_count=totals.mismatches,
        compiles_count=len(getattr(module, "_COMPILED_LAUNCH_CACHE", ())),
        poison_reaches_buffers=poison_works(torch, device),
    )
    _no_room_part(probe)
    _controls(probe, torch, device)


def _function(probe: Session) -> tuple[Any, Any]:
    """The function under test and its module."""
    probe.load("nvidia-cutlass-dsl")
    module = mcore_layout.load(probe)
    function = member(module, "CompressorInputCompact")
    expect_parameters("CompressorInputCompact", function.forward, mcore_layout.COMPACT_PARAMETERS)
    return function, module


def _layout(probe: Session, name: str) -> Layout:
    return layouts.make(
        name,
        seed=probe.seed,
        cp_size=int(probe.parameters["cp_size"]),
        local_rows=int(probe.parameters["local_rows"]),
        alignment=int(probe.parameters["alignment"]),
    )


def _questions(
    probe: Session, torch: Any, device: Any, layout: Layout, case: str
) -> Iterator[tuple[int, Any]]:
    """A question for each telling rank of a layout."""
    from probes.references.compaction import Question

    ratio = int(case.partition(":")[0])
    compressed = layouts.compress(layout, ratio)
    model = layouts.MODELS[probe.parameters["model"]]
    cu_seqlens = torch.tensor(layout.cu_seqlens, dtype=torch.int64, device=device)
    for rank in layout.telling_ranks():
        yield (
            rank,
            Question(
                cu_seqlens=cu_seqlens,
                first_row=layout.rank_rows(rank).start,
                rows=layout.local_rows,
                boundary=max(model.window, compressed.overlap),
                ratio=ratio,
                overlap=compressed.overlap,
                capacity=compressed.capacity,
            ),
        )


def make_inputs(probe: Session, torch: Any, device: Any, case: str) -> Inputs:
    """Arbitrary bits, drawn on the CPU so that a seed means one input on every machine."""
    text, _, name = case.partition(":")
    ratio, dtype = int(text), getattr(torch, name)
    model = layouts.MODELS[probe.parameters["model"]]
    rows = int(probe.parameters["local_rows"])
    # Only the sizes are needed, and they do not depend on the sequences.
    compressed = layouts.compress(
        Layout("sizes", int(probe.parameters["cp_size"]), rows, (0,)), ratio
    )
    boundary = max(model.window, compressed.overlap)
    random = torch.Generator().manual_seed(probe.seed)
    whole = _whole(torch, dtype)
    most = torch.iinfo(whole)

    def bits(count: int) -> Any:
        shape = (count, 1, model.hidden)
        drawn = torch.randint(most.min, most.max, shape, generator=random, dtype=whole)
        return drawn.to(device).view(dtype)

    return Inputs(bits(rows), bits(boundary), bits(compressed.capacity * ratio))


def _whole(torch: Any, dtype: Any) -> Any:
    """The integers of a dtype's size."""
    return {2: torch.int16, 4: torch.int32}[dtype.itemsize]


def _call(
    probe: Session, torch: Any, *, device: Any, function: Any, question: Any, inputs: Inputs
) -> Result:
    """Forward and backward, the way the function's caller does it."""
    own = inputs.own.detach().requires_grad_()
    boundary = inputs.boundary.detach().requires_grad_()
    cu_seqlens = question.cu_seqlens.to(torch.int32)
    with poisoned_memory(torch):
        with probe.tested("call", "CompressorInputCompact, forward"):
            compact, groups = function.apply(
                own,
                boundary,
                cu_seqlens,
                question.first_row,
                question.ratio,
                question.overlap,
                question.capacity,
            )
            wait(torch, device)
        with probe.tested("call", "CompressorInputCompact, backward"):
            gradient = inputs.gradient[: compact.shape[0]]
            gradients = torch.autograd.grad(compact, (own, boundary), gradient)
            wait(torch, device)
    return Result(compact.detach(), groups, *gradients)


def expected(question: Any, inputs: Inputs) -> Result:
    """What the reference makes of it."""
    from probes.references import compaction

    plan = compaction.plan(question)
    own, boundary = compaction.backward(
        plan,
        inputs.gradient[: len(plan.source)],
        rows=question.rows,
        boundary=question.boundary,
    )
    return Result(compaction.forward(plan, inputs.own, inputs.boundary), plan.groups, own, boundary)


def compare(torch: Any, result: Result, wanted: Result) -> Comparison:
    """Compare two results bit for bit: form first, then every element."""
    total = 0
    details = []
    for name in OUTPUTS:
        found, right = getattr(result, name), getattr(wanted, name)
        if found is None or found.dtype != right.dtype or found.shape != right.shape:
            total += max(1, right.numel())
            form = "missing" if found is None else f"{found.dtype} {tuple(found.shape)}"
            details.append(f"{name} is {form}")
            continue
        whole = _whole(torch, right.dtype)
        wrong = found.contiguous().view(whole) != right.contiguous().view(whole)
        count = int(wrong.sum().item())
        if count:
            total += count
            rows = wrong.flatten(1).any(dim=1) if wrong.ndim > 1 else wrong
            details.append(
                f"{name}: {count} of {right.numel()} differ, in {int(rows.sum().item())} rows, "
                f"the first {int(rows.nonzero()[0].item())}"
            )
    return Comparison(total, "; ".join(details))


def _no_room_part(probe: Session) -> None:
    """Room for no group, in a child."""
    with probe.check("capacity 0") as check:
        call = Call(
            "layout-compaction", "no_room", limit_s=float(probe.parameters["child_limit_s"])
        )
        facts = children.run(probe, call).result_for(check)
        if facts is None:
            return
        check.measure["capacity_0"] = facts["outcome"]
        check.measure["refused"] = facts["refused"]
        check.expect(facts["mismatches"] == 0, "numerics", facts["detail"])
        check.expect(
            facts["mismatches_afterwards"] == 0,
            "numerics",
            f"an ordinary call after it: {facts['detail_afterwards']}",
        )


def no_room(probe: Session, _arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs in a child: ask for no room, then something ordinary.

    Returns:
        How it ended, and the mismatches of both calls.

    Raises:
        Concluded: an error came back after which the device can't be used.
    """
    torch = probe.load("torch")
    device = use_device(probe, torch)
    function, _ = _function(probe)
    case = str(probe.parameters["cases"][0])
    inputs = make_inputs(probe, torch, device, case)
    layout = _layout(probe, "one-sequence")
    *_, (_, ordinary) = _questions(probe, torch, device, layout, case)
    # A rank of padding alone has no group to list, so that nothing is all there is to return.
    nothing = replace(ordinary, cu_seqlens=ordinary.cu_seqlens.new_zeros(2), capacity=0)

    def ask(question: Any) -> Result:
        return _call(
            probe, torch, device=device, function=function, question=question, inputs=inputs
        )

    probe.step("no room")
    compared = Comparison(0, "")
    refused = False
    try:
        result = ask(nothing)
    except Concluded as concluded:
        if concluded.verdict.status != "fail" or concluded.verdict.reason in reasons.STICKY:
            raise
        refused = True
        outcome = f"{concluded.verdict.reason}: {concluded.verdict.detail}"
    else:
        outcome = "empty results"
        compared = compare(torch, result, expected(nothing, inputs))
    probe.step("an ordinary call after it")
    result = ask(ordinary)
    afterwards = compare(torch, result, expected(ordinary, inputs))
    return {
        "outcome": outcome[:200],
        "refused": refused,
        "mismatches": compared.mismatches,
        "detail": compared.detail,
        "mismatches_afterwards": afterwards.mismatches,
        "detail_afterwards": afterwards.detail,
    }


def _controls(probe: Session, torch: Any, device: Any) -> None:
    """Plant faults into right results and compare them with the right results."""
    probe.step("controls")
    case = str(probe.parameters["cases"][0])
    inputs = make_inputs(probe, torch, device, case)
    layout = _layout(probe, "spanning")
    questions = list(_questions(probe, torch, device, layout, case))

    # Rank 1 lies inside a long sequence, so it reads rows of its left neighbour.
    rank, question = next(item for item in questions if layout.starts_inside_sequence(item[0]))
    result = expected(question, inputs)
    swapped = result.compact.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    numbers = result.groups.clone()
    numbers[0] += 1
    stale = result.compact.clone()
    stale[-1] = inputs.own[-1]
    moved = result.own_gradient.roll(1, dims=0)
    wrong = {
        "two swapped rows": replace(result, compact=swapped),
        "a wrong number": replace(result, groups=numbers),
        "an unused row that is not zero": replace(result, compact=stale),
        "gradients one row too far": replace(result, own_gradient=moved),
        "no gradient of the boundary": replace(
            result, boundary_gradient=torch.zeros_like(result.boundary_gradient)
        ),
    }
    fine = not compare(torch, result, expected(question, inputs)).mismatches
    for name, planted in wrong.items():
        noticed = compare(torch, planted, result)
        # A check that also refuses the right answer has caught nothing.
        probe.control(
            name, failed=noticed.mismatches and fine, detail=f"rank {rank}: {noticed.detail}"
        )
