"""Does every kernel compile for SM90, and what does it need of the hardware?

Compiled for `sm_90a` with the arguments that upstreams' own callers give, on any machine, with no
GPU: Megatron Core's `_build_attention_indices_launch` in its three modes, and
`_compressor_input_compact_fwd_launch` and `_bwd_launch` for both compression ratios (bfloat16 rows
of the model's hidden size, int32 prefix sums); the three SM90 kernels of cuDNN Frontend's sparse
attention backward (bfloat16 data, float32 sums, int32 indices, widths as given).

A part passes when the DSL made a cubin with one kernel that fits the hardware: at most 255
registers a thread and, static and dynamic together, at most 232,448 bytes of shared memory a
block, which is what NVIDIA's compute capability tables give for 9.0. A spill to local memory shows
as a stack frame; it is measured and no failure. Nothing is launched, so a pass says nothing about
results.

Controls: a kernel that adds a text to a number must not compile. A right one of ours must, which
is a part of its own: it tells a broken DSL from a broken kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from probes import layouts
from probes.adapters import fe_backward, mcore_layout
from probes.adapters.dsl import Compiled, Dsl, keep_artifacts
from probes.adapters.shapes import expect_parameters, member
from probes.layouts import Model
from probes.session import Concluded, Session

PROBE: Final = {
    "id": "compile",
    "needs": ["torch", "nvidia-cutlass-dsl"],
    "required": True,
    "group": "functional",
    "time_limit_s": 300,
    "parameters": {
        "quick": {"model": "dsv4-flash", "widths": [640], "lengths": [True]},
        "thorough": {
            "model": "dsv4-flash",
            "widths": [128, 640, 1023],
            "lengths": [True, False],
        },
    },
}

MAX_REGISTERS = 255
MAX_SHARED_BYTES = 232_448


def run(probe: Session) -> None:
    """Compile everything, cheapest first, then the controls."""
    keep_artifacts(probe.scratch)
    probe.load("torch")
    dsl = Dsl(probe)
    from probes import own_kernels

    values = (dsl.tensor(dsl.cutlass.Int32, 1), dsl.stream())
    _part(probe, "own kernel", partial(dsl.compile, own_kernels.add_one, *values))
    _layout_parts(probe, dsl)
    _backward_parts(probe, dsl)

    probe.step("control: a kernel with a type error")
    try:
        dsl.compile(own_kernels.add_text, *values)
    except Exception as error:  # noqa: BLE001 - any refusal will do, and its type varies
        caught = type(error).__name__
    else:
        caught = ""
    probe.control("a type error", failed=caught, detail=f"refused with {caught or 'nothing'}")


def _part(probe: Session, name: str, compile_it: Callable[[], Compiled]) -> None:
    with probe.check(name) as check:
        with probe.tested("compile", name):
            compiled = compile_it()
        check.measure.update(compiled.measure())
        found = compiled.resources
        check.expect(
            0 < found.registers <= MAX_REGISTERS,
            "compile:ResourceLimit",
            f"{found.registers} registers a thread, the limit is {MAX_REGISTERS}",
        )
        shared = found.static_shared_bytes + (compiled.dynamic_shared_bytes or 0)
        check.expect(
            shared <= MAX_SHARED_BYTES,
            "compile:ResourceLimit",
            f"{shared} bytes of shared memory a block, the limit is {MAX_SHARED_BYTES}",
        )


def _same_for(probe: Session, names: list[str], concluded: Concluded) -> None:
    """Report one verdict for every kernel of a module that could not be loaded."""
    for name in names:
        with probe.check(name):
            raise concluded


def _layout_parts(probe: Session, dsl: Dsl) -> None:
    ratios = (4, 128)
    modes = {f"index mode {mode}": mode for mode in (0, 1, 2)}
    compactions = {
        f"compact {way} ratio {ratio}": (way, ratio)
        for ratio in ratios
        for way in ("forward", "backward")
    }
    try:
        module = mcore_layout.load(probe)
    except Concluded as concluded:
        _same_for(probe, [*modes, *compactions], concluded)
        return
    for name, mode in modes.items():
        _part(probe, name, partial(_index, module, dsl, mode))
    model = layouts.MODELS[probe.parameters["model"]]
    for name, (way, ratio) in compactions.items():
        _part(probe, name, partial(_compact, module, dsl, way, ratio, model))


def _index(module: Any, dsl: Dsl, mode: int) -> Compiled:
    launch = member(module, "_build_attention_indices_launch")
    expect_parameters(launch.__name__, launch, mcore_layout.INDEX_LAUNCH_PARAMETERS)
    i32 = dsl.cutlass.Int32
    # In the order of the launch function's parameters: seven tensors, then scalars, of which
    # only the mode is fixed when the kernel is compiled.
    tensors = [dsl.tensor(i32, dimensions) for dimensions in (1, 1, 2, 1, 2, 1, 2)]
    return dsl.compile(launch, *tensors, *[i32(1)] * 10, mode, i32(1), dsl.stream())


def _compact(module: Any, dsl: Dsl, way: str, ratio: int, model: Model, /) -> Compiled:
    i32, bf16 = dsl.cutlass.Int32, dsl.cutlass.BFloat16
    d_comp = 8 if ratio == 4 else ratio
    scalars = [*[i32(1)] * 3, ratio, d_comp, max(model.window, d_comp), i32(1), model.hidden]
    rows = [dsl.tensor(bf16, 2) for _ in range(3)]
    if way == "forward":
        launch = member(module, "_compressor_input_compact_fwd_launch")
        expect_parameters(launch.__name__, launch, mcore_layout.COMPACT_FORWARD_PARAMETERS)
        tensors = [*rows, dsl.tensor(i32, 1), dsl.tensor(i32, 1)]
        return dsl.compile(launch, *tensors, *scalars, dsl.stream())
    launch = member(module, "_compressor_input_compact_bwd_launch")
    expect_parameters(launch.__name__, launch, mcore_layout.COMPACT_BACKWARD_PARAMETERS)
    return dsl.compile(launch, *rows, dsl.tensor(i32, 1), *scalars, i32(1), dsl.stream())


def _backward_parts(probe: Session, dsl: Dsl) -> None:
    model = layouts.MODELS[probe.parameters["model"]]
    head_dim = model.head_dim
    mains = {
        f"backward main K={width}{'' if has_length else ' without lengths'}": (width, has_length)
        for width in probe.parameters["widths"]
        for has_length in probe.parameters["lengths"]
    }
    try:
        module = fe_backward.kernels(probe)
    except Concluded as concluded:
        _same_for(probe, ["backward pre", "backward post", *mains], concluded)
        return
    _part(probe, "backward pre", partial(fe_backward.compile_pre, module, dsl, head_dim))
    _part(probe, "backward post", partial(fe_backward.compile_post, module, dsl, head_dim))
    for name, (width, has_length) in mains.items():
        main = partial(fe_backward.compile_main, head_dim=head_dim, heads=model.heads)
        main = partial(main, width=int(width), has_length=bool(has_length))
        _part(probe, name, partial(main, module, dsl))
