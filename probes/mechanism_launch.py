"""Which errors come out of a launch with something wrong about it?

The report has two launch errors, `cudaErrorInvalidValue` and `cudaErrorUnknown`, from kernels whose
arguments were in order. Each part creates one condition in a child process of its own and records
the text and code of the first call that fails, and what the calls after it gave:

* no attribute: a kernel of ours, compiled by the DSL and loaded by the driver, is launched with
  214,016 bytes of dynamic shared memory (what the frontend's sparse backward asks for) without the
  attribute that allows more than 48 KiB. The DSL sets that attribute when it loads a function;
* a stream that was destroyed, that belongs to another context of the device, or that never was,
  given to a DSL function that was called before on an ordinary one;
* an illegal or misaligned address in a launch of a DSL function, then what the same function and
  the first call of a fresh one report, at once and after waiting, with and without
  `CUDA_LAUNCH_BLOCKING`;
* no rows and no capacity, and prefix sums at an address that is no multiple of 16, given to
  Megatron Core's `build_attention_indices` and `CompressorInputCompact` and to cuDNN Frontend's
  `DSA.sparse_attention_backward_wrapper` (int32 and bfloat16 tensors of the model's sizes).

A part passes when the condition was there and something was recorded. What comes out is compared
with nothing. The control of each is the same calls without the condition: all must succeed.

What one GPU can't show: that a load sets the attribute for every visible device and is content when
one of them worked, so that the device in use lacks it, takes two devices; so does the handle of a
stream of another device. `mechanism-devices` asks for both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward, mcore_layout
from probes.adapters.dsl import keep_artifacts
from probes.adapters.shapes import member
from probes.conditions import Condition, Diary, Workbench, examine
from probes.cubin import kernels
from probes.devices import use_device, wait
from probes.session import OurFault, Session

PROBE: Final = {
    "id": "mechanism-launch",
    "needs": ["gpu:sm90", "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "megatron-core"],
    "required": False,
    "group": "mechanism",
    "time_limit_s": 600,
    "parameters": {
        "quick": {
            "device": "cuda",
            "model": "dsv4-flash",
            "shared_bytes": 214016,
            "conditions": [
                "no attribute",
                "destroyed stream",
                "foreign stream",
                "stream that never was",
                "illegal address",
                "illegal address, blocking",
                "misaligned address",
                "indices without rows",
                "compaction without capacity",
                "misaligned prefix sums",
            ],
            "at_once": 8,
        },
        "thorough": {
            "device": "cuda",
            "model": "dsv4-flash",
            "shared_bytes": 214016,
            "conditions": [
                "no attribute",
                "destroyed stream",
                "foreign stream",
                "stream that never was",
                "illegal address",
                "illegal address, blocking",
                "misaligned address",
                "misaligned address, blocking",
                "indices without rows",
                "compaction without capacity",
                "compaction without rows",
                "backward without rows",
                "misaligned prefix sums",
            ],
            "at_once": 8,
        },
    },
}

ME: Final = "mechanism-launch"
NOWHERE: Final = 4096
"""An address at which a device never has memory."""
_BLOCKING: Final = {"CUDA_LAUNCH_BLOCKING": "1"}


def table(probe: Session) -> dict[str, Condition]:
    """All conditions by name."""
    shared = int(probe.parameters["shared_bytes"])
    listed = [
        Condition(
            "no attribute",
            "shared_memory",
            {"shared_bytes": shared, "attribute": False},
            {"shared_bytes": shared, "attribute": True},
        )
    ]
    for name, kind in (
        ("destroyed stream", "destroyed"),
        ("foreign stream", "foreign"),
        ("stream that never was", "invented"),
    ):
        listed.append(Condition(name, "odd_stream", {"kind": kind}, {"kind": "own"}))
    for name, offset in (("illegal address", 0), ("misaligned address", 1)):
        for suffix, environment in (("", {}), (", blocking", _BLOCKING)):
            listed.append(
                Condition(
                    name + suffix,
                    "bad_address",
                    {"offset": offset},
                    {"offset": None},
                    environment,
                )
            )
    for name, what in (
        ("indices without rows", "index rows"),
        ("compaction without rows", "compaction rows"),
        ("compaction without capacity", "compaction capacity"),
        ("backward without rows", "backward rows"),
        ("misaligned prefix sums", "alignment"),
    ):
        odd = {"what": what, "odd": True}
        listed.append(Condition(name, "odd_sizes", odd, {**odd, "odd": False}, limit_s=120))
    return {condition.name: condition for condition in listed}


def run(probe: Session) -> None:
    """Every condition that the parameters name."""
    known = table(probe)
    chosen = [known[str(name)] for name in probe.parameters["conditions"]]
    examine(probe, ME, chosen, at_once=int(probe.parameters["at_once"]))


def shared_memory(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Launch with much dynamic shared memory, by the driver, with or without the attribute."""
    keep_artifacts(probe.scratch)
    diary, bench = Diary(probe), Workbench(probe)
    gpu, wanted = bench.gpu, int(arguments["shared_bytes"])
    cubin = bench.function().compiled.artifacts.CUBIN
    kernel = gpu.load(cubin, kernels(cubin)[0].name)
    attribute = gpu.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    if arguments["attribute"]:
        gpu("cuFuncSetAttribute", kernel, attribute, wanted)
    allowed = int(gpu("cuFuncGetAttribute", attribute, kernel))
    diary.number(allowed_shared_bytes=allowed, wanted_shared_bytes=wanted)
    diary.created(allowed < wanted, f"{allowed} bytes allowed, {wanted} asked for")
    buffer = gpu.buffer()

    def launch() -> None:
        gpu.launch(kernel, buffer, shared_bytes=wanted)
        if gpu.numbers(buffer) != [1] * len(gpu.numbers(buffer)):
            raise OurFault("the launch succeeded and did nothing")

    diary.attempt("launch", launch)
    diary.attempt("wait", gpu.wait)


def odd_stream(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Call a DSL function on a stream that it should not get."""
    diary, bench = Diary(probe), Workbench(probe)
    gpu, known, fresh = bench.gpu, bench.function(), bench.function()
    fresh.prepare()
    own = gpu.stream()
    diary.attempt("call on an ordinary stream", lambda: known.call(stream=own))
    kind, stream, context = arguments["kind"], own, gpu.context
    keep: Any = None
    if kind == "destroyed":
        stream = int(gpu.stream())
        gpu("cuStreamDestroy", gpu.cuda.CUstream(stream))
        diary.created(True, "the stream was made and destroyed")
    elif kind == "foreign":
        context = gpu.new_context()
        stream = gpu.stream()
        gpu("cuCtxSetCurrent", gpu.context)
        diary.created(True, "the stream was made in a second context of the device")
    elif kind == "invented":
        keep = (ctypes.c_uint64 * 512)()
        stream = ctypes.addressof(keep)
        diary.created(True, "the handle is the address of zeroed memory of ours")
    else:
        diary.created(False, "an ordinary stream")

    def settle() -> None:
        # A context waits for its own streams only.
        gpu("cuCtxSetCurrent", context)
        gpu.wait()
        gpu("cuCtxSetCurrent", gpu.context)

    for function, name in ((known, "known function"), (fresh, "first call of another")):
        diary.attempt(f"{name} on it", partial(function.launch, stream=stream))
        diary.attempt(f"wait for the {name}", settle)
        diary.attempt(f"what the {name} did", function.check)
    diary.attempt("call on an ordinary stream again", lambda: known.call(stream=own))
    del keep


def bad_address(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Let a launch touch a bad address, and see which later call says so."""
    diary, bench = Diary(probe), Workbench(probe)
    gpu, known, fresh = bench.gpu, bench.function(), bench.function()
    known.call()
    fresh.prepare()
    offset = arguments["offset"]
    address = None
    if offset is not None:
        # One more than an address of ours is misaligned, and an address of nobody is illegal.
        address = gpu.buffer() + int(offset) if offset else NOWHERE
    diary.created(False, "nothing has happened yet")
    well = [diary.attempt("launch that touches it", lambda: known.launch(address=address))]
    # The kernel is still running, or has failed and nobody has noticed.
    well.append(diary.attempt("same function at once", known.launch))
    well.append(diary.attempt("wait", gpu.wait))
    diary.created(not all(well), "the address was touched, and some call said so")
    diary.attempt("same function later", known.call)
    diary.attempt("first call of another function", fresh.call)


def odd_sizes(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Give upstream's functions sizes of nothing, or prefix sums at an odd address."""
    diary = Diary(probe)
    torch = probe.load("torch")
    device = use_device(probe, torch)
    probe.load("nvidia-cutlass-dsl")
    odd = bool(arguments["odd"])
    what = str(arguments["what"])
    calls = {
        "index rows": _index_call,
        "alignment": _index_call,
        "compaction rows": _compact_call,
        "compaction capacity": _compact_call,
        "backward rows": _backward_call,
    }
    call = calls[what](probe, torch, device, what, odd=odd)
    diary.created(odd, f"{what}: {'odd' if odd else 'ordinary'}")

    def complete() -> None:
        call()
        wait(torch, device)

    diary.attempt("first call", complete)
    diary.attempt("second call", complete)


def _index_call(
    probe: Session, torch: Any, device: Any, what: str, *, odd: bool
) -> Callable[[], Any]:
    build = member(mcore_layout.load(probe), "build_attention_indices")
    window = layouts.MODELS[probe.parameters["model"]].window
    # One number in front, for a view that begins four bytes later.
    sums = torch.tensor([0, 0, 200, 512], dtype=torch.int32, device=device)
    sums = sums[1:] if what == "alignment" and odd else sums[1:].clone()
    rows = 0 if what == "index rows" and odd else 128
    return lambda: build(sums, 128, rows, window, window, 0, 0)


def _compact_call(
    probe: Session, torch: Any, device: Any, what: str, *, odd: bool
) -> Callable[[], Any]:
    compact = member(mcore_layout.load(probe), "CompressorInputCompact")
    model = layouts.MODELS[probe.parameters["model"]]
    rows = 0 if what == "compaction rows" and odd else 128
    capacity = 0 if what == "compaction capacity" and odd else 40
    kind = {"dtype": torch.bfloat16, "device": device}
    hidden = torch.ones((rows, model.hidden), **kind)
    boundary = torch.ones((model.window, model.hidden), **kind)
    sums = torch.tensor([0, 200, 512], dtype=torch.int32, device=device)
    return lambda: compact.apply(hidden, boundary, sums, 128, 4, 8, capacity)


def _backward_call(
    probe: Session, torch: Any, device: Any, what: str, *, odd: bool
) -> Callable[[], Any]:
    del what
    backward = fe_backward.wrapper(probe)
    model = layouts.MODELS[probe.parameters["model"]]
    rows = 0 if odd else 64
    kind = {"dtype": torch.bfloat16, "device": device}
    shape = (rows, model.heads, model.head_dim)
    q, out, dout = (torch.ones(shape, **kind) for _ in range(3))
    whole = {"dtype": torch.int32, "device": device}
    inputs = {
        "q": q,
        "kv": torch.ones((256, model.head_dim), **kind),
        "out": out,
        "dout": dout,
        "lse": torch.full((rows, model.heads), 30.0, device=device),
        "attn_sink": torch.zeros(model.heads, device=device),
        "topk_idxs": torch.zeros((rows, 128), **whole),
        "softmax_scale": model.softmax_scale,
        "topk_length": torch.full((rows,), 128, **whole),
    }
    return lambda: backward(**inputs)
