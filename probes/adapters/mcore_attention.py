"""Megatron Core: where the differentiable sparse attention of the CSA path lives in a tree.

Two homes are known, newest first, with the function under another name in each and the same
arguments. The older file imports nothing of its package but torch and is loaded from its file; the
newer one needs its package, which may need what a stack lacks.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probes.adapters.shapes import expect_keywords
from probes.session import Session, absent

_VARIANT = "megatron/core/transformer/experimental_attention_variant"
PACKAGED = (f"{_VARIANT}/csa_utils/fused_sparse_attention.py", "csa_sparse_attn")
ALONE = (f"{_VARIANT}/dsa_kernels.py", "dsa_sparse_attn")
LOADED_AS = "probes_loaded_mcore_attention"
KEYWORDS = (
    "query", "kv", "attn_sink", "topk_idxs", "softmax_scale", "topk_length", "indexer_topk",
    "is_thd",
)  # fmt: skip


def load(probe: Session) -> Callable[..., Any]:
    """The function; it takes (rows, heads, dim) and (buffer rows, dim) with `is_thd`.

    Raises:
        Concluded: the stack has none, this machine can't provide it, its upstream has no such
            function, it needs a module that the stack lacks, or it did not import.
        UnknownShape: it lost an argument that every known revision takes.
    """
    entry = probe.require("megatron-core")
    if "megatron-core" in probe.trees:
        roots = [Path(probe.trees["megatron-core"]["path"])]
    else:
        # A release from the package index: its files lie in site-packages.
        roots = [Path(path) for path in sys.path if path]
    found = find(roots)
    if found is None:
        raise absent(f"megatron-core {entry.get('requested')} has no sparse attention for CSA")
    file, home, name = found
    with probe.tested("import", f"load {home}"):
        module = _import(home) if home == PACKAGED[0] else _load_file(file)
    probe.note_loaded("megatron-core", file)
    function: Callable[..., Any] = getattr(module, name)
    expect_keywords(name, function, KEYWORDS)
    return function


def find(roots: list[Path]) -> tuple[Path, str, str] | None:
    """File, relative name and function below the first root that has one."""
    for root in roots:
        for home, name in (PACKAGED, ALONE):
            file = root / home
            # A file of that name without the function is another module.
            if file.is_file() and f"\ndef {name}(" in file.read_text(encoding="utf-8"):
                return file, home, name
    return None


def _import(home: str) -> Any:
    try:
        return importlib.import_module(home.removesuffix(".py").replace("/", "."))
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.partition(".")[0] != "megatron":
            raise absent(f"its package needs {missing}, which this stack lacks") from error
        raise


def _load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(LOADED_AS, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} has no loader")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
