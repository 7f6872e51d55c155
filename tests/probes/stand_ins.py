"""Upstream packages that stand in for the real ones, on disk: a child process finds them as well.

They do the arithmetic of the kernels in plain torch, and ask the DSL's stand-in to compile as the
real ones do. Options say how they misbehave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.adapters.mcore_layout import HOMES
from tests.probes.asking import Asker, Reply, component

OPTIONS = "stand_in_options"
"""Name of the module with the options; its file is written for each test."""

LAYOUT = """
import math
import torch
from cutlass import cute
from probes.references.layout_indices import Question, attention_indices
from stand_in_options import OPTIONS

_COMPILED_LAUNCH_CACHE = {}


def _run_compiled_launch(launch, tensors, static, *arguments):
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    key = (launch.__name__, shapes if OPTIONS.get("by_shape") else None, static)
    if OPTIONS.get("always"):
        key = len(_COMPILED_LAUNCH_CACHE)
    if key not in _COMPILED_LAUNCH_CACHE:
        _COMPILED_LAUNCH_CACHE[key] = cute.compile(launch)
    _COMPILED_LAUNCH_CACHE[key](*arguments)


def _build_attention_indices_launch(out, question):
    answer = attention_indices(question)
    for name, tensor in out.items():
        if tensor is not None:
            tensor.copy_(getattr(answer, name))


def build_attention_indices(
    cu_seqlens, global_start, l_local, d_window, window_size, ratio, compressed_width,
    compressed_topk=None, cu_seqlens_compressed=None, seq_to_rank_row=None, for_indexer_loss=False,
):
    def wide(tensor):
        return None if tensor is None else tensor.long()

    mode = 2 if for_indexer_loss else int(compressed_topk is None)
    question = Question(
        wide(cu_seqlens), global_start, l_local, d_window, window_size, ratio, compressed_width,
        mode, wide(compressed_topk), wide(cu_seqlens_compressed), wide(seq_to_rank_row),
    )
    whole = {"dtype": torch.int32}
    out = {
        "indices": torch.full((l_local, window_size + compressed_width), 2**30, **whole),
        "lengths": torch.full((l_local,), 2**30, **whole) if mode != 2 else None,
        "rank_major": torch.empty((l_local, compressed_width), **whole) if mode == 2 else None,
    }
    tensors = [cu_seqlens, *[tensor for tensor in out.values() if tensor is not None]]
    if OPTIONS.get("raises") == "indices":
        raise RuntimeError("CUDA Error: cudaErrorUnknown")
    _run_compiled_launch(_build_attention_indices_launch, tensors, (mode,), out, question)
    return tuple(out.values())


def _compact_launch(source, target):
    rows = min(len(source), len(target))
    target[:rows] = source[:rows]


class CompressorInputCompact(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, boundary, cu_seqlens, global_start, ratio, d_comp, c_cap):
        ctx.shapes, ctx.sums = (hidden.shape, boundary.shape), cu_seqlens
        compact = hidden.new_zeros((c_cap * ratio, *hidden.shape[1:]))
        tensors = (hidden, boundary, compact, cu_seqlens)
        _run_compiled_launch(_compact_launch, tensors, ("forward", ratio), hidden, compact)
        return compact, torch.arange(c_cap, dtype=torch.int32)

    @staticmethod
    def backward(ctx, grad, _):
        hidden, boundary = (grad.new_zeros(shape) for shape in ctx.shapes)
        tensors = (grad, hidden, boundary, ctx.sums)
        _run_compiled_launch(_compact_launch, tensors, ("backward",), grad, hidden)
        return (hidden, boundary, *[None] * 5)
"""

FRONTEND = """
import types
import torch
from cutlass import cute
from stand_in_options import OPTIONS

_calls = []


def flash_attn_bwd_sm90():
    pass


flash_attn_bwd_sm90.compile_cache = {}


class FlashAttentionDSABackwardSm90:
    def __call__(self, *arguments):
        pass


def sparse_attention_backward_wrapper(
    *, q, kv, out, dout, lse, attn_sink, topk_idxs, softmax_scale, topk_length=None
):
    _calls.append(1)
    fault = OPTIONS.get("backward")
    if fault == "raises late" and len(_calls) > 6:
        raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
    cache, key = flash_attn_bwd_sm90.compile_cache, topk_idxs.shape[1]
    if OPTIONS.get("padded"):
        key = 0
    if key not in cache:
        cache[key] = cute.compile(FlashAttentionDSABackwardSm90())
    cache[key](q)
    assert int(topk_idxs.max()) < len(kv), "an index table that nobody wrote"
    assert int(topk_length.min()) > 0
    dq = dout * lse[..., None].to(dout.dtype)
    dkv = kv * topk_length.float().mean().to(kv.dtype)
    if fault == "changes" and len(_calls) == 7:
        dq[3, 0, 1] += 0.5
    if fault == "drifts":
        dkv = dkv * (1 + len(_calls) / 50)
    if fault == "NaN" and len(_calls) == 7:
        dkv[5, 3] = float("nan")
    return {"dq": dq, "dkv": dkv, "d_sink": dq.float().sum((0, 2))}


DSA = types.SimpleNamespace(sparse_attention_backward_wrapper=sparse_attention_backward_wrapper)
"""

CUTLASS = '''
"""Enough of the DSL for the probes to describe tensors and ask for compilations."""
Int32 = Int64 = int
Constexpr = object
'''

CUTE = """
from stand_in_options import OPTIONS

Tensor = object
kept = []
counts = {"compiled": 0}


class _Compile:
    def __getitem__(self, options):
        return self

    def __call__(self, function, *arguments, options=None):
        counts["compiled"] += 1
        if OPTIONS.get("keeps"):
            import mmap
            kept.extend(mmap.mmap(-1, 1 << 16) for _ in range(OPTIONS["keeps"]))
        return make_launch(function, arguments)


compile = _Compile()


def make_launch(function, arguments):
    from cutlass import launching
    return launching.Launch(function, arguments)


def sym_int():
    return 1


sym_int64 = sym_int


def jit(function):
    return function


class _Kernel:
    def __init__(self, function):
        self.__name__ = function.__name__


kernel = _Kernel
"""

RUNTIME = """
def make_fake_tensor(dtype, shape, stride, assumed_align=16):
    return (dtype, shape)


def make_fake_stream(use_tvm_ffi_env_stream=False):
    return "stream"
"""

LAUNCHING = '''
"""What a compiled function does when it is called."""


class Launch:
    def __init__(self, function, arguments):
        self.function = function

    def __call__(self, *arguments):
        return self.function(*arguments)
'''

DRIVER = """
CUstream = int
"""


def write(folder: Path, **options: Any) -> None:
    """Write the stand-ins below a folder, with these options."""
    files = {
        f"{OPTIONS}.py": f"import json\nOPTIONS = json.loads({json.dumps(json.dumps(options))})\n",
        "cutlass/__init__.py": CUTLASS,
        "cutlass/cute/__init__.py": CUTE,
        "cutlass/cute/runtime.py": RUNTIME,
        "cutlass/launching.py": LAUNCHING,
        "cuda/__init__.py": "",
        "cuda/bindings/__init__.py": "",
        "cuda/bindings/driver.py": DRIVER,
        "cudnn/__init__.py": "__version__ = '1.26.0'\n",
        "cudnn/deepseek_sparse_attention/__init__.py":
            "from .sparse_attention_backward._interface_sm90 import DSA\n",
        "cudnn/deepseek_sparse_attention/sparse_attention_backward/__init__.py": "",
        "cudnn/deepseek_sparse_attention/sparse_attention_backward/_interface_sm90.py": FRONTEND,
        f"tree/{HOMES[-1]}": LAYOUT,
    }  # fmt: skip
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


ROOTS = ("cutlass", "cuda", "cudnn", OPTIONS, "probes.own_kernels", "probes.mechanism_kernels")


def _forget() -> dict[str, Any]:
    found = {
        name: module
        for name, module in sys.modules.items()
        if any(name == root or name.startswith(f"{root}.") for root in ROOTS)
    }
    for name in found:
        del sys.modules[name]
    return found


@pytest.fixture
def stand_ins(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that writes the stand-ins with options and asks a probe."""
    folder = asker.folder / "packages"
    before = _forget()
    monkeypatch.syspath_prepend(str(folder))
    # A file that is written twice within a second must be read twice.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def ask(probe: str, options: dict[str, Any] | None = None, **parameters: Any) -> Reply:
        _forget()
        write(folder, **(options or {}))
        asker.trees = {
            "megatron-core": {"path": str(folder / "tree"), "revision": "f" * 40, "tree": None}
        }
        asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="cutlass"),
            "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
            "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
        }
        return asker.here(probe, **{"device": "cpu", "model": "tiny", **parameters})

    yield ask
    _forget()
    sys.modules.update(before)
