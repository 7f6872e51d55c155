"""A small world with evidence for every verdict and every state of a cell, and hostile words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matrix.stacks import stack_id
from tests.site.world import BLACKWELL, CPU, OTHER_GPU, World

COMPONENTS = """
[[component]]
name = "torch"
title = "PyTorch"
short = "torch"
kind = "torch"
distribution = "torch"
module = "torch"
reason = "Holds the tensors."
link = "https://example.org/torch"

[[component]]
name = "nvidia-cudnn"
title = "cuDNN"
short = "cuDNN"
kind = "cudnn"
reason = "A library."
link = "https://example.org/cudnn"

[[component]]
name = "nvidia-cudnn-frontend"
title = "cuDNN Frontend"
short = "frontend"
kind = "package"
distribution = "nvidia-cudnn-frontend"
module = "cudnn"
reason = "Kernels."
link = "https://example.org/frontend"

[[component.version]]
version = "1.32.0"
date = 2026-10-27
reason = "The newest."
link = "https://example.org/frontend/1.32.0"

[[component]]
name = "nvidia-cutlass-dsl"
title = "CUTLASS DSL"
short = "DSL"
kind = "package"
distribution = "nvidia-cutlass-dsl"
module = "cutlass"
reason = "A compiler."
link = "https://example.org/dsl"

[[component]]
name = "apache-tvm-ffi"
title = "TVM-FFI"
short = "TVM-FFI"
kind = "package"
distribution = "apache-tvm-ffi"
module = "tvm_ffi"
reason = "Calls."
link = "https://example.org/ffi"

[[component]]
name = "megatron-core"
title = "Megatron Core"
short = "MCore"
kind = "git"
distribution = "megatron-core"
module = "megatron.core"
remote = "https://example.org/megatron.git"
reason = "The trainer."
link = "https://example.org/megatron"

[[component]]
name = "flash-mla"
title = "FlashMLA"
short = "FlashMLA"
kind = "image"
distribution = "flash-mla"
module = "flash_mla"
reason = "A forward."
link = "https://example.org/flashmla"
"""

HEAD = "2b3e3b70c2ae884dc4efb6ee621a8c21ac018ae0"
CANDIDATE = f"""
component = "megatron-core"
repository = "https://example.org/megatron"
number = 6206
title = "Mends a layout"
reason = "Named by the report."
claims = "The layout is right."
state = "open"
target = "dev"
head = "{HEAD}"
seen = 2026-11-30
probes = ["layout-indices"]
links = ["https://example.org/megatron/pull/6206"]
"""
CLAIMS = """
[[claim]]
id = "old-dsl-cannot-compile"
statement = "DSL 4.5.2 does not compile."
contradiction = "It compiles."
links = ["https://example.org/claim"]
date = 2026-07-06
level = "hard"
basis = "thread"
[claim.when]
versions = { nvidia-cutlass-dsl = "==4.5.2" }
[[claim.expect]]
probe = "compile"
status = "fail"
each_time = true
"""
REPORTS = """
[[report]]
id = "report-1"
title = "It fails at times"
link = "https://example.org/issue"
date = 2026-09-14
reason = "For the test."
stack = "reported"
candidates = ["mcore-6206"]
components = { torch = "2.11.0", nvidia-cudnn = "9.15.0.1" }
[[report.symptom]]
reason = "cuda:unknown"
where = "the layout"
probes = ["layout-indices"]
"""

#: In errors, names of parts and of controls.
HOSTILE = "<img src=x onerror=alert(1)> **bold** [x](javascript:alert(1)) =cmd|'/c calc'!A1"

BASE = {
    "torch": "2.11.0",
    "nvidia-cudnn": "9.16.0.29",
    "nvidia-cudnn-frontend": "1.26.0",
    "nvidia-cutlass-dsl": "4.5.2",
    "apache-tvm-ffi": "0.1.11",
    "megatron-core": "0e6ac576fba8995fca541ceb6af5f35eb0e4f16e",
    "flash-mla": "none",
}


def asks(**versions: str) -> dict[str, str]:
    return BASE | {name.replace("_", "-"): version for name, version in versions.items()}


#: Name -> what each stack asks for.
STACKS = {
    "reported": asks(),
    "supported": asks(nvidia_cudnn_frontend="1.32.0", nvidia_cutlass_dsl="4.8.1"),
    "caveat": asks(nvidia_cudnn_frontend="1.31.0", nvidia_cutlass_dsl="4.8.1"),
    "flaky": asks(nvidia_cudnn_frontend="1.29.1", nvidia_cutlass_dsl="4.8.1"),
    "conflict": asks(nvidia_cudnn_frontend="1.32.0"),
    "planned": asks(nvidia_cudnn_frontend="1.30.0", nvidia_cutlass_dsl="4.8.1"),
    "elsewhere": asks(nvidia_cudnn_frontend="1.28.0", nvidia_cutlass_dsl="4.8.1"),
}


def make_golden(root: Path) -> World:
    """The world, with all its evidence."""
    world = World(root)
    (world.rooms.catalogue / "components.toml").write_text(COMPONENTS)
    (world.rooms.catalogue / "claims.toml").write_text(CLAIMS)
    (world.rooms.catalogue / "reports.toml").write_text(REPORTS)
    world.rooms.candidates.mkdir(parents=True)
    (world.rooms.candidates / "mcore-6206.toml").write_text(CANDIDATE)
    lines = ['reason = "all"', 'probes = ["fingerprint", "compile", "layout-indices", "speed"]']
    for name, versions in STACKS.items():
        lines += ["[[stack]]", f'name = "{name}"', 'reason = "for the test"', "[stack.components]"]
        lines += [f'{part} = "{version}"' for part, version in versions.items()]
    (world.rooms.campaigns / "default.toml").write_text("\n".join(lines))

    world.passes("fingerprint", "compile", **of("reported"))
    world.run("layout-indices", "fail", "cuda:illegal-address", detail=HOSTILE, **of("reported"))
    world.run("speed", "error", "probe:ValueError", detail=HOSTILE, **of("reported"))
    world.passes(times=3, **of("supported"))
    world.passes("speed", **of("supported"))
    world.passes("layout-indices", machine=OTHER_GPU, **of("supported"))
    world.passes(**of("caveat"))
    part = {"name": HOSTILE, "status": "fail", "reason": "timeout", "detail": HOSTILE}
    world.run("speed", "fail", "timeout", parts=[part], **of("caveat"))
    world.passes(**of("flaky"))
    world.run("layout-indices", "fail", "numerics", **of("flaky"))
    world.run("speed", "void", "loaded:mismatch", **of("flaky"))
    world.run("fingerprint", "fail", "resolve:conflict", detail=HOSTILE, **of("conflict"))
    world.passes("fingerprint", "compile", machine=CPU, **of("elsewhere"))
    world.run("layout-indices", "miss", "machine:no-gpu", machine=CPU, **of("elsewhere"))
    world.run("layout-indices", "fail", "numerics", machine=BLACKWELL, **of("elsewhere"))
    world.run("speed", "skip", "upstream:absent", **of("elsewhere"))
    patched = of("reported")
    patched["stack"] = {
        "id": stack_id(BASE, (("mcore-6206", HEAD),)),
        "patches": [{"id": "mcore-6206", "head": HEAD, "result": "clean"}],
    }
    world.passes("fingerprint", "compile", "layout-indices", **patched)
    return world


def of(name: str) -> dict[str, Any]:
    return {"requested": STACKS[name]}
