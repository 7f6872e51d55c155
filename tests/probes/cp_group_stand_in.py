"""A tree and a frontend with all that `cp-group` drives, right or with one fault in them.

What exchanges and gathers is that of `cp_stand_in`; kernels are the references.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from probes.adapters import mcore_attention, mcore_layout
from tests.probes import cp_stand_in

LAYOUT = """
import torch

from probes.references import layout_indices, one_rank

FAULT = {fault!r}
CompressorInputCompact = one_rank.Kernels.CompressorInputCompact


def build_attention_indices(
    cu_seqlens, global_start, l_local, d_window, window_size, ratio, compressed_width,
    compressed_topk=None, cu_seqlens_compressed=None, seq_to_rank_row=None, for_indexer_loss=False,
):
    assert cu_seqlens.dtype == torch.int32
    mode = 2 if for_indexer_loss else int(compressed_topk is None)
    wide = [
        None if one is None else one.long()
        for one in (compressed_topk, cu_seqlens_compressed, seq_to_rank_row)
    ]
    made = layout_indices.attention_indices(
        layout_indices.Question(
            cu_seqlens.long(), global_start, l_local, d_window, window_size, ratio,
            compressed_width, mode, *wide,
        )
    )
    if FAULT == "index of the next row" and global_start:
        made.indices[1] = made.indices[0]
    return made.indices, made.lengths, made.rank_major
"""

ATTENTION = """
import torch

from probes.references import sparse_attention

FAULT = {fault!r}


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, sink, indices, lengths, scale):
        out, _ = sparse_attention.forward(
            q.float(), kv.float(), sink, indices=indices, lengths=lengths, scale=scale
        )
        ctx.save_for_backward(q, kv, sink, indices, lengths)
        ctx.scale = scale
        return out.bfloat16()

    @staticmethod
    def backward(ctx, dout):
        q, kv, sink, indices, lengths = ctx.saved_tensors
        with torch.enable_grad():
            made = sparse_attention.gradients(
                q, kv, sink, indices=indices, lengths=lengths, dout=dout, scale=ctx.scale
            )
        dkv = made.dkv.bfloat16()
        if FAULT == "no gradient of the boundary":
            dkv[:16] = 0
        return made.dq.bfloat16(), dkv, made.d_sink, None, None, None


def dsa_sparse_attn(
    query, kv, attn_sink, topk_idxs, softmax_scale, topk_length=None, indexer_topk=0, is_thd=False
):
    out = Function.apply(query, kv, attn_sink, topk_idxs, topk_length, softmax_scale)
    return out.reshape(len(query), -1)


def indexer_topk(
    q_indexer, k_indexer, weights, topk, ratio=4, indexer_softmax_scale=1.0, *, cu_seqlens_q=None,
    cu_seqlens_kv=None, max_seqlen_q=None, max_seqlen_kv=None, q_causal_offsets=None,
):
    raise AssertionError("the stand-in of the path chooses by itself")
"""

FRONTEND = """
import torch

from probes.references import sparse_attention


def sparse_attention_backward_wrapper(
    q, kv, out, dout, lse, attn_sink, topk_idxs, softmax_scale, topk_length=None
):
    with torch.enable_grad():
        made = sparse_attention.gradients(
            q, kv, attn_sink, indices=topk_idxs, lengths=topk_length, dout=dout,
            scale=softmax_scale,
        )
    return {"dq": made.dq.bfloat16(), "dkv": made.dkv.bfloat16(), "d_sink": made.d_sink}


def indexer_forward_wrapper(
    q, k, w, ratio=4, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
    q_causal_offsets=None,
):
    raise AssertionError


def indexer_top_k_wrapper(input_values, seq_lens, top_k, next_n=1, return_val=True):
    raise AssertionError


class DSA:
    sparse_attention_backward_wrapper = staticmethod(sparse_attention_backward_wrapper)
    indexer_forward_wrapper = staticmethod(indexer_forward_wrapper)
    indexer_top_k_wrapper = staticmethod(indexer_top_k_wrapper)
"""

LATER = """

class Handle:
    def __init__(self, tensor, work):
        self.tensor, self.work = tensor, work

    def wait(self):
        if FAULT != "not waited for":
            self.work.wait()
        return self.tensor


class Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, group, works):
        ctx.group = group
        gathered = rows.new_zeros((group.size() * len(rows), *rows.shape[1:]))
        parts = list(gathered.chunk(group.size()))
        works.append(dist.all_gather(parts, rows.contiguous(), group=group, async_op=True))
        works.append(parts)
        return gathered

    @staticmethod
    def backward(ctx, gradient):
        return Gather.backward(ctx, gradient)[0], None, None


def async_gather_from_sequence_parallel_region(
    input_, tensor_parallel_output_grad=True, group=None
):
    works = []
    return Handle(Begin.apply(input_, group, works), works[0])
"""

IN_RESULTS: Final = {
    "index of the next row": "indices:",
    "no gradient of the boundary": "dx: a row is off",
    "not waited for": "gather waited for later, last late: result differs",
    "wrong neighbour": "boundary",
    "a share missing": "sums are wrong",
}


def write(tree: Path, packages: Path, fault: str = "") -> None:
    """Write the tree, and the packages below a folder that is on the import path."""
    cp_stand_in.write(tree, fault)
    gathers = tree / cp_stand_in.MAPPINGS
    gathers.write_text(cp_stand_in.GATHERS.format(fault=fault) + LATER, encoding="utf-8")
    package = packages / "cudnn" / "deepseek_sparse_attention"
    files = {
        tree / mcore_layout.HOMES[-1]: LAYOUT.format(fault=fault),
        tree / mcore_attention.ALONE[0]: ATTENTION.format(fault=fault),
        packages / "cudnn" / "__init__.py": "",
        package / "__init__.py": FRONTEND,
        package / "indexer_forward" / "__init__.py": "",
        package / "indexer_forward" / "indexer_fwd_sm90.py": "",
    }
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
