"""Megatron Core: where the packed-THD layout kernels of the CSA path live in a tree.

Known homes are listed newest first. The module is loaded from its file, under a name of ours: its
package would import some three thousand modules, among them some that a stack may lack and that
the layout kernels do not need. The file is the tree's own, and its hash is recorded.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes.session import Session, absent

_VARIANT = "megatron/core/transformer/experimental_attention_variant"
HOMES = (
    f"{_VARIANT}/csa_utils/cp_layout_kernels.py",
    f"{_VARIANT}/csa_cp_layout_kernels.py",
)
LOADED_AS = "probes_loaded_mcore_layout"

INDEX_LAUNCH_PARAMETERS = (
    "cu_seqlens", "cu_seqlens_compressed", "indexer_topk", "seq_to_rank_row", "topk_idxs",
    "topk_length", "indexer_rank_major", "n_seq", "global_start", "l_local", "d_window",
    "window_size", "ratio", "compressed_width", "seq_major_rows", "compressed_base",
    "total_width", "index_mode", "launch_work", "stream",
)  # fmt: skip
COMPACT_FORWARD_PARAMETERS = (
    "hidden_local", "boundary_hidden", "hidden_compact", "cu_seqlens", "comp_ids", "n_seq",
    "global_start", "l_local", "ratio", "d_comp", "d_window", "compact_len", "row_width", "stream",
)  # fmt: skip
COMPACT_BACKWARD_PARAMETERS = (
    "grad_hidden_compact", "grad_hidden_local", "grad_boundary_hidden", "cu_seqlens", "n_seq",
    "global_start", "l_local", "ratio", "d_comp", "d_window", "compact_len", "row_width",
    "total_work", "stream",
)  # fmt: skip
BUILD_PARAMETERS = (
    "cu_seqlens", "global_start", "l_local", "d_window", "window_size", "ratio",
    "compressed_width", "compressed_topk", "cu_seqlens_compressed", "seq_to_rank_row",
    "for_indexer_loss",
)  # fmt: skip
COMPACT_PARAMETERS = (
    "ctx", "hidden_local", "boundary_hidden", "cu_seqlens", "global_start", "ratio", "d_comp",
    "c_cap",
)  # fmt: skip
"""Of the forward of `CompressorInputCompact`, an autograd function."""


def find(roots: Mapping[str, Path] | list[Path]) -> tuple[Path, str] | None:
    """The layout kernels' file below the first root that has one, and its relative name."""
    folders = roots.values() if isinstance(roots, Mapping) else roots
    for root in folders:
        for home in HOMES:
            if (root / home).is_file():
                return root / home, home
    return None


def load(probe: Session) -> Any:
    """Load the layout kernels of the stack's Megatron Core.

    Raises:
        Concluded: the stack has none, this machine can't provide it, its upstream has no such
            module, or the module or what it needs did not import.
    """
    entry = probe.require("megatron-core")
    if "megatron-core" in probe.trees:
        roots = [Path(probe.trees["megatron-core"]["path"])]
    else:
        # A release from the package index: its files lie in site-packages.
        roots = [Path(path) for path in sys.path if path]
    found = find(roots)
    if found is None:
        raise absent(f"megatron-core {entry.get('requested')} has no CSA layout kernels")
    file, name = found
    with probe.tested("import", f"load {name}"):
        module = _load_file(file)
    probe.note_loaded("megatron-core", file)
    if getattr(module, "_CUTE_AVAILABLE", True) is False:
        # The module swallowed a failed import and carried on without kernels: say which.
        for needed in ("cuda.bindings.driver", "cutlass", "cutlass.cute.runtime"):
            with probe.tested("import", f"import {needed}, which {file.name} needs"):
                importlib.import_module(needed)
        with probe.tested("import", f"load {name}"):
            raise ImportError("it has no kernels, although all it needs can be imported")
    return module


def _load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(LOADED_AS, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} has no loader")
    module = importlib.util.module_from_spec(spec)
    sys.modules[LOADED_AS] = module  # the DSL looks a function's module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[LOADED_AS]
        raise
    return module
