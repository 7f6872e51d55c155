"""Tiny whole projects: a catalogue, wheels, a git repository and probes, all real and small."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.rooms import Rooms
from tests.wheels import make_wheel

REPOSITORY = Path(__file__).resolve().parent.parent

TORCH = """
__version__ = "{version}"
class version: cuda = None
class cuda:
    @staticmethod
    def is_available(): return False
class backends:
    class cudnn:
        @staticmethod
        def version(): return None
        @staticmethod
        def is_available(): return False
"""

#: What a probe's process imports of the standard library. The real torch imports all of it, so its
#: bytecode is there. The tiny one does not, and each of a thousand processes would compile it anew.
STANDARD = (
    "ctypes", "email.message", "hashlib", "importlib.metadata", "inspect", "json", "platform",
    "random", "shutil", "socket", "subprocess", "tempfile", "zipfile",
)  # fmt: skip

COMPONENTS = (
    """
[[component]]
name = "torch"
title = "PyTorch"
short = "torch"
kind = "torch"
distribution = "torch"
module = "torch"
reason = "tensors"
link = "https://example.org/torch"

[[component]]
name = "nvidia-cudnn"
title = "cuDNN"
short = "cuDNN"
kind = "cudnn"
reason = "library"
link = "https://example.org/cudnn"

[[component]]
name = "nvidia-cudnn-frontend"
title = "frontend"
short = "frontend"
kind = "package"
distribution = "nvidia-cudnn-frontend"
module = "cudnn"
precompile = ["cudnn", "cudnn.not_there:attribute", STANDARD]
extra = "cutedsl"
reason = "kernels"
link = "https://example.org/frontend"

[[component]]
name = "nvidia-cutlass-dsl"
title = "DSL"
short = "DSL"
kind = "package"
distribution = "nvidia-cutlass-dsl"
module = "cutlass"
reason = "compiler"
link = "https://example.org/dsl"

[[component]]
name = "megatron-core"
title = "Megatron Core"
short = "MCore"
kind = "git"
distribution = "megatron-core"
module = "megatron.core"
remote = "https://unreachable.invalid/megatron"
reason = "callers"
link = "https://example.org/megatron"
"""
).replace("STANDARD", ", ".join(f'"{name}"' for name in STANDARD))

CAMPAIGN = """
reason = "tests"
probes = {probes}

[components]
torch = "system"
nvidia-cudnn = "system"
megatron-core = "{revision}"

[[stack]]
name = "good"
reason = "fits together"
components = {{ nvidia-cudnn-frontend = "1.0", nvidia-cutlass-dsl = "2.0" }}
"""

PASSING = '''
"""Does one and one make two?

Sums.
"""
PROBE = {
    "id": "sum", "needs": ["torch"], "required": True, "group": "functional",
    "time_limit_s": 60, "parameters": {"quick": {"terms": 2}},
}

def run(probe):
    import cudnn
    with probe.check("sum") as check:
        check.expect(1 + 1 == 2, "numerics", "wrong")
    probe.control("off by one", failed=True)
    probe.measure(terms_count=2)
'''


def probe_source(name: str, body: str, *, needs: str = "['torch']", limit: float = 60) -> str:
    """A probe whose `run` has the given body."""
    return (
        f'"""What does {name} show?"""\n'
        f"PROBE = {{'id': {name!r}, 'needs': {needs}, 'required': True, 'group': 'functional', "
        f"'time_limit_s': {limit}, 'parameters': {{'quick': {{}}}}}}\n\n"
        "def run(probe):\n    probe.control('planted', failed=True)\n"
        + textwrap.indent(textwrap.dedent(body).strip() or "pass", "    ")
    )


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    output: str


@dataclass
class World:
    """One tiny project folder with its own wheelhouse and git repository."""

    root: Path
    wheels: Path
    upstream: Path
    revision: str

    @property
    def rooms(self) -> Rooms:
        return Rooms(self.root)

    def campaign(self, *probes: str, text: str = CAMPAIGN, more: str = "") -> None:
        """Write the default campaign."""
        listed = json.dumps(list(probes))
        path = self.rooms.campaigns / "default.toml"
        path.write_text(text.format(probes=listed, revision=self.revision) + more)

    def probe(self, name: str, source: str) -> None:
        """Add a probe."""
        (self.rooms.probes / f"{name.replace('-', '_')}.py").write_text(source)

    def command(self, *arguments: str, source: bool = True) -> list[str]:
        """`python -m matrix run` for this world, as nox calls it."""
        command = [sys.executable, "-m", "matrix", "--root", str(self.root), "run"]
        command += ["--wheelhouse", str(self.wheels), "--machine", "tiny", *arguments]
        return command + (["--source", f"megatron-core={self.upstream}"] if source else [])

    def run(self, *arguments: str, source: bool = True, **environment: str) -> Done:
        """Run the campaign in a process of its own."""
        done = subprocess.run(
            self.command(*arguments, source=source),
            cwd=REPOSITORY,
            env={**os.environ, "NO_COLOR": "1", **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        output = done.stdout + done.stderr
        assert "Traceback" not in output, output
        return Done(done.returncode, output)

    def records(self, probe: str | None = None) -> list[dict[str, Any]]:
        """The evidence as JSON, oldest first."""
        found = [
            json.loads(path.read_text())
            for path in sorted(
                self.rooms.evidence.glob("*/*/*.json"), key=lambda path: path.stat().st_mtime_ns
            )
        ]
        found.sort(key=lambda record: record["run"]["started"])
        return [record for record in found if probe in (None, record["probe"]["id"])]

    def record(self, probe: str) -> dict[str, Any]:
        """The only record of a probe."""
        (record,) = self.records(probe)
        return record


def make_world(folder: Path) -> World:
    """A project whose `good` stack resolves, installs, imports and passes."""
    root = folder / "project"
    rooms = Rooms(root)
    rooms.campaigns.mkdir(parents=True)
    rooms.evidence.mkdir(parents=True)
    (rooms.catalogue / "components.toml").write_text(COMPONENTS)
    shutil.copytree(
        REPOSITORY / "probes", rooms.probes, ignore=shutil.ignore_patterns("__pycache__")
    )
    for path in rooms.probes.glob("*.py"):
        if path.stem != "fingerprint" and "\nPROBE" in path.read_text():
            path.unlink()
    wheels = folder / "wheels"
    fill_wheelhouse(wheels)
    upstream, revision = make_upstream(folder / "upstream")
    world = World(root, wheels, upstream, revision)
    world.probe("sum", PASSING)
    world.campaign("fingerprint", "sum")
    return world


def fill_wheelhouse(wheels: Path) -> None:
    """Wheels of the tiny world; the DSL comes through a .pth file, as the real one does."""
    version = "2.0.0+cpu"
    make_wheel(wheels, "torch", version, {"torch/__init__.py": TORCH.format(version=version)})
    for number in ("1.0", "1.1"):
        make_wheel(
            wheels,
            "nvidia-cudnn-frontend",
            number,
            {"cudnn/__init__.py": f'__version__ = "{number}"\n'},
            requires=(f"nvidia-cutlass-dsl=={number[0]}.9; extra == 'cutedsl'",)
            if number == "1.0"
            else ("nvidia-cutlass-dsl>=3",),
            extras=("cutedsl",),
        )
    for number in ("2.0", "3.0"):
        make_wheel(
            wheels,
            "nvidia-cutlass-dsl",
            number,
            {
                "tiny_dsl/packages/cutlass/__init__.py": f'__version__ = "{number}"\n',
                "tiny_dsl.pth": "tiny_dsl/packages\n",
            },
        )


def make_upstream(folder: Path) -> tuple[Path, str]:
    """A git repository with one commit, and that commit's SHA."""
    package = folder / "megatron" / "core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.1"\n')
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for arguments in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "first"],
    ):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return folder, done.stdout.strip()
