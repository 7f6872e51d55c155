"""A stand-in for the frontend on disk, so that children of a probe find it as well."""

from __future__ import annotations

from pathlib import Path

SCORES_FAULTS = (
    "future group",
    "offsets ignored",
    "keys of the first sequence",
    "last head lost",
    "no relu",
    "dots in bfloat16",
    "unseen scores zero",
    "last columns unwritten",
    "a row left at minus infinity",
    "scores in bfloat16",
    "padding rows scored",
    "one column too many",
)
TOP_K_FAULTS = (
    "the smallest of the chosen replaced",
    "one index twice",
    "unused places left unwritten",
    "a place beyond the row's length",
    "the first column never chosen",
    "a row from its neighbour",
    "indices in int64",
    "places of a short row filled up",
)
SOURCE = """
import torch

FAULT = {fault!r}
calls = []


def refused():
    raise RuntimeError("IndexerTopK requires SM100+ compute capability, found SM9")


def indexer_forward_wrapper(
    q, k, w, ratio=4, stream=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
    max_seqlen_k=None, {offsets}
):
    if FAULT == "raises":
        raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
    known = locals()
    offsets = known.get("q_causal_offsets")
    scores = torch.empty((len(q), max_seqlen_k + (FAULT == "one column too many")))
    if FAULT == "last columns unwritten":
        scores[:, :-3] = float("-inf")
    else:
        scores.fill_(0.0 if FAULT == "unseen scores zero" else float("-inf"))
    rows, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    if FAULT == "last head lost":
        q, w = q[:, :-1], w[:, :-1]
    for segment in range(len(rows) - 1):
        first = 0 if FAULT == "keys of the first sequence" else keys[segment]
        mine = k[first : first + keys[segment + 1] - keys[segment], 0].float()
        place = 0 if offsets is None or FAULT == "offsets ignored" else int(offsets[segment])
        if "q_causal_offsets" not in known:  # ends are aligned, as in releases without offsets
            place = len(mine) * ratio - (rows[segment + 1] - rows[segment])
        if FAULT == "padding rows scored" and segment == len(rows) - 2:
            mine = k[:1, 0].float()
        for row in range(rows[segment], rows[segment + 1]):
            seen = (place + row - rows[segment] + 1 + (FAULT == "future group")) // ratio
            dots = mine[: max(seen, 0)] @ q[row].float().T
            if FAULT == "dots in bfloat16":
                dots = dots.bfloat16().float()
            if FAULT != "no relu":
                dots = dots.clamp_min(0)
            made = dots @ w[row].float()
            scores[row, : len(made)] = made
    if FAULT == "a row left at minus infinity":
        scores[len(q) // 2] = float("-inf")
    if FAULT == "scores in bfloat16":
        scores = scores.bfloat16().float()
    return {{"scores": scores}}


def indexer_top_k_wrapper(
    input_values, seq_lens, top_k, next_n=1, return_val=True, num_copy_bits=256, stream=None,
    {deterministic}
):
    deterministic = locals().get("deterministic", False)
    calls.append(1)
    if FAULT == "no sm90":
        refused()
    if FAULT == "raises":
        raise RuntimeError("CUDA Error: cudaErrorIllegalAddress")
    if FAULT == "crashes":
        import ctypes
        ctypes.string_at(0)
    rows, columns = input_values.shape
    lengths = seq_lens.long()
    inside = torch.arange(columns) < lengths[:, None]
    masked = torch.where(inside, input_values, float("-inf"))
    if FAULT == "the first column never chosen":
        masked[:, 0] = float("-inf")
    if FAULT == "values below half precision are one" and not deterministic:
        masked = torch.where(inside & (masked < -65504), -65504.0, masked)
    if FAULT == "ties at random" and not deterministic:
        order = torch.randperm(columns)
        places = order[masked[:, order].argsort(dim=1, descending=True, stable=True)]
    else:
        places = masked.argsort(dim=1, descending=True, stable=True)
    places = places[:, :top_k]
    if deterministic:
        kept = places < lengths[:, None]
        places = torch.where(kept, places, columns).sort(dim=1).values
    indices = torch.empty((rows, top_k), dtype=torch.int32)
    used = torch.arange(top_k) < lengths[:, None]
    if FAULT == "unused places left unwritten":
        indices[used] = places.int()[used]
    else:
        indices[:] = torch.where(used, places, -1)
    if FAULT == "the smallest of the chosen replaced":
        longest = int(lengths.argmax())
        others = masked[longest].argsort(descending=True)
        if lengths[longest] > top_k:
            indices[longest, -1] = others[top_k]
    if FAULT == "one index twice":
        indices[:, -1] = indices[:, 0]
    if FAULT == "a place beyond the row's length":
        indices[rows // 2, 0] = lengths[rows // 2]
    if FAULT == "a row from its neighbour":
        indices[3] = indices[2]
    if FAULT == "indices in int64":
        indices = indices.long()
    if FAULT == "places of a short row filled up":
        indices = torch.where(indices < 0, columns + 5, indices)
    if FAULT == "few finite scores run over":
        few = (masked.isfinite().sum(dim=1) < top_k) & (lengths > top_k)
        indices[few, -1] = columns + 100
    return {{"indices": indices, "values": None}}
"""
NAMESPACE = """
from .all import indexer_forward_wrapper, indexer_top_k_wrapper


class DSA:
    indexer_forward_wrapper = staticmethod(indexer_forward_wrapper)
    indexer_top_k_wrapper = staticmethod(indexer_top_k_wrapper)
"""


def write(
    folder: Path,
    fault: str = "",
    *,
    offsets: bool = True,
    deterministic: bool = True,
    sm90: bool = True,
) -> None:
    """Write the package `cudnn` below a folder that is then put on `sys.path`."""
    package = folder / "cudnn" / "deepseek_sparse_attention"
    home = package / "indexer_forward"
    home.mkdir(parents=True)
    (folder / "cudnn" / "__init__.py").write_text('__version__ = "1.26.0"\n')
    (package / "__init__.py").write_text(NAMESPACE)
    (package / "all.py").write_text(
        SOURCE.format(
            fault=fault,
            offsets="q_causal_offsets=None" if offsets else "",
            deterministic="tie_break=0, deterministic=False" if deterministic else "",
        )
    )
    (home / "__init__.py").touch()
    (home / f"indexer_fwd_{'sm90' if sm90 else 'sm100'}.py").touch()
