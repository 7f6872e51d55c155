"""A tree with the functions of a context-parallel path, right or with one fault in them.

They use a real process group. `FAULT` is what is wrong with them; where a fault is one rank's, that
rank is 1 of a group, and in the world too when the group is the first of its size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from probes.adapters.mcore_cp import HOMES, MAPPINGS

IN_RESULTS: Final = {
    "wrong neighbour": "boundary",
    "gradient lost": "gradient",
    "gradient one row too far": "gradient",
    "stale buffer": "boundary",
    "wrong slot": "map",
    "ranks of the gather swapped": "gathered",
    "a share missing": "sums are wrong",
    "wrong segments": "cu_keys of the segments are wrong",
    "future groups": "a group is none of theirs",
}
"""Faults that leave wrong results, and a word of the detail that must name each."""

PATH = """
import os
import time

import torch
import torch.distributed as dist
from megatron.core.fusions.fused_mla_yarn_rope_apply import fused_mla_rope_inplace
from megatron.core.transformer.experimental_attention_variant import csa_cp_layout_kernels
from .fused_sparse_attention import indexer_topk

from probes import layouts

FAULT = {fault!r}
KEPT = {{}}


def swap(sent, received, group, *, to, source):
    requests = []
    if 0 <= to < group.size():
        where = dist.get_global_rank(group, to)
        requests.append(dist.P2POp(dist.isend, sent.contiguous(), where, group))
    if 0 <= source < group.size():
        where = dist.get_global_rank(group, source)
        requests.append(dist.P2POp(dist.irecv, received, where, group))
    for request in dist.batch_isend_irecv(requests) if requests else []:
        request.wait()
    return received


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, count, group):
        ctx.shape, ctx.count, ctx.group = rows.shape, count, group
        rank = group.rank()
        if rank == 1 and FAULT == "dies":
            os._exit(7)
        if rank == 1 and FAULT == "aborts":
            os.abort()
        if rank == 1 and FAULT == "hangs":
            time.sleep(600)
        if rank == 1 and FAULT == "raises":
            raise ValueError("no rows for this rank")
        received = rows.new_zeros((count, *rows.shape[1:]))
        if FAULT == "used a part":
            fused_mla_rope_inplace(rows)
        if FAULT == "everyone waits":
            return swap(rows, received, group, to=-1, source=(rank + 1) % group.size())
        if FAULT == "stale buffer":
            received = KEPT.setdefault((group.size(), count), received)
        step = -1 if FAULT == "wrong neighbour" else 1
        return swap(rows[-count:], received, group, to=rank + step, source=rank - step)

    @staticmethod
    def backward(ctx, gradient):
        rank = ctx.group.rank()
        whole = gradient.new_zeros(ctx.shape)
        received = torch.zeros_like(gradient)
        swap(gradient, received, ctx.group, to=rank - 1, source=rank + 1)
        end = len(whole) - (1 if FAULT == "gradient one row too far" else 0)
        if FAULT != "gradient lost":
            whole[end - ctx.count : end] = received
        return whole, None, None


def exchange_cp_boundary_hidden(hidden_states, compress_ratio, csa_window_size, cp_group):
    overlap = 8 if compress_ratio == 4 else compress_ratio
    count = max(csa_window_size, overlap)
    return Exchange.apply(hidden_states, count, cp_group)


def prepare_cp_compressor_input(
    hidden_local, boundary_hidden, cu_seqlens, cu_seqlens_compressed, global_start, cp_size, ratio
):
    lengths = (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()
    layout = layouts.Layout("", cp_size, len(hidden_local), tuple(lengths))
    compressed = layouts.compress(layout, ratio)
    rows, numbers = csa_cp_layout_kernels.CompressorInputCompact.apply(
        hidden_local, boundary_hidden, cu_seqlens, global_start, ratio, compressed.overlap,
        compressed.capacity,
    )
    mapping = torch.tensor(compressed.seq_to_rank_row, dtype=torch.int32)
    if FAULT == "wrong slot":
        mapping = mapping.flip(0)
    return rows, numbers, mapping


@torch.compile
def segments_of(layout, ratio, rank):
    found = layouts.indexer_segments(layout, ratio, rank)
    keys = (0, *found.cu_keys[:-1]) if FAULT == "wrong segments" else found.cu_keys
    made = (found.cu_queries, keys, found.offsets)
    return tuple(torch.tensor(one, dtype=torch.int32) for one in made)


def compute_cp_indexer_topk(
    q_indexer_local, weights_indexer_local, k_indexer_seq_major, cu_seqlens_q,
    cu_seqlens_compressed, global_start, ratio, topk_width, indexer_softmax_scale, max_seqlen_q,
    use_fused,
):
    from probes.references import indexer
    if max_seqlen_q < ratio:
        return None, None
    rows, cu = len(q_indexer_local), tuple(cu_seqlens_q.tolist())
    lengths = tuple(end - start for start, end in zip(cu, cu[1:]))
    layout = layouts.Layout("", -(-cu[-1] // rows) + global_start // rows + 1, rows, lengths)
    columns = max_seqlen_q // ratio
    question = indexer.Question(
        cu, tuple(cu_seqlens_compressed.tolist()), global_start, rows, ratio, columns
    )
    limit = None
    if FAULT == "future groups":
        limit = indexer.limits(question, "cpu") + 1
    scores = indexer.scores(
        question, q_indexer_local, k_indexer_seq_major, weights_indexer_local, limit=limit
    ).values
    best = scores.topk(min(topk_width, columns), dim=1)
    chosen = torch.full((rows, topk_width), -1, dtype=torch.int32)
    chosen[:, : best.indices.shape[1]] = torch.where(best.values.isfinite(), best.indices, -1)
    return chosen, segments_of(layout, ratio, global_start // rows)
"""

GATHERS = """
import torch
import torch.distributed as dist
from megatron.core.utils import get_tensor_model_parallel_group_if_none, is_torch_min_version

assert is_torch_min_version("1.13.0")
FAULT = {fault!r}


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group):
        ctx.group = group
        shape = (group.size() * len(rows), *rows.shape[1:])
        # As the real one, which never runs on a CPU.
        gathered = torch.empty(shape, dtype=rows.dtype, device=torch.cuda.current_device())
        parts = list(gathered.chunk(group.size()))
        dist.all_gather(parts, rows.contiguous(), group=group)
        if FAULT == "ranks of the gather swapped":
            gathered = torch.cat(list(reversed(parts)))
        return gathered

    @staticmethod
    def backward(ctx, gradient):
        group = ctx.group
        whole = gradient.clone()
        if FAULT == "a share missing" and group.rank() == group.size() - 1:
            whole.zero_()
        dist.all_reduce(whole, group=group)
        return whole.chunk(group.size())[group.rank()].clone(), None


def gather_from_sequence_parallel_region(
    input_, tensor_parallel_output_grad=True, group=None, output_split_sizes=None,
    use_global_buffer=False,
):
    return Gather.apply(input_, get_tensor_model_parallel_group_if_none(group))
"""

LATER = """

class Handle:
    def __init__(self, tensor):
        self.tensor = tensor

    def wait(self):
        return self.tensor


def async_gather_from_sequence_parallel_region(
    input_, tensor_parallel_output_grad=True, group=None
):
    return Handle(Gather.apply(input_, group))
"""


def write(tree: Path, fault: str = "", *, home: str = HOMES[-1], later: bool = False) -> None:
    """Write the tree; `later` gives it the gather that is waited for later."""
    gathers = GATHERS.format(fault=fault) + (LATER if later else "")
    for name, text in ((home, PATH.format(fault=fault)), (MAPPINGS, gathers)):
        file = tree / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
