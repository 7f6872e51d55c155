"""Megatron Core: where the indexer's scores and selection, taken together, live in a tree.

Known homes are listed newest first; a file of that name without the function is another module.
One home imports nothing of its package but torch, and is loaded from its file; the other needs its
package, which may need what a stack lacks.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from probes.adapters.shapes import expect_keywords
from probes.session import Session, absent

_VARIANT = "megatron/core/transformer/experimental_attention_variant"
PACKAGED = f"{_VARIANT}/csa_utils/fused_sparse_attention.py"
ALONE = f"{_VARIANT}/dsa_kernels.py"
LOADED_AS = "probes_loaded_mcore_topk"
KEYWORDS = (
    "q_indexer", "k_indexer", "weights", "topk", "ratio", "indexer_softmax_scale", "cu_seqlens_q",
    "cu_seqlens_kv", "max_seqlen_q", "max_seqlen_kv",
)  # fmt: skip


def load(probe: Session) -> Any:
    """The function `indexer_topk` of the CSA path.

    Raises:
        Concluded: the stack has none, this machine can't provide it, its upstream has no such
            function, it needs a module that the stack lacks, or it did not import.
        UnknownShape: it lost an argument that every known revision takes.
    """
    entry = probe.require("megatron-core")
    if "megatron-core" in probe.trees:
        roots = [Path(probe.trees["megatron-core"]["path"])]
    else:
        roots = [Path(path) for path in sys.path if path]
    found = find(roots)
    if found is None:
        raise absent(f"megatron-core {entry.get('requested')} has no indexer_topk for CSA")
    file, home = found
    with probe.tested("import", f"load {home}"):
        function = (_import(home) if home == PACKAGED else _load_file(file)).indexer_topk
    probe.note_loaded("megatron-core", file)
    expect_keywords("indexer_topk", function, KEYWORDS)
    return function


def find(roots: list[Path]) -> tuple[Path, str] | None:
    """The file that defines the function below the first root that has one, and its name."""
    for root in roots:
        for home in (PACKAGED, ALONE):
            file = root / home
            if file.is_file() and "\ndef indexer_topk(" in file.read_text(encoding="utf-8"):
                return file, home
    return None


def _import(home: str) -> Any:
    try:
        return importlib.import_module(home.removesuffix(".py").replace("/", "."))
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] != "megatron":
            raise absent(f"its package needs {name}, which this stack lacks") from error
        raise


def _load_file(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(LOADED_AS, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} has no loader")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
