"""Wrong indices and attention of a group, which the comparisons of `cp-group` must notice.

Right results are the reference's own, in small sizes and on the CPU: what is tested here is the
comparison, not a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from probes import cp_attention, cp_lowering, layout_indices
from probes.cp_cases import Case
from probes.session import Session

PARAMETERS: Final = {"local_rows": 64, "model": "tiny"}
CASE: Final = Case(2, "one-sequence", 4)


@dataclass
class Small:
    """A session as cases see it, with small sizes; what it says goes to the real one."""

    probe: Session
    size: int = 2
    parameters: dict[str, Any] = field(default_factory=lambda: dict(PARAMETERS))

    @property
    def seed(self) -> int:
        return self.probe.seed

    def step(self, name: str) -> None:
        self.probe.step(name)

    def control(self, name: str, *, failed: Any, detail: str | None = None) -> None:
        self.probe.control(name, failed=failed, detail=detail)


@dataclass(frozen=True)
class _Nobody:
    """A member as far as references need one."""

    probe: Any
    torch: Any
    device: Any


def controls(small: Small, torch: Any) -> None:
    """Plant faults into right results and compare them with the right results."""
    member: Any = _Nobody(small, torch, torch.device("cpu"))
    _of_indices(small, member)
    _of_attention(small, member)


def _of_indices(small: Small, member: Any) -> None:
    from probes.references.layout_indices import attention_indices

    torch = member.torch
    question = cp_lowering.question_of(member, CASE, rank=1, cp_size=2, mode=1, chosen=None)
    right = attention_indices(question)
    moved = right.indices.clone()
    moved[0, 0] += 1
    noticed = layout_indices.compare(torch, replace(right, indices=moved), right)
    fine = not layout_indices.compare(torch, attention_indices(question), right).mismatches
    small.control(
        "an index moved to its neighbour", failed=noticed.mismatches and fine, detail=noticed.detail
    )


def _of_attention(small: Small, member: Any) -> None:
    torch = member.torch
    inputs = cp_attention.draw(member, CASE, 0)
    rank, rows = 1, slice(small.parameters["local_rows"], None)
    right = cp_attention.expected(member, CASE, rank, inputs)
    x = inputs.x.clone()
    x[: rows.start] = 0
    other = inputs.chosen
    assert other is not None
    swapped = torch.cat((other[rows], other[: rows.start]))
    alone = inputs.dout.clone()
    alone[rows] = 0
    first = cp_attention.expected(member, CASE, 0, inputs)
    without = cp_attention.expected(member, CASE, 0, replace(inputs, dout=alone))

    def judge(found: Any, wanted: Any) -> str:
        inside = inputs.inside[rows]
        return "; ".join(cp_attention.compare(torch, found, wanted, inside=inside, cp_size=2))

    planted = {
        "an attention without the left neighbour's rows": (
            cp_attention.expected(member, CASE, rank, replace(inputs, x=x)),
            right,
        ),
        "another rank's chosen groups": (
            cp_attention.expected(member, CASE, rank, replace(inputs, chosen=swapped)),
            right,
        ),
        # The right neighbour's share in the gradient of the left one's rows.
        "a share of a gradient missing": ({**first, "dx": without["dx"]}, first),
    }
    fine = not judge({**right, "out": right["out"].to(torch.bfloat16)}, right)
    for name, (found, wanted) in planted.items():
        noticed = judge(found, wanted)
        small.control(name, failed=noticed and fine, detail=noticed)
