"""Whether a gather moves every bit, and whether its backward adds up what every rank sends back."""

from __future__ import annotations

from typing import Any, Final

from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import generator
from probes.cp_ranks import Member
from probes.devices import poisoned_memory

ROWS: Final = 24
COLUMNS: Final = 32
ROUNDOFF: Final = 2.0**-8
"""Of bfloat16: largest relative error of one rounded sum."""


def name(cp_size: int) -> str:
    """The task's name."""
    return f"cp {cp_size} any numbers"


def tolerance(torch: Any, parts: Any) -> Any:
    """(rows, columns): how far a bfloat16 sum over the first dimension may lie from the right one.

    In whichever order it is made, there are `n - 1` sums, each rounded, none of them larger than
    the sum of absolute values and what rounding added to it.
    """
    steps = (len(parts) - 1) * ROUNDOFF
    return parts.double().abs().sum(dim=0) * steps / (1 - steps) + torch.finfo(torch.bfloat16).tiny


def judge(torch: Any, found: Any, parts: Any) -> str:
    """What is wrong with a sum of bfloat16 parts over the first dimension; empty if nothing."""
    right = parts.double().sum(dim=0)
    if found.dtype != parts.dtype or found.shape != right.shape:
        return f"the gradient is {found.dtype} {tuple(found.shape)}"
    error = (found.double() - right).abs()
    wrong = ~(error <= tolerance(torch, parts))  # NaN is wrong too
    count = int(wrong.sum().item())
    if not count:
        return ""
    worst = float((error / tolerance(torch, parts)).max().item())
    return f"{count} of {wrong.numel()} sums are wrong, the worst by {worst:.3g} tolerances"


def parts_of(member: Member, cp_size: int, label: str, group: int) -> Any:
    """(cp_size, cp_size * ROWS, COLUMNS): the gradient that each rank has for all gathered rows."""
    torch = member.torch
    shape = (cp_size, cp_size * ROWS, COLUMNS)
    drawn = generator(member.probe, torch, name(cp_size), label, group)
    return torch.randn(shape, generator=drawn).to(torch.bfloat16).to(member.device)


def one_case(member: Member, upstream: ContextParallel, cp_size: int) -> dict[str, Any]:
    """Each gather, forward with arbitrary bits and backward with gradients that need rounding."""
    from probes.references.one_rank import pull_back

    torch, probe = member.torch, member.probe
    group = member.groups[cp_size]
    mine = slice(group.rank * ROWS, (group.rank + 1) * ROWS)
    elements, details = 0, []
    for how, gather in upstream.gathers.items():
        drawn = generator(probe, torch, name(cp_size), how, group.number)
        bits = torch.randint(
            -(2**15), 2**15, (cp_size * ROWS, COLUMNS), generator=drawn, dtype=torch.int16
        ).to(member.device)
        parts = parts_of(member, cp_size, how, group.number)
        local = bits[mine].view(torch.bfloat16).requires_grad_()
        member.step(name(cp_size), f"{how}, forward")
        with poisoned_memory(torch), probe.tested("call", how):
            gathered = gather(local, group.handle)()
            member.wait()
        member.step(name(cp_size), f"{how}, backward")
        with poisoned_memory(torch), probe.tested("call", f"{how}, backward"):
            gradient = pull_back([gathered], [parts[group.rank]], local)
            member.wait()
        moved = gathered.detach().contiguous().view(torch.int16)
        elements += bits.numel() + gradient.numel()
        if moved.shape != bits.shape or not torch.equal(moved, bits):
            details.append(f"{how}: not every bit arrived as it was sent")
        wrong = judge(torch, gradient, parts[:, mine])
        if wrong:
            details.append(f"{how}: {wrong}")
    return {"elements": elements, "mismatches": len(details), "detail": "; ".join(details)}
