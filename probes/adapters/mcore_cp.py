"""Megatron Core: the functions of the packed-THD context-parallel path, and its gathers.

Two homes of the first are known, newest first, with the same functions in each. The gathers are
those of tensor parallelism, called with the context-parallel group; a newer tree has one that is
waited for later as well. Both files are loaded alone: their packages would import some three
thousand modules, some of which a stack may lack. The files are the tree's own.

Two things are changed, and are no part of any question asked with this adapter. `torch.compile` in
these files does nothing, so that no compiler is needed. On the CPU, `torch.cuda.current_device`
names the CPU in a process that called `use_cpu`, since the gathers allocate there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from probes.adapters import alone
from probes.adapters.shapes import expect_keywords, expect_parameters, member
from probes.session import Session, absent

_VARIANT = "megatron/core/transformer/experimental_attention_variant"
HOMES: Final = (f"{_VARIANT}/csa_utils/cp_utils.py", f"{_VARIANT}/csa_cp_utils.py")
MAPPINGS: Final = "megatron/core/tensor_parallel/mappings.py"
EXCHANGE: Final = "exchange_cp_boundary_hidden"
EXCHANGE_PARAMETERS = ("hidden_states", "compress_ratio", "csa_window_size", "cp_group")
PREPARE_PARAMETERS = (
    "hidden_local", "boundary_hidden", "cu_seqlens", "cu_seqlens_compressed", "global_start",
    "cp_size", "ratio",
)  # fmt: skip
TOP_K_PARAMETERS = (
    "q_indexer_local", "weights_indexer_local", "k_indexer_seq_major", "cu_seqlens_q",
    "cu_seqlens_compressed", "global_start", "ratio", "topk_width", "indexer_softmax_scale",
    "max_seqlen_q", "use_fused",
)  # fmt: skip


@dataclass(frozen=True)
class ContextParallel:
    """What a rank calls, in the order of calls."""

    exchange: Callable[..., Any]
    """(hidden (rows, 1, hidden), ratio, window, group) -> (boundary rows, 1, hidden)"""
    prepare: Callable[..., Any]
    """The compressor's input, the groups' numbers, and the map of sequence to gathered rows."""
    top_k: Callable[..., Any]
    gathers: dict[str, Callable[[Any, Any], Callable[[], Any]]]
    """Each takes a tensor and a group and returns what waits for the gathered tensor."""
    fused: bool = False
    """Whether `top_k` is to use the frontend's kernels."""
    build: Callable[..., Any] | None = None
    """`build_attention_indices`, where its kernels can run."""
    attend: Callable[..., Any] | None = None
    """The differentiable sparse attention, called as `csa_sparse_attn` is."""


def find(roots: list[Path]) -> tuple[Path, str] | None:
    """The first root that has the boundary exchange, and the file's relative name."""
    for root in roots:
        for home in HOMES:
            file = root / home
            # A file of that name without the function is another module.
            if file.is_file() and f"\ndef {EXCHANGE}(" in file.read_text(encoding="utf-8"):
                return root, home
    return None


def load(
    probe: Session, torch: Any, kernels: Any, indexer_topk: Callable[..., Any] | None = None
) -> ContextParallel:
    """Load the functions of the stack's Megatron Core.

    Args:
        probe: the session.
        torch: the module.
        kernels: what takes the place of the layout kernels' module, or that module itself.
        indexer_topk: the tree's own choice by kernels, where `top_k` is to use it.

    Raises:
        Concluded: the stack has none, this machine can't provide it, its upstream has no such
            functions, or a file did not import.
        UnknownShape: a function takes other arguments than every known revision's.
    """
    entry = probe.require("megatron-core")
    if "megatron-core" in probe.trees:
        roots = [Path(probe.trees["megatron-core"]["path"])]
    else:
        # A release from the package index: its files lie in site-packages.
        roots = [Path(path) for path in sys.path if path]
    found = find(roots)
    if found is None:
        raise absent(f"megatron-core {entry.get('requested')} has no context parallelism for CSA")
    root, home = found
    layouts = {"csa_cp_layout_kernels": kernels, "cp_layout_kernels": kernels}
    if indexer_topk is not None:
        layouts["indexer_topk"] = indexer_topk
    path = _load(probe, torch, root / home, "probes_loaded_mcore_cp", layouts)
    probe.note_loaded("megatron-core", root / home)
    # Of the module of helpers, only these two are called, and their meaning is in their names.
    helpers = {
        "is_torch_min_version": lambda _version, *_more: True,
        "get_tensor_model_parallel_group_if_none": lambda group, *_more, **_named: group,
    }
    mappings = _load(probe, torch, root / MAPPINGS, "probes_loaded_mcore_mappings", helpers)
    exchange = member(path, EXCHANGE)
    prepare = member(path, "prepare_cp_compressor_input")
    top_k = member(path, "compute_cp_indexer_topk")
    expect_parameters(EXCHANGE, exchange, EXCHANGE_PARAMETERS)
    expect_parameters("prepare_cp_compressor_input", prepare, PREPARE_PARAMETERS)
    expect_parameters("compute_cp_indexer_topk", top_k, TOP_K_PARAMETERS)
    return ContextParallel(
        exchange, prepare, top_k, _gathers(mappings), fused=indexer_topk is not None
    )


def use_cpu(torch: Any) -> None:
    """From now on, what allocates on the current GPU in this process allocates on the CPU."""
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu


def _gathers(mappings: Any) -> dict[str, Callable[[Any, Any], Callable[[], Any]]]:
    name = "gather_from_sequence_parallel_region"
    at_once = member(mappings, name)
    expect_keywords(name, at_once, ("input_", "group"))

    def gather(tensor: Any, group: Any) -> Callable[[], Any]:
        gathered = at_once(tensor, group=group)
        return lambda: gathered

    found: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {"gather": gather}
    later = getattr(mappings, f"async_{name}", None)
    if later is not None:
        expect_keywords(f"async_{name}", later, ("input_", "group"))
        start = later

        def gather_later(tensor: Any, group: Any) -> Callable[[], Any]:
            wait: Callable[[], Any] = start(tensor, group=group).wait
            return wait

        found["gather waited for later"] = gather_later
    return found


def _load(probe: Session, torch: Any, file: Path, name: str, provided: dict[str, Any]) -> Any:
    with probe.tested("import", f"load {file.name}"), _no_compiler(torch):
        return alone.load(file, name, package="megatron", provided=provided)


@contextmanager
def _no_compiler(torch: Any) -> Iterator[None]:
    before = torch.compile

    def leave(function: Any = None, **_options: Any) -> Any:
        return function if function is not None else leave

    torch.compile = leave
    try:
        yield
    finally:
        torch.compile = before
