"""The probe `compile`: for real where the compiler is installed, with a stand-in everywhere."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import pytest

from probes.adapters import fe_backward, mcore_layout
from tests.probes.asking import ROOM, Asker, Reply, component
from tests.probes.elf import make_cubin

MAIN = "backward main K=640"
LAYOUT_PARTS = {
    *(f"index mode {mode}" for mode in (0, 1, 2)),
    *(f"compact {way} ratio {ratio}" for way in ("forward", "backward") for ratio in (4, 128)),
}
PARTS = {"own kernel", *LAYOUT_PARTS, "backward pre", "backward post", MAIN}

LAYOUT = "".join(
    f"def {name}({', '.join(parameters)}): ...\n"
    for name, parameters in (
        ("_build_attention_indices_launch", mcore_layout.INDEX_LAUNCH_PARAMETERS),
        ("_compressor_input_compact_fwd_launch", mcore_layout.COMPACT_FORWARD_PARAMETERS),
        ("_compressor_input_compact_bwd_launch", mcore_layout.COMPACT_BACKWARD_PARAMETERS),
    )
)


class Compiler:
    """Stands in for `cute.compile`: refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.refused: dict[str, Exception] = {"add_text": TypeError("unsupported operand")}
        self.registers = 32
        self.dynamic_shared_bytes = 12
        self.seen: list[tuple[str, int]] = []

    def __call__(self, function: Any, *arguments: Any, options: str) -> Any:
        assert "--gpu-arch sm_90a" in options
        name = getattr(function, "__name__", type(function).__name__)
        call = function if inspect.isfunction(function) else function.__call__
        if call.__name__ != "add_text":
            inspect.signature(call).bind(*arguments)  # as many arguments as it takes
        self.seen.append((name, len(arguments)))
        if name in self.refused:
            raise self.refused[name]
        cubin = make_cubin(name, registers=self.registers, frame=0, shared=1024)
        mlir = f"dynamicSmemBytes = %c{self.dynamic_shared_bytes}_i64, x"
        return types.SimpleNamespace(artifacts=types.SimpleNamespace(CUBIN=cubin, MLIR=mlir))


def kernel_class(name: str, parameters: tuple[str, ...]) -> type:
    names: dict[str, Callable[..., None]] = {}
    exec(f"def __call__(self, {', '.join(parameters)}): ...", names)  # noqa: S102
    members = {"__init__": lambda self, *a, **k: None, "__call__": names["__call__"]}
    return type(name, (), members)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler()

    def module(name: str, **members: Any) -> types.ModuleType:
        new = types.ModuleType(name)
        new.__path__ = []
        for key, value in members.items():
            setattr(new, key, value)
        monkeypatch.setitem(sys.modules, name, new)
        return new

    def same(function: Any) -> Any:
        return function

    arch = types.SimpleNamespace()
    runtime = module(
        "cutlass.cute.runtime",
        make_fake_tensor=lambda dtype, shape, stride, assumed_align: (dtype, shape, stride),
        make_fake_stream=lambda use_tvm_ffi_env_stream: "stream",
    )
    cute = module(
        "cutlass.cute", compile=made, kernel=same, jit=same, Tensor=Any, arch=arch,
        runtime=runtime, sym_int=lambda: "n", sym_int64=lambda: "s",
    )  # fmt: skip
    module("cutlass", cute=cute, Int32=int, BFloat16="bf16", Float32="f32", __version__="4.5.2")
    module("cuda")
    module("cuda.bindings")
    module("cuda.bindings.driver", CUstream=Any)
    module("cudnn", __version__="1.26.0")
    module("cudnn.deepseek_sparse_attention")
    module("cudnn.deepseek_sparse_attention.sparse_attention_backward")
    module(
        fe_backward._KERNELS,
        _FlashAttentionDSABackwardPreprocessSm90=kernel_class("Pre", fe_backward._PRE_PARAMETERS),
        FlashAttentionDSABackwardSm90=kernel_class("Main", fe_backward._MAIN_PARAMETERS),
        _FlashAttentionDSABackwardPostprocessSm90=kernel_class(
            "Post", fe_backward._POST_PARAMETERS
        ),
    )
    monkeypatch.delitem(sys.modules, "probes.own_kernels", raising=False)
    for name in ("CUTE_DSL_KEEP", "CUTE_DSL_DUMP_DIR"):
        monkeypatch.setenv(name, "")  # the probe sets them; undo that afterwards
    yield made
    sys.modules.pop("probes.own_kernels", None)


def ask(asker: Asker, *, layout: str | None = LAYOUT, **components: Any) -> Reply:
    tree = asker.folder / "tree"
    file = tree / mcore_layout.HOMES[-1]
    file.parent.mkdir(parents=True)
    if layout is not None:
        file.write_text(layout, encoding="utf-8")
    asker.trees = {"megatron-core": {"path": str(tree), "revision": "f" * 40, "tree": None}}
    asker.components = {
        "torch": component("2", module="json"),  # only its import is asked for here
        "nvidia-cutlass-dsl": component("4.5.2", module="cutlass"),
        "nvidia-cudnn-frontend": component("1.26.0", module="cudnn"),
        "megatron-core": component("f" * 40, module="megatron.core", origin="tree"),
        **components,
    }
    return asker.here("compile")


def test_everything_compiles(asker: Asker, compiler: Compiler) -> None:
    reply = ask(asker)
    assert reply.end["status"] == "pass", reply.end
    assert set(reply.parts) == PARTS
    assert reply.controls == {"a type error": True}
    assert reply.parts[MAIN]["measure"].items() >= {
        ("registers", 32),
        ("stack_frame_bytes", 0),
        ("static_shared_bytes", 1024),
        ("dynamic_shared_bytes", 12),
    }
    assert len(compiler.seen) == len(PARTS) + 1


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("Main", MAIN),
        ("_build_attention_indices_launch", "index mode 2"),
        ("add_one", "own kernel"),
    ],
)
def test_a_kernel_that_does_not_compile_fails(
    asker: Asker, compiler: Compiler, kernel: str, part: str
) -> None:
    compiler.refused[kernel] = TypeError("atomicrmw() missing 'res'")
    reply = ask(asker)
    assert reply.parts[part]["reason"] == "compile:TypeError"
    assert reply.end["status"] == "fail"
    assert reply.parts["backward post"]["status"] == "pass"


def test_a_kernel_that_no_device_can_run_fails(asker: Asker, compiler: Compiler) -> None:
    compiler.dynamic_shared_bytes = 232_448
    reply = ask(asker)
    assert reply.end["reason"] == "compile:ResourceLimit"
    assert "233472 bytes" in reply.end["detail"]


def test_a_compiler_that_takes_anything_is_not_believed(asker: Asker, compiler: Compiler) -> None:
    del compiler.refused["add_text"]
    reply = ask(asker)
    assert (reply.end["status"], reply.end["reason"]) == ("error", "control:not-caught")


def test_without_megatron_core_the_frontends_kernels_still_count(
    asker: Asker, compiler: Compiler
) -> None:
    reply = ask(asker, **{"megatron-core": component("f" * 40, absent="source:unreachable")})
    assert {reply.parts[name]["reason"] for name in LAYOUT_PARTS} == {"source:unreachable"}
    assert {reply.parts[name]["status"] for name in LAYOUT_PARTS} == {"miss"}
    assert reply.parts[MAIN]["status"] == "pass"


def test_an_upstream_without_the_kernels_is_skipped(
    asker: Asker, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, fe_backward._KERNELS)
    reply = ask(asker, layout=None)
    skipped = {name for name, part in reply.parts.items() if part["reason"] == "upstream:absent"}
    assert skipped == PARTS - {"own kernel"}
    assert reply.end["status"] == "skip"


def test_a_changed_signature_is_our_error(asker: Asker, compiler: Compiler) -> None:
    reply = ask(asker, layout=LAYOUT.replace("launch_work, ", "launch_work, more, "))
    assert reply.parts["index mode 0"]["reason"] == "probe:UnknownShape"
    assert reply.parts["compact forward ratio 4"]["status"] == "pass"


def test_a_renamed_kernel_is_our_error(asker: Asker, compiler: Compiler) -> None:
    reply = ask(asker, layout=LAYOUT.replace("compact_bwd", "compact_backward"))
    assert reply.parts["compact backward ratio 4"]["reason"] == "probe:UnknownShape"


def test_a_cubin_that_can_not_be_read_is_our_error(
    asker: Asker, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.probes.test_compile.make_cubin", lambda *_, **__: b"")
    reply = ask(asker)
    assert reply.parts["own kernel"]["reason"] == "probe:UnknownArtifact"


@pytest.mark.skipif(
    importlib.util.find_spec("nvidia_cutlass_dsl") is None
    or importlib.util.find_spec("torch") is None,
    reason="CUTLASS DSL, or torch, is not installed here; the probe runs in tested environments",
)
def test_for_real_what_is_installed_here(asker: Asker) -> None:
    names = {"nvidia-cutlass-dsl": "cutlass", "torch": "torch"}
    asker.components = {
        name: component(version(name), distribution=name, module=module)
        for name, module in names.items()
    }
    reply = asker.outside(ROOM, asker.request("compile", {}), timeout=300)
    own = reply.parts["own kernel"]
    assert own["status"] == "pass", own
    assert 0 < own["measure"]["registers"] < 64
    assert reply.controls == {"a type error": True}
    assert {reply.parts[name]["reason"] for name in LAYOUT_PARTS} == {"upstream:absent"}
