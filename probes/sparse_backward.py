"""Are the gradients of sparse attention right, for every width and with or without lengths?

Drives cuDNN Frontend's `DSA.sparse_attention_backward_wrapper` by keyword, as Megatron Core's
sparse attention does: q, out and dout (rows, heads, 512) and kv (buffer rows, 512) in bfloat16,
lse (rows, heads) and the sinks (heads,) in float32, indices (rows, K) in int32, and per-row
lengths or none. `out` and `lse` come from our own forward. A case is `K:kind`: `length` gives each
row a random number of indices, then -1, and their number; `holes` gives no lengths and -1 in
random places; `full` gives no lengths and K indices. No row is empty here.

The reference is float32 automatic differentiation of our own forward, from the same bfloat16
inputs. Tolerances: bfloat16 keeps 8 bits, so one rounding is off by at most u = 2^-9 of the value.
On the way to a result lie four of them at most: `out`, read to make D = sum(out * dout); P or dS
before a product; and the result itself. They do not all add up in one direction, but a bound of
8 u = 2^-6 on the relative Frobenius error of each row of dq and dkv, and of d_sink as a whole,
leaves room for all of them twice; sums are float32 and add nothing of note. A single element may
be off by 32 u of the root mean square of its row (of its head in the row, where that is more), and
one far above that mean by 8 u of itself: rounding errors come to about u of the mean, but some 10^7
of them are drawn, and where few indices make a row they add up in step. These roundings, emulated
on a CPU, stay below 3 u by row and 12 u by element. A row of kv that nobody lists must have no
gradient at all. Sinks are drawn around log K, where they take half of the weight, so that leaving
them out shows.

dq must come out the same, bit for bit, when the call is repeated: each of its elements is made by
one block. dkv and d_sink are summed by atomics, in any order.

Controls: one row's indices shifted by one, two rows of dq swapped, and a missing sink must each be
noticed by the same comparison.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward
from probes.devices import poison_works, poisoned_memory, use_device, wait
from probes.session import Check, Session

PROBE: Final = {
    "id": "sparse-backward",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 420,
    "parameters": {
        "quick": {
            "device": "cuda",
            "rows": 200,
            "kv_rows": 3000,
            "model": "dsv4-flash",
            "heads": [64],
            "cases": ["640:length", "128:length", "640:holes", "200:length"],
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
        },
    },
}

UNIT: Final = 2.0**-9
ROW_TOLERANCE: Final = 8 * UNIT
ELEMENT_TOLERANCE: Final = 32 * UNIT
# Of the whole gradient's root mean square: what a sum of float32 numbers may leave where the
# exact sum is nothing. Far below any row that is listed even once.
NOTHING: Final = 2.0**-20


@dataclass(frozen=True)
class Inputs:
    """One batch. bfloat16 but for the float32 sinks and the int32 indices and lengths."""

    q: Any
    kv: Any
    dout: Any
    sink: Any
    indices: Any
    lengths: Any | None
    scale: float


@dataclass(frozen=True)
class Closeness:
    """How far a gradient is from its reference; a NaN makes every number infinite."""

    relative_error: float
    """Frobenius norm of the difference by that of the reference."""
    worst_row: float
    """Largest such ratio of a row, all heads of it together."""
    worst_element: float
    """Largest difference of an element by what it is measured with: the root mean square of its
    row, that of its head in the row, or a quarter of the element, whichever is most."""

    @property
    def within(self) -> bool:
        return self.worst_row <= ROW_TOLERANCE and self.worst_element <= ELEMENT_TOLERANCE


def run(probe: Session) -> None:
    """Every number of heads and case, the ordinary ones first, then the controls."""
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    backward = fe_backward.wrapper(probe)
    probe.measure(poison_reaches_buffers=poison_works(torch, device))
    heads = [int(number) for number in probe.parameters["heads"]]
    for number in heads:
        for case in probe.parameters["cases"]:
            with probe.check(f"heads {number} K:{case}") as check:
                inputs = make_inputs(probe, torch, device, number, str(case))
                _check(probe, torch, device=device, backward=backward, inputs=inputs, check=check)
    first = str(probe.parameters["cases"][0])
    _controls(probe, torch, make_inputs(probe, torch, device, heads[0], first))


def make_inputs(probe: Session, torch: Any, device: Any, heads: int, case: str) -> Inputs:
    """Fresh random inputs; drawn on the CPU, so that a seed means one input on every machine."""
    text, _, kind = case.partition(":")
    width = int(text)
    rows, kv_rows = int(probe.parameters["rows"]), int(probe.parameters["kv_rows"])
    model = layouts.MODELS[probe.parameters["model"]]
    dim = model.head_dim
    random = torch.Generator().manual_seed(probe.seed)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random).to(torch.bfloat16).to(device)

    q, kv, dout = normal(rows, heads, dim), normal(kv_rows, dim), normal(rows, heads, dim)
    sink = math.log(width) - 1 + 2 * torch.rand(heads, generator=random)
    # A random order of the buffer's rows for each row: no index comes twice.
    indices = torch.rand(rows, kv_rows, generator=random).argsort(dim=1)[:, :width]
    lengths = None
    if kind == "length":
        lengths = torch.randint(1, width + 1, (rows,), generator=random)
        lengths[:2] = torch.tensor([1, width])
        indices = torch.where(torch.arange(width) < lengths[:, None], indices, -1)
        lengths = lengths.to(torch.int32).to(device)
    elif kind == "holes":
        holes = torch.rand(rows, width, generator=random) < 0.25
        holes[:, width // 2] = False  # no row is empty
        indices = torch.where(holes, -1, indices)
    elif kind != "full":
        raise ValueError(f"no such kind of case: {case}")
    indices = indices.to(torch.int32).contiguous().to(device)
    return Inputs(q, kv, dout, sink.float().to(device), indices, lengths, model.softmax_scale)


def _check(
    probe: Session, torch: Any, *, device: Any, backward: Any, inputs: Inputs, check: Check
) -> None:
    expected = reference(torch, inputs)
    out = expected.out.to(torch.bfloat16)
    lse = expected.lse.float().contiguous()
    results = []
    for attempt in ("first", "repeated"):
        started = time.perf_counter()
        with probe.tested("call", f"sparse_attention_backward_wrapper, {attempt} call"):
            with poisoned_memory(torch):
                answer = backward(
                    q=inputs.q,
                    kv=inputs.kv,
                    out=out,
                    dout=inputs.dout,
                    lse=lse,
                    attn_sink=inputs.sink,
                    topk_idxs=inputs.indices,
                    softmax_scale=inputs.scale,
                    topk_length=inputs.lengths,
                )
                wait(torch, device)
            results.append({name: answer[name].clone() for name in ("dq", "dkv", "d_sink")})
            wait(torch, device)
        check.measure[f"{attempt}_call_s"] = round(time.perf_counter() - started, 4)
    # The first call compiles, the repeated one does not.
    check.measure["compile_s"] = round(
        check.measure["first_call_s"] - check.measure["repeated_call_s"], 3
    )
    forms = {"dq": inputs.q, "dkv": inputs.kv, "d_sink": inputs.sink}
    for name, like in forms.items():
        found = results[0][name]
        check.expect(
            found.shape == like.shape and found.dtype == like.dtype,
            "numerics",
            f"{name} is {found.dtype} {tuple(found.shape)}",
        )
    if check.verdict.status != "pass":
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


def reference(torch: Any, inputs: Inputs) -> Any:
    """Forward and gradients in float32 from the same inputs."""
    from probes.references.sparse_attention import gradients

    return gradients(
        inputs.q,
        inputs.kv,
        inputs.sink,
        indices=inputs.indices,
        lengths=inputs.lengths,
        dout=inputs.dout,
        scale=inputs.scale,
    )


def closenesses(torch: Any, found: Any, expected: Any) -> dict[str, Closeness]:
    """Compare the three gradients; `found` by name, `expected` by attribute."""
    return {
        "dq": closeness(torch, found["dq"], expected.dq),
        "dkv": closeness(torch, found["dkv"][:, None], expected.dkv[:, None]),
        "d_sink": closeness(torch, found["d_sink"][None, None], expected.d_sink[None, None]),
    }


def closeness(torch: Any, found: Any, expected: Any) -> Closeness:
    """Compare a gradient, given as (rows, heads, elements), with its reference."""
    wanted = expected.double()
    difference = found.double() - wanted
    if not bool(difference.isfinite().all().item()):
        return Closeness(math.inf, math.inf, math.inf)
    floor = wanted.square().mean().sqrt().clamp_min(torch.finfo(torch.float32).tiny) * NOTHING
    row = wanted.square().mean(dim=(1, 2), keepdim=True).sqrt().maximum(floor)
    off = difference.square().mean(dim=(1, 2), keepdim=True).sqrt()
    head = wanted.square().mean(dim=2, keepdim=True).sqrt()
    scale = row.maximum(head).maximum(wanted.abs() / 4)
    whole = difference.norm() / wanted.norm().maximum(floor)
    return Closeness(
        whole.item(), (off / row).max().item(), (difference.abs() / scale).max().item()
    )


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors are the same bit for bit, NaN and signs of zero included."""
    whole = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(torch.equal(one.contiguous().view(whole), other.contiguous().view(whole)))


def _controls(probe: Session, torch: Any, inputs: Inputs) -> None:
    """Give wrong answers, made by the reference and rounded as a kernel's are, to the check."""
    probe.step("controls")
    expected = reference(torch, inputs)
    right = _as_answer(torch, expected)
    row = inputs.indices.shape[0] // 2
    shifted = inputs.indices.clone()
    shifted[row] = torch.where(
        shifted[row] >= 0, (shifted[row] + 1) % inputs.kv.shape[0], shifted[row]
    )
    nothing = torch.full_like(inputs.sink, -math.inf)
    swapped = right["dq"].clone()
    swapped[[row, row + 1]] = right["dq"][[row + 1, row]]
    wrong = {
        "one row's indices shifted": _as_answer(
            torch, reference(torch, replace(inputs, indices=shifted))
        ),
        "two rows of dq swapped": {**right, "dq": swapped},
        "no sink": _as_answer(torch, reference(torch, replace(inputs, sink=nothing))),
    }
    fine = all(item.within for item in closenesses(torch, right, expected).values())
    for name, answer in wrong.items():
        judged = closenesses(torch, answer, expected)
        noticed = [key for key, item in judged.items() if not item.within]
        # A check that also refuses the right answer has caught nothing.
        probe.control(name, failed=noticed and fine, detail=f"noticed in {', '.join(noticed)}")


def _as_answer(torch: Any, made: Any) -> dict[str, Any]:
    return {
        "dq": made.dq.to(torch.bfloat16),
        "dkv": made.dkv.to(torch.bfloat16),
        "d_sink": made.d_sink.float(),
    }
