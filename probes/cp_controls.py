"""Wrong results of a context-parallel group, which the comparisons must notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from probes import cp_cases, cp_sums, cp_top_k
from probes.cp_cases import Case


def controls(probe: Any, torch: Any, size: int) -> None:
    """Plant faults into right results and compare them with the right results.

    Args:
        probe: the session, or what has a seed, parameters, `step` and `control` as one has.
        torch: the module.
        size: of the group.
    """
    from probes.references import one_rank

    probe.step("controls")
    case = Case(size, "one-sequence", cp_top_k.RATIO)
    cpu = torch.device("cpu")
    batch = cp_cases.batch_of(probe, torch, cpu, case)

    def layer(number: int) -> cp_cases.Layer:
        return cp_cases.layer_of(probe, torch, cpu, case=case, batch=batch, number=number, group=0)

    def right(rank: int, made: cp_cases.Layer) -> dict[str, Any]:
        return cp_cases.right_results(probe, torch, case=case, batch=batch, layer=made, rank=rank)

    first, rank = layer(0), size - 2  # it has a right neighbour, and a left one if size allows
    wanted = right(rank, first)
    wrong_way = first.x[(rank + 1) * batch.rows :][: batch.boundary]
    arriving = first.arriving
    lonely = replace(first, arriving=one_rank.without_boundaries(arriving))
    fewer = replace(arriving, gathered=arriving.gathered[:-1])
    short = replace(first, arriving=fewer)
    planted = {
        "two ranks swapped": right(rank + 1, first),
        "a boundary from the wrong neighbour": {**wanted, "boundary": wrong_way},
        "a gradient of a boundary not added": {
            **wanted,
            "gradient": right(rank, lonely)["gradient"],
        },
        "a rank's share missing": {**wanted, "gradient": right(rank, short)["gradient"]},
        "another layer's buffer": {**wanted, "gathered": right(rank, layer(1))["gathered"]},
    }
    fine = not cp_cases.difference(torch, right(rank, first), wanted).mismatches
    for name, found in planted.items():
        noticed = cp_cases.difference(torch, found, wanted)
        # A check that also refuses the right answer has caught nothing.
        probe.control(
            name, failed=noticed.mismatches and fine, detail=f"rank {rank}: {noticed.detail}"
        )
    _control_of_sums(probe, torch, size)
    _control_of_choices(probe, torch)


def _control_of_sums(probe: Any, torch: Any, size: int) -> None:
    drawn = cp_cases.generator(probe, torch, "control")
    parts = torch.randn((size, cp_sums.ROWS, cp_sums.COLUMNS), generator=drawn).to(torch.bfloat16)
    right = parts.double().sum(dim=0).to(torch.bfloat16)
    noticed = cp_sums.judge(torch, right - parts[-1], parts)
    fine = not cp_sums.judge(torch, right, parts)
    probe.control("a rank's share missing, rounded", failed=noticed and fine, detail=noticed)


def _control_of_choices(probe: Any, torch: Any) -> None:
    from probes.references.indexer import Scores

    values = torch.arange(12.0).repeat(3, 1)
    scores = Scores(values, torch.ones_like(values))
    right = torch.arange(8, 12, dtype=torch.int32).repeat(3, 1)
    wrong = right.clone()
    wrong[1, 0] = 7

    def judge(chosen: Any) -> str:
        return cp_top_k.judge(torch, chosen, scores, width=4, terms=8)

    noticed = judge(wrong)
    probe.control("a group exchanged", failed=noticed and not judge(right), detail=noticed)
