"""Do a real context-parallel group's exchange, gathers and layouts give what one rank gives?

Starts a process per rank on the CPU (`probes/cp_forks.py`: gloo over the loopback interface) and
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
from functools import partial
from typing import Any, Final

from probes import cp_cases, cp_controls, cp_forks, cp_ranks, cp_report, cp_sums, cp_top_k
from probes.adapters import mcore_cp
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_ranks import Crew, Member
from probes.session import Session

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

START_LIMIT_S: Final = 60.0


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
        start_limit_s=START_LIMIT_S,
    )
    probe.measure(
        ranks_count=crew.world,
        loopback=loopback,
        gathers=", ".join(upstream.gathers),
    )
    told = cp_forks.run(probe, torch, crew, partial(work, upstream=upstream))
    cp_report.report(probe, crew, told, [name for name, _, _ in tasks(probe)])
    cp_controls.controls(probe, torch, max(crew.cp_sizes))


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
