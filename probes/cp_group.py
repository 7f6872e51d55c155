"""Does a real context-parallel group on several GPUs give what one rank gives, kernels included?

torchrun starts a process for each visible GPU, and on a Slurm allocation of several nodes for each
GPU of all nodes (`probes/cp_launch.py`); NCCL, NVLink multicast off. The ranks make groups of every
size that divides their number and drive Megatron Core's own functions of the packed-THD path in
them, contiguous partition, layouts that break index arithmetic:

- `any numbers`, and `ratio`: as in `cp-exchange` (gathers of arbitrary bits, sums that are rounded;
  boundary exchange, compressor input, gather and their backward in two layers, exact), with the
  real compaction kernel;
- `top-k`: keys gathered, chosen by the frontend's kernels where it has the offsets that ranks need,
  or else by the tree's plain torch (`indexer` says which), and lowered to final indices by
  `build_attention_indices`, packed and for the indexer's loss;
- `indices`: final indices where all visible groups are attended to;
- `attention`: the whole forward and backward of each rank's slice, against the same batch on one
  rank (`probes/cp_attention.py`). Where FlashMLA is provided the tree's own differentiable
  function; elsewhere the reference's forward with the frontend's backward (`forward` says which);
- `order`: the exchange and each gather with streams that are late (`probes/cp_order.py`).

The parent touches no GPU, and ranks are new processes. A rank that raises, dies or hangs fails the
part that it was in, with its number; the others are ended. torch.compile is left out, as in
`cp-exchange`. All ranks must have loaded the same files.

Only several GPUs can show: NCCL's transports and its ordering with kernels of other streams, the
real kernels' answers in a group of processes, and whether caches or contexts of several GPUs on one
node disturb each other. What ranks, judgement and both launchers do is tested on the CPU with gloo,
and with the real trees as far as they run there.

Controls: those of `cp-exchange`; an index moved to its neighbour; and an attention without the left
neighbour's rows, with another rank's chosen groups, and with a rank's share missing in a gradient.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final

from probes import (
    cp_attention,
    cp_cases,
    cp_controls,
    cp_forks,
    cp_group_controls,
    cp_launch,
    cp_lowering,
    cp_order,
    cp_ranks,
    cp_report,
    cp_sums,
    cp_top_k,
)
from probes.adapters import (
    fe_backward,
    fe_indexer,
    mcore_attention,
    mcore_cp,
    mcore_layout,
    mcore_topk,
)
from probes.adapters.mcore_cp import ContextParallel
from probes.adapters.shapes import expect_parameters
from probes.adapters.shapes import member as member_of
from probes.cp_cases import Case
from probes.cp_launch import Job, Nodes
from probes.cp_ranks import Crew, Member, Told
from probes.reasons import Verdict
from probes.session import Concluded, Session

PROBE: Final = {
    "id": "cp-group",
    "needs": [
        "gpu:sm90",
        "torch",
        "nvidia-cudnn-frontend",
        "nvidia-cutlass-dsl",
        "megatron-core",
    ],
    "required": False,
    "group": "functional",
    "gpus": 2,
    "all_gpus": True,
    "time_limit_s": 900,
    "parameters": {
        "quick": {
            "device": "cuda",
            "launcher": "torchrun",
            "ranks_per_node": 0,
            "cp_sizes": [],
            "local_rows": 256,
            "model": "dsv4-flash",
            "ratios": [4, 128],
            "layouts": [
                "ordinary",
                "short-sequences",
                "zero-lengths",
                "spanning",
                "no-whole-sequence",
                "padding-rank",
            ],
            "attention_layouts": ["spanning", "padding-rank"],
            "late_ms": 100,
            "group_timeout_s": 60,
            "step_limit_s": 120,
            "start_limit_s": 180,
        },
        "thorough": {
            "device": "cuda",
            "launcher": "torchrun",
            "ranks_per_node": 0,
            "cp_sizes": [],
            "local_rows": 512,
            "model": "dsv4-flash",
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
            ],
            "attention_layouts": ["ordinary", "one-sequence", "spanning", "padding-rank"],
            "late_ms": 250,
            "group_timeout_s": 60,
            "step_limit_s": 180,
            "start_limit_s": 180,
        },
    },
}


@dataclass(frozen=True)
class Task:
    """What all ranks do before any of them goes on."""

    name: str
    kind: str
    what: Any
    """A case, or a group's size."""


def run(probe: Session) -> None:
    """Start the ranks, judge what they found, then the controls."""
    nodes = where(probe)
    if nodes.count == 1 or not nodes.slurm:
        probe.measure(loopback=cp_ranks.have_loopback())
    parameters = probe.parameters
    world = nodes.count * nodes.ranks
    sizes = [int(size) for size in parameters["cp_sizes"]] or cp_ranks.sizes_of(world)
    parameters["cp_sizes"] = sizes
    crew = Crew(
        world=world,
        cp_sizes=sizes,
        device=str(parameters["device"]),
        group_timeout_s=float(parameters["group_timeout_s"]),
        step_limit_s=float(parameters["step_limit_s"]),
        start_limit_s=float(parameters["start_limit_s"]),
        nodes=nodes.count,
    )
    probe.measure(ranks_count=world, nodes_count=nodes.count)
    torch = probe.load("torch")
    if parameters["launcher"] == "fork":
        told = cp_forks.run(probe, torch, crew, work)
    else:
        told = cp_launch.run(probe, crew, Job(__name__, "work"), nodes)
    cp_report.report(probe, crew, told, [task.name for task in tasks(probe)])
    _same_software(probe, told)
    small = cp_group_controls.Small(probe)
    cp_controls.controls(small, torch, small.size)
    cp_group_controls.controls(small, torch)


def where(probe: Session) -> Nodes:
    """Where the ranks are started.

    Raises:
        Concluded: this process sees fewer than two GPUs.
    """
    count = cp_launch.slurm_nodes()
    ranks = int(probe.parameters["ranks_per_node"]) or cp_launch.visible_gpus()
    if count * ranks < 2:
        said = f"{ranks} GPUs are visible here"
        raise Concluded(Verdict("miss", "machine:too-few-gpus", said))
    return Nodes(count, ranks, slurm=count > 1)


def tasks(probe: Session) -> list[Task]:
    """Every task in order."""
    parameters = probe.parameters
    sizes = [int(size) for size in parameters["cp_sizes"]]
    ratios = [int(ratio) for ratio in parameters["ratios"]]
    names = [str(name) for name in parameters["layouts"]]
    attended = [str(name) for name in parameters["attention_layouts"]]
    top_k = [cp_top_k.case_of(size, name) for size in sizes for name in names]
    whole = [
        Case(size, name, ratio)
        for size in sizes
        for ratio in ratios
        if ratio != cp_top_k.RATIO
        for name in names
    ]
    attention = [Case(size, name, ratio) for size in sizes for ratio in ratios for name in attended]
    return [
        *(Task(cp_sums.name(size), "sums", size) for size in sizes),
        *(Task(case.name, "case", case) for case in cp_cases.cases(probe)),
        *(Task(cp_top_k.name(case), "top-k", case) for case in top_k),
        *(Task(cp_lowering.name(case), "indices", case) for case in whole),
        *(Task(cp_attention.name(case), "attention", case) for case in attention),
        *(Task(cp_order.name(size), "order", size) for size in sizes),
    ]


def work(member: Member) -> None:
    """What each rank does, in its own process."""
    member.step("", "load the software")
    upstream = load(member)
    kinds: dict[str, Any] = {
        "sums": cp_sums.one_case,
        "case": cp_cases.one_case,
        "top-k": cp_top_k.one_case,
        "indices": cp_lowering.one_case,
        "attention": cp_attention.one_case,
        "order": cp_order.one_case,
    }
    for task in tasks(member.probe):
        started = time.monotonic()
        facts = kinds[task.kind](member, upstream, task.what)
        member.found(task.name, {**facts, "seconds": time.monotonic() - started})


def load(member: Member) -> ContextParallel:
    """What is under test, in a rank's process.

    Raises:
        Concluded: the stack lacks a part that there is no question without, or it did not import.
    """
    probe, torch = member.probe, member.torch
    if member.device.type == "cpu":
        mcore_cp.use_cpu(torch)
    probe.load("nvidia-cutlass-dsl")
    kernels = mcore_layout.load(probe)
    build = member_of(kernels, "build_attention_indices")
    expect_parameters("build_attention_indices", build, mcore_layout.BUILD_PARAMETERS)
    choose = _indexer(probe)
    attend, forward = _attention(probe, torch)
    upstream = mcore_cp.load(probe, torch, kernels, choose)
    if member.rank == 0:
        gathers = ", ".join(upstream.gathers)
        indexer = "torch" if choose is None else "kernels"
        member.tell(gathers=gathers, indexer=indexer, forward=forward)
    return replace(upstream, build=build, attend=attend)


def _indexer(probe: Session) -> Any | None:
    """The tree's choice by kernels; None where the frontend has none for a rank's slice."""
    try:
        if not fe_indexer.forward(probe).takes_offsets:
            return None
        fe_indexer.top_k(probe)
        return mcore_topk.load(probe)
    except Concluded as concluded:
        if concluded.verdict.reason != "upstream:absent":
            raise
        return None


def _attention(probe: Session, torch: Any) -> tuple[Any, str]:
    """The differentiable attention, and whose its forward is."""
    entry = probe.components.get("flash-mla") or {}
    if entry.get("requested", "none") != "none" and not entry.get("absent"):
        probe.load("flash-mla")
        try:
            return mcore_attention.load(probe), "FlashMLA"
        except Concluded as concluded:
            # A tree whose package needs what the stack lacks.
            if concluded.verdict.reason != "upstream:absent":
                raise
    backward = fe_backward.wrapper(probe)
    return cp_attention.with_reference_forward(torch, backward), "reference"


def _same_software(probe: Session, told: Told) -> None:
    """Whether ranks on other GPUs and nodes ran the same files."""
    if not told.loaded or told.fault:
        return
    with probe.check("the same software on every rank", step=False) as check:
        first = told.loaded[min(told.loaded)]
        other = [rank for rank, loaded in sorted(told.loaded.items()) if loaded != first]
        check.measure["ranks_count"] = len(told.loaded)
        check.expect(not other, "probe:OtherSoftware", f"ranks {other}", status="error")
