"""Do a real context-parallel group's exchange, gathers and layouts give what one rank gives?

Starts a process per rank on the CPU (`probes/cp_ranks.py`: gloo over the loopback interface) and
drives Megatron Core's own functions of the packed-THD path, forward and backward, as its attention
calls them: `exchange_cp_boundary_hidden`, `prepare_cp_compressor_input` and
`gather_from_sequence_parallel_region`, and where a tree has it, the gather that is waited for
later. Rows are (rows, 1, hidden) bfloat16. Groups of every size are made of neighbouring ranks of
one world, so that a rank's number in its group is not its number in the world, and two groups work
side by side on different batches.

What needs a GPU is replaced: the compaction kernel by `probes/references/compaction.py`, and the
compressor between compaction and gather by one that copies one token's channel into each channel of
a compressed row. The rest is compared with what one process computes from the whole batch
(`probes/references/one_rank.py`). All numbers are whole and small enough that every sum is exact in
bfloat16, so everything must be equal: the rows from the left neighbour, the compacted rows and
their numbers, the map from sequences to gathered rows, the gathered rows, and the gradient of a
rank's rows, in which the right neighbour's share and every rank's share of the gathered rows are
added up. Two layers are run before anything is compared.

`any numbers` gathers arbitrary bits, which must arrive unchanged, and sums up gradients that need
rounding: the n shares of a sum may be rounded n - 1 times. `top-k` has each rank choose from the
gathered keys by the plain torch path of `compute_cp_indexer_topk`, and checks the segments that it
makes for the indexer's kernel, which must be equal.

A rank that raises, dies or hangs fails the part that it was in, with its number in the detail; the
other ranks are ended and what would have followed is not reported.

Controls: two ranks swapped, a boundary from the wrong neighbour, a gradient of a boundary that is
not added, a rank's share missing in a sum, another layer's buffer, and a choice with one group
exchanged must each be noticed by the same comparison.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any, Final

from probes import cp_cases, cp_ranks, cp_sums, cp_top_k
from probes.adapters import mcore_cp
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import Case
from probes.cp_ranks import Crew, Member, Told
from probes.session import Check, Session

PROBE: Final = {
    "id": "cp-exchange",
    "needs": ["torch", "megatron-core"],
    "required": False,
    "group": "functional",
    "time_limit_s": 240,
    "parameters": {
        "quick": {
            "world": 4,
            "cp_sizes": [2, 4],
            "local_rows": 160,
            "model": "tiny",
            "ratios": [4, 128],
            "layouts": [
                "ordinary",
                "one-sequence",
                "short-sequences",
                "zero-lengths",
                "spanning",
                "no-whole-sequence",
                "padding-rank",
                "odd-lengths",
            ],
            "group_timeout_s": 30,
            "step_limit_s": 60,
        },
        "thorough": {
            "world": 8,
            "cp_sizes": [2, 4, 8],
            "local_rows": 512,
            "model": "tiny",
            "ratios": [4, 128],
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
            "group_timeout_s": 60,
            "step_limit_s": 100,
        },
    },
}


def run(probe: Session) -> None:
    """All tasks on all ranks, a part for each task, then the controls."""
    # Before torch, since torch may start threads.
    loopback = cp_ranks.have_loopback()
    torch = probe.load("torch")
    from probes.references.one_rank import Kernels

    upstream = mcore_cp.load(probe, torch, Kernels)
    parameters = probe.parameters
    crew = Crew(
        world=int(parameters["world"]),
        cp_sizes=[int(size) for size in parameters["cp_sizes"]],
        device="cpu",
        group_timeout_s=float(parameters["group_timeout_s"]),
        step_limit_s=float(parameters["step_limit_s"]),
    )
    probe.measure(
        ranks_count=crew.world,
        loopback=loopback,
        gathers=", ".join(upstream.gathers),
    )
    told = cp_ranks.run(probe, torch, crew, partial(work, upstream=upstream))
    _report(probe, crew, told)
    controls(probe, torch)


def tasks(probe: Session) -> list[tuple[str, str, Any]]:
    """Every task in order: its name, its kind, and its case or group size."""
    sizes = [int(size) for size in probe.parameters["cp_sizes"]]
    names = [str(name) for name in probe.parameters["layouts"]]
    top_k = [cp_top_k.case_of(size, name) for size in sizes for name in names]
    return [
        *((cp_sums.name(size), "sums", size) for size in sizes),
        *((case.name, "case", case) for case in cp_cases.cases(probe)),
        *((cp_top_k.name(case), "top-k", case) for case in top_k),
    ]


def work(member: Member, upstream: ContextParallel) -> None:
    """What each rank does, in its own process."""
    mcore_cp.use_cpu(member.torch)
    kinds: dict[str, Any] = {
        "sums": cp_sums.one_case,
        "case": cp_cases.one_case,
        "top-k": cp_top_k.one_case,
    }
    for name, kind, what in tasks(member.probe):
        started = time.monotonic()
        facts = kinds[kind](member, upstream, what)
        member.found(name, {**facts, "seconds": time.monotonic() - started})


def _report(probe: Session, crew: Crew, told: Told) -> None:
    """A part for each task that all ranks ended, and one for what stopped the others."""
    elements = mismatches = 0
    for name, _, _ in tasks(probe):
        by_rank = told.facts.get(name, {})
        whole = len(by_rank) == crew.world
        if not whole and not (told.fault and told.fault.task == name):
            continue
        with probe.check(name, step=False) as check:
            _judge(check, by_rank)
            if not whole and told.fault:
                verdict = told.fault.verdict
                check.expect(
                    False, verdict.reason or "", verdict.detail or "", status=verdict.status
                )
        elements += sum(facts["elements"] for facts in by_rank.values())
        mismatches += sum(facts["mismatches"] for facts in by_rank.values())
    if told.fault and (not told.fault.task or _ended(crew, told)):
        # Before the first task, or after a rank's last one.
        verdict = told.fault.verdict
        probe.part("the group", status=verdict.status, reason=verdict.reason, detail=verdict.detail)
    probe.measure(elements_compared_count=elements, mismatches_count=mismatches)


def _ended(crew: Crew, told: Told) -> bool:
    """Whether the task at which the group stopped was ended by all ranks."""
    return told.fault is not None and len(told.facts.get(told.fault.task, {})) == crew.world


def _judge(check: Check, by_rank: dict[int, Any]) -> None:
    check.measure["elements_compared_count"] = sum(facts["elements"] for facts in by_rank.values())
    # Of the slowest rank; judging takes no time.
    slowest = max((facts["seconds"] for facts in by_rank.values()), default=0.0)
    check.measure["part_s"] = round(slowest, 3)
    idle = [rank for rank, facts in by_rank.items() if not facts["elements"]]
    check.expect(not idle, "probe:NoRows", f"ranks {idle} compared nothing", status="error")
    wrong = [
        f"rank {rank}: {facts['detail']}"
        for rank, facts in sorted(by_rank.items())
        if facts["mismatches"]
    ]
    check.expect(not wrong, "numerics", "; ".join(wrong))


def controls(probe: Session, torch: Any) -> None:
    """Plant faults into right results and compare them with the right results."""
    from probes.references import one_rank

    probe.step("controls")
    size = max(int(size) for size in probe.parameters["cp_sizes"])
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


def _control_of_sums(probe: Session, torch: Any, size: int) -> None:
    drawn = cp_cases.generator(probe, torch, "control")
    parts = torch.randn((size, cp_sums.ROWS, cp_sums.COLUMNS), generator=drawn).to(torch.bfloat16)
    right = parts.double().sum(dim=0).to(torch.bfloat16)
    noticed = cp_sums.judge(torch, right - parts[-1], parts)
    fine = not cp_sums.judge(torch, right, parts)
    probe.control("a rank's share missing, rounded", failed=noticed and fine, detail=noticed)


def _control_of_choices(probe: Session, torch: Any) -> None:
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
