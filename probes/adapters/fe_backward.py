"""cuDNN Frontend: the sparse attention backward of its DSA package, on SM90.

Two ways in: the public wrapper, called by keyword because releases inserted arguments in the
middle; and the three kernel classes, which alone can be compiled without a GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from probes.adapters.dsl import Compiled, Dsl
from probes.adapters.shapes import expect_keywords, expect_parameters, member
from probes.session import Session, absent

_PACKAGE = "cudnn.deepseek_sparse_attention"
_INTERFACE = f"{_PACKAGE}.sparse_attention_backward._interface_sm90"
_KERNELS = f"{_PACKAGE}.sparse_attention_backward.dsa_bwd_sm90"
# How the frontend's interface asks for the kernels; the same in every release that has them.
_TILE = 64
_THREADS = 256
_CHUNK = 128

WRAPPER_KEYWORDS = (
    "q", "kv", "out", "dout", "lse", "attn_sink", "topk_idxs", "softmax_scale", "topk_length",
)  # fmt: skip
_PRE_PARAMETERS = (
    "mO", "mdO", "mdPsum", "mLSE", "mLSElog2", "mAttnSink", "mdSink", "mdQaccum", "mCuSeqlensQ",
    "mSeqUsedQ", "stream",
)  # fmt: skip
_MAIN_PARAMETERS = (
    "mQ", "mKV", "mdO", "mLSE", "mdPsum", "mdQ", "mdKV", "mTopkIdxs", "mTopkLength",
    "softmax_scale", "stream",
)  # fmt: skip
_POST_PARAMETERS = ("mdKVaccum", "mdKV", "seqlen_k", "stream")


def wrapper(probe: Session) -> Any:
    """The public function `DSA.sparse_attention_backward_wrapper`.

    Raises:
        Concluded: the stack or its frontend has none, or it did not import.
        UnknownShape: it lost an argument that every known release takes.
    """
    probe.load("nvidia-cudnn-frontend")
    namespace = _import(probe, _PACKAGE).DSA
    with probe.tested("import", "DSA.sparse_attention_backward_wrapper"):
        function = namespace.sparse_attention_backward_wrapper
    expect_keywords("sparse_attention_backward_wrapper", function, WRAPPER_KEYWORDS)
    return function


def compile_caches() -> dict[str, Mapping[Any, Any]]:
    """The caches of compiled kernels that the loaded frontend keeps, by name; those it has."""
    function = getattr(sys.modules.get(_INTERFACE), "flash_attn_bwd_sm90", None)
    names = ("compile_cache_pre", "compile_cache", "compile_cache_post")
    found = {name: getattr(function, name, None) for name in names}
    return {name: cache for name, cache in found.items() if isinstance(cache, Mapping)}


def kernels(probe: Session) -> Any:
    """The module with the three kernel classes of the SM90 backward.

    Raises:
        Concluded: the stack or its frontend has none, or it did not import.
    """
    probe.load("nvidia-cudnn-frontend")
    return _import(probe, _KERNELS)


def _import(probe: Session, name: str) -> Any:
    with probe.tested("import", f"import {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                raise absent(f"this frontend has no {error.name}") from error
            raise


def compile_pre(module: Any, dsl: Dsl, head_dim: int) -> Compiled:
    """Compile the kernel that makes D = sum(out * dout), the log2 of the sum, and d_sink."""
    kernel = member(module, "_FlashAttentionDSABackwardPreprocessSm90")
    expect_parameters("the backward's first kernel", kernel.__call__, _PRE_PARAMETERS)
    bf16, f32 = dsl.cutlass.BFloat16, dsl.cutlass.Float32
    return dsl.compile(
        kernel(bf16, head_dim, 90, _TILE, num_threads=_THREADS),
        dsl.tensor(bf16, 4),
        dsl.tensor(bf16, 4),
        dsl.tensor(f32, 3),
        dsl.tensor(f32, 3, align=4),
        dsl.tensor(f32, 3),
        dsl.tensor(f32, 1),
        dsl.tensor(f32, 1),
        None,
        None,
        None,
        dsl.stream(),
    )


def compile_main(
    module: Any, dsl: Dsl, *, head_dim: int, heads: int, width: int, has_length: bool
) -> Compiled:
    """Compile the main kernel for one width of the index table."""
    kernel = member(module, "FlashAttentionDSABackwardSm90")
    expect_parameters("the backward's main kernel", kernel.__call__, _MAIN_PARAMETERS)
    bf16, f32, i32 = dsl.cutlass.BFloat16, dsl.cutlass.Float32, dsl.cutlass.Int32
    launch = kernel(
        bf16,
        head_dim,
        head_dim,
        heads,
        tile_m=_TILE,
        tile_n=_TILE,
        KV_stage=1,
        PdS_stage=1,
        SdP_swapAB=False,
        dKV_swapAB=False,
        dQ_swapAB=False,
        num_threads=_THREADS,
        have_topk_length=has_length,
        max_topk=width,
    )
    return dsl.compile(
        launch,
        dsl.tensor(bf16, 4),
        dsl.tensor(bf16, 4),
        dsl.tensor(bf16, 4),
        dsl.tensor(f32, 3),
        dsl.tensor(f32, 3),
        dsl.tensor(bf16, 4),
        dsl.tensor(f32, 3),
        dsl.tensor(i32, 3),
        # Without lengths some releases hand over a placeholder and some nothing. The kernel
        # reads it in neither case.
        dsl.tensor(i32, 2 if has_length else 1),
        head_dim**-0.5,
        dsl.stream(),
    )


def compile_post(module: Any, dsl: Dsl, head_dim: int) -> Compiled:
    """Compile the kernel that turns the float32 sums of dkv into bfloat16."""
    kernel = member(module, "_FlashAttentionDSABackwardPostprocessSm90")
    expect_parameters("the backward's last kernel", kernel.__call__, _POST_PARAMETERS)
    launch = kernel(
        dsl.cutlass.BFloat16,
        hdim_chunk=_CHUNK,
        tile_n=_TILE,
        head_dim=head_dim,
        num_threads=_CHUNK,
        N_hdim_chunks=head_dim // _CHUNK,
    )
    return dsl.compile(
        launch,
        dsl.tensor(dsl.cutlass.Float32, 3),
        dsl.tensor(dsl.cutlass.BFloat16, 4),
        4096,
        dsl.stream(),
    )
