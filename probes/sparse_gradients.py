"""Inputs for sparse attention's gradients, and how close a gradient is to its reference.

Shared by the probes that drive a sparse attention. A case is `K:kind`: `length` gives each row a
random number of indices, then -1, and their number; `holes` gives no lengths and -1 in random
places; `full` gives no lengths and K indices. No row is empty.

Tolerances: bfloat16 keeps 8 bits, so one rounding is off by at most u = 2^-9 of the value. On the
way to a gradient lie four of them at most: `out`, read to make D = sum(out * dout); P or dS before
a product; and the result itself. They do not all add up in one direction, but a bound of 8 u = 2^-6
on the relative Frobenius error of each row of dq and dkv, and of d_sink as a whole, leaves room for
all of them twice; sums are float32 and add nothing of note. A single element may be off by 32 u of
the root mean square of its row (of its head in the row, where that is more), and one far above that
mean by 8 u of itself: rounding errors come to about u of the mean, but some 10^7 of them are drawn,
and where few indices make a row they add up in step. These roundings, emulated on a CPU, stay below
3 u by row and 12 u by element. A row of kv that nobody lists must have no gradient at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from probes.layouts import Model

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
    """(rows, heads, dim)"""
    kv: Any
    """(buffer rows, dim)"""
    dout: Any
    """(rows, heads, dim)"""
    sink: Any
    """(heads,)"""
    indices: Any
    """(rows, K)"""
    lengths: Any | None
    """(rows,)"""
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


def draw(
    torch: Any, device: Any, *, case: str, seed: int, rows: int, kv_rows: int, heads: int,
    model: Model,
) -> Inputs:  # fmt: skip
    """Fresh random inputs; drawn on the CPU, so that a seed means one input on every machine.

    Args:
        torch: the module.
        device: where the inputs are put.
        case: `K:kind`, as above.
        seed: of everything drawn.
        rows: of q.
        kv_rows: of the buffer that indices point into; at least K.
        heads: of q.
        model: gives the size of a head and the scale.

    Raises:
        ValueError: the case has an unknown kind.
    """
    text, _, kind = case.partition(":")
    width = int(text)
    dim = model.head_dim
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random).to(torch.bfloat16).to(device)

    q, kv, dout = normal(rows, heads, dim), normal(kv_rows, dim), normal(rows, heads, dim)
    # Around log K, where a sink takes half of the weight, so that leaving it out shows.
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


def reference(inputs: Inputs) -> Any:
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


def arguments(torch: Any, inputs: Inputs, expected: Any) -> dict[str, Any]:
    """Keywords of a sparse attention backward: the inputs, `out` and `lse` of the reference."""
    return {
        "q": inputs.q,
        "kv": inputs.kv,
        "out": expected.out.to(torch.bfloat16),
        "dout": inputs.dout,
        "lse": expected.lse.float().contiguous(),
        "attn_sink": inputs.sink,
        "topk_idxs": inputs.indices,
        "softmax_scale": inputs.scale,
        "topk_length": inputs.lengths,
    }


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


def shape_faults(found: Any, inputs: Inputs) -> list[str]:
    """What is wrong with the shapes and dtypes of the three gradients."""
    forms = {"dq": inputs.q, "dkv": inputs.kv, "d_sink": inputs.sink}
    return [
        f"{name} is {found[name].dtype} {tuple(found[name].shape)}"
        for name, like in forms.items()
        if found[name].shape != like.shape or found[name].dtype != like.dtype
    ]


def same_bits(torch: Any, one: Any, other: Any) -> bool:
    """Whether two tensors are the same bit for bit, NaN and signs of zero included."""
    whole = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(torch.equal(one.contiguous().view(whole), other.contiguous().view(whole)))


def as_answer(torch: Any, made: Any) -> dict[str, Any]:
    """The reference's gradients, rounded as a kernel's are."""
    return {
        "dq": made.dq.to(torch.bfloat16),
        "dkv": made.dkv.to(torch.bfloat16),
        "d_sink": made.d_sink.float(),
    }
