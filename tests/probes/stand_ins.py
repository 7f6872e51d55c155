"""Upstream packages that stand in for the real ones, on disk: a child process finds them as well.

They do the arithmetic of the kernels in plain torch, and ask the DSL's stand-in to compile as the
real ones do. Options say how they misbehave.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probes.adapters.mcore_layout import HOMES
from tests.probes.asking import Asker, Reply, component

INDEXER = ("_interface_sm90.py", "_interface_sm100.py")
"""Files of a frontend whose indexer is for this GPU, and of an older one's."""
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

    if cu_seqlens.data_ptr() % 16:
        raise ValueError("Misaligned Tensor data on argument #0")
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
    if OPTIONS.get("raises") == "indices" or not l_local:
        raise RuntimeError("CUDA Error: cudaErrorUnknown")
    _run_compiled_launch(_build_attention_indices_launch, tensors, (mode,), out, question)
    return tuple(out.values())


def _compact_launch(source, target):
    rows = min(len(source), len(target))
    target[:rows] = source[:rows]


class CompressorInputCompact(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden_local, boundary_hidden, cu_seqlens, global_start, ratio, d_comp, c_cap
    ):
        hidden, boundary = hidden_local, boundary_hidden  # upstream's names, which probes look at
        if not len(hidden) or not c_cap:
            raise RuntimeError("CUDA Error: cudaErrorInvalidConfiguration")
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
    if not len(q):
        raise RuntimeError("CUDA Error: cudaErrorInvalidConfiguration")
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


def indexer_forward_wrapper(
    q, k, w, ratio, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, q_causal_offsets=None
):
    scores = q.float().sum((1, 2))[:, None] * torch.arange(1.0, max_seqlen_k + 1)
    return {"scores": scores.masked_fill(torch.arange(max_seqlen_k) > 5, float("-inf"))}


def indexer_top_k_wrapper(input_values, seq_lens, top_k, next_n, return_val):
    return {"indices": input_values.topk(top_k, dim=1).indices.int()}


DSA = types.SimpleNamespace(
    sparse_attention_backward_wrapper=sparse_attention_backward_wrapper,
    indexer_forward_wrapper=indexer_forward_wrapper,
    indexer_top_k_wrapper=indexer_top_k_wrapper,
)
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
import mmap
import threading
import time

from cuda.bindings import driver
from stand_in_options import OPTIONS

_entered = threading.Lock()
_state = {"locked": False}


class Launch:
    def __init__(self, function, arguments):
        self.function = function
        self.arguments = arguments
        self.loaded = False
        self.artifacts = type("Artifacts", (), {"CUBIN": b"cubin"})

    def __call__(self, *arguments):
        if getattr(self.function, "__name__", "") != "count":
            return self.function(*arguments)
        self.load()
        return driver.count(*arguments)

    def load(self):
        if self.loaded:
            return
        if _state["locked"]:
            time.sleep(600)
        alone = _entered.acquire(blocking=False)
        if not alone and OPTIONS.get("race") == "raises":
            raise RuntimeError("CUDA Error: cudaErrorUnknown")
        if not alone and OPTIONS.get("race") == "hangs":
            time.sleep(600)
        try:
            time.sleep(0.05 if OPTIONS.get("race") else 0)
            if self.arguments[1] > 232_448:
                _state["locked"] = OPTIONS.get("leaks_lock")
                raise RuntimeError("Got Cuda Runtime Error: cudaErrorInvalidValue invalid argument")
            if driver.state["free"] < 2 << 20:
                raise RuntimeError("CUDA Error: cudaErrorUnknown")
            try:
                driver.kept.extend(mmap.mmap(-1, 4096) for _ in range(OPTIONS.get("maps", 0)))
            except OSError:
                raise RuntimeError("CUDA Error: cudaErrorUnknown") from None
            self.loaded = True
        finally:
            if alone:
                _entered.release()
'''

DRIVER = '''
"""A driver whose memory is a dictionary."""
import ctypes
import enum
import os

from stand_in_options import OPTIONS


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_MISALIGNED_ADDRESS = 716


class CUstream_flags(enum.IntEnum):
    CU_STREAM_NON_BLOCKING = 1


class CUdevice_attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97


class CUfunction_attribute(enum.IntEnum):
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class CUstream(int):
    pass


OK = CUresult.CUDA_SUCCESS
memory = {}
kept = []
streams = {0}
contexts = ["primary"]
state = {"free": 3 << 30, "error": OK, "allowed": 49152, "next": 1 << 40}


def cuInit(flags):
    return (OK,)


def cuDeviceGet(number):
    return OK, 0


def cuDevicePrimaryCtxRetain(device):
    return OK, "primary"


def cuCtxCreate(flags, device):
    contexts.append("second")
    return OK, "second"


def cuCtxSetCurrent(context):
    return (state["error"],)


def cuCtxSynchronize():
    return (state["error"],)


def cuGetErrorString(status):
    return OK, status.name.lower().encode()


def cuMemGetInfo():
    return OK, state["free"], 3 << 30


def cuMemAlloc(size):
    if size >= 2 << 20:
        if size > state["free"]:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        state["free"] -= size
    state["next"] += max(size, 4096)
    memory[state["next"]] = [0] * 32
    state[state["next"]] = size
    return OK, state["next"]


def cuMemFree(address):
    size = state.pop(address)
    state["free"] += size if size >= 2 << 20 else 0
    return (OK,)


def cuMemsetD32(address, value, count):
    memory[address] = [value] * count
    return (OK,)


def cuMemcpyDtoH(target, address, size):
    ctypes.memmove(target, (ctypes.c_int32 * 32)(*memory[address]), size)
    return (state["error"],)


def cuDeviceGetAttribute(attribute, device):
    return OK, 232_448


def cuStreamCreate(flags):
    handle = 100 + len(streams)
    streams.add(handle)
    return OK, CUstream(handle)


def cuStreamDestroy(stream):
    streams.discard(int(stream))
    return (OK,)


def cuModuleLoadData(image):
    return OK, image


def cuModuleGetFunction(module, name):
    return OK, name


def cuFuncSetAttribute(function, attribute, value):
    state["allowed"] = value
    return (OK,)


def cuFuncGetAttribute(attribute, function):
    return OK, state["allowed"]


def cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
    if shared > state["allowed"]:
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    memory[arguments[0][0]] = [number + 1 for number in memory[arguments[0][0]]]
    return (OK,)


def count(address, stream):
    """What the kernel of ours does, and what a launch of it says."""
    if state["error"]:
        name = state["error"].name.split("_")[2].capitalize()
        raise RuntimeError(f"CUDA Error: cudaError{name}Address")
    if stream not in streams:
        if stream > 1 << 20:
            ctypes.string_at(0)
        raise RuntimeError("CUDA Error: cudaErrorInvalidResourceHandle")
    if len(contexts) > 1 and stream == max(streams):
        raise RuntimeError("CUDA Error: cudaErrorInvalidValue")
    if address not in memory:
        bad = CUresult.CUDA_ERROR_MISALIGNED_ADDRESS
        state["error"] = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS if address % 4 == 0 else bad
        if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            count(address, stream)
        return
    if OPTIONS.get("launch") == "fails":
        raise RuntimeError("CUDA Error: cudaErrorLaunchFailure")
    if OPTIONS.get("launch") != "does nothing":
        memory[address] = [number + 1 for number in memory[address]]
'''


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
        f"cudnn/deepseek_sparse_attention/indexer_forward/{INDEXER[bool(options.get('old'))]}": "",
        "cudnn/deepseek_sparse_attention/indexer_forward/__init__.py": "",
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


class StandIns:
    """Writes the stand-ins below a folder that is on the path, and asks probes."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.folder = asker.folder / "packages"

    def prepare(self, options: dict[str, Any] | None = None) -> None:
        """Write them with these options, for a process that has imported none of them."""
        _forget()
        write(self.folder, **(options or {}))
        importlib.invalidate_caches()
        tree = {"path": str(self.folder / "tree"), "revision": "f" * 40, "tree": None}
        self._asker.trees = {"megatron-core": tree}
        self._asker.components = {
            "torch": component("2", module="torch"),
            "nvidia-cutlass-dsl": component("4", module="cutlass"),
            "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
            "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
        }

    def __call__(
        self, probe: str, options: dict[str, Any] | None = None, **parameters: Any
    ) -> Reply:
        """Run a probe of this process on them."""
        self.prepare(options)
        return self._asker.here(probe, **{"device": "cpu", "model": "tiny", **parameters})


@pytest.fixture
def stand_ins(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIns]:
    before = _forget()
    made = StandIns(asker)
    made.folder.mkdir(exist_ok=True)  # a path that is not there yet is remembered as empty
    monkeypatch.syspath_prepend(str(made.folder))
    # A file that is written twice within a second must be read twice.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield made
    _forget()
    sys.modules.update(before)
