"""A whole tiny project: catalogue, campaign, probes and evidence, made with the real models."""

from __future__ import annotations

import datetime as dt
import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.keeping.records import Record
from matrix.keeping.store import Store
from matrix.probe_specs import ProbeSpec, load_probe_specs
from matrix.rooms import Rooms
from matrix.stacks import stack_id

PROJECT = Path(__file__).resolve().parents[2]
MCORE = "0e6ac576fba8995fca541ceb6af5f35eb0e4f16e"
TREE = "5e1f3c2a9b8d7e6f5a4b3c2d1e0f9a8b7c6d5e4f"

REQUESTED = {
    "torch": "2.11.0",
    "nvidia-cudnn": "9.16.0.29",
    "nvidia-cudnn-frontend": "1.26.0",
    "nvidia-cutlass-dsl": "4.5.2",
    "apache-tvm-ffi": "0.1.11",
    "megatron-core": MCORE,
}

GPU = {
    "name": "h200-a",
    "gpu": "NVIDIA H200",
    "sm": "sm90",
    "driver": "580.105.08",
    "cuda": "13.0",
    "torch_cuda": "12.9",
    "python": "3.12.11",
    "cpu": "Intel Xeon Platinum 8468",
    "kernel": "6.8.0",
}
OTHER_GPU = GPU | {"name": "h200-b"}
BLACKWELL = GPU | {"name": "b200", "gpu": "NVIDIA B200", "sm": "sm100"}
CPU = GPU | {
    "name": "laptop",
    "gpu": None,
    "sm": None,
    "driver": None,
    "cuda": None,
    "torch_cuda": None,
    "cpu": "AMD EPYC 9554",
}

PROBES: dict[str, dict[str, Any]] = {
    "fingerprint": {"group": "gate", "required": False, "needs": list(REQUESTED)},
    "compile": {
        "group": "functional",
        "required": True,
        "needs": ["nvidia-cudnn-frontend", "nvidia-cutlass-dsl"],
    },
    "layout-indices": {
        "group": "functional",
        "required": True,
        "needs": ["gpu:sm90", "torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "megatron-core"],
    },
    "speed": {"group": "timing", "required": False, "needs": ["gpu:sm90", "torch"]},
}
REQUIRED = ("fingerprint", "compile", "layout-indices")


LOCK = "nvidia-cutlass-dsl==4.5.2\n"
PART = {"name": "everything", "status": "pass"}
CONTROL = {"name": "a wrong answer", "failed": True}


@dataclass
class World:
    """A project folder that tests fill."""

    root: Path
    rooms: Rooms = field(init=False)
    moment: dt.datetime = dt.datetime(2026, 11, 1, 12, 0, tzinfo=dt.UTC)
    made: int = 0

    def __post_init__(self) -> None:
        self.rooms = Rooms(self.root)
        self.rooms.campaigns.mkdir(parents=True)
        self.rooms.probes.mkdir()
        shutil.copy(PROJECT / "matrix" / "catalogue" / "components.toml", self.rooms.catalogue)
        for probe, declared in PROBES.items():
            self.probe(probe, **declared)

    def probe(self, probe: str, *, question: str = "", method: str = "", **declared: Any) -> None:
        """A stub: only its declaration is ever read."""
        declared = {"id": probe, "time_limit_s": 60, "parameters": {"quick": {}}} | declared
        docstring = f"{question or f'Does {probe} work?'}\n\n{method}"
        self.rooms.probes.joinpath(f"{probe.replace('-', '_')}.py").write_text(
            f"{docstring!r}\nPROBE = {declared!r}\n", encoding="utf-8"
        )

    def campaign(self, name: str = "default", reason: str = "for the test", **stacks: str) -> None:
        """A campaign of stacks that differ in their CUTLASS DSL, `stacks` by name."""
        shared = {key: v for key, v in REQUESTED.items() if key != "nvidia-cutlass-dsl"}
        lines = [f'reason = "{reason}"', f"probes = {list(PROBES)}", "[components]"]
        lines += [f'{key} = "{version}"' for key, version in shared.items()]
        lines += ['flash-mla = "none"']
        for stack, dsl in stacks.items():
            lines += ["[[stack]]", f'name = "{stack}"', f"reason = '''{reason}'''"]
            lines += ["[stack.components]", f'nvidia-cutlass-dsl = "{dsl}"']
        self.rooms.campaigns.joinpath(f"{name}.toml").write_text("\n".join(lines))

    @property
    def specs(self) -> dict[str, ProbeSpec]:
        return load_probe_specs(self.rooms)

    def run(
        self,
        probe: str,
        status: str = "pass",
        reason: str | None = None,
        *,
        machine: dict[str, Any] = GPU,
        requested: dict[str, str] | None = None,
        revision: str | None = None,
        stack: dict[str, Any] | None = None,
        **more: Any,
    ) -> Record:
        """Keep one record, an hour after the one before, and return it."""
        self.made += 1
        self.moment += dt.timedelta(hours=1)
        asked = requested or REQUESTED
        specs = self.specs
        if status == "pass":
            more = {"parts": [PART], "control": [CONTROL]} | more
        record = Record.model_validate(
            {
                "run": {
                    "id": f"{self.moment:%Y%m%dT%H%M%SZ}-{self.made:08x}",
                    "started": self.moment,
                    "seconds": 12.5,
                },
                "machine": machine,
                "stack": {
                    "id": stack_id(asked),
                    "requested": asked,
                    "resolved": {k: v for k, v in asked.items() if k != "megatron-core"},
                    "loaded": {},
                    "lock": hashlib.sha256(LOCK.encode()).hexdigest(),
                    "source": {"megatron-core": {"revision": MCORE, "tree": TREE}},
                }
                | (stack or {}),
                "probe": {
                    "id": probe,
                    "revision": revision or specs[probe].revision,
                    "parameters": {"seed": 7},
                },
                "status": status,
                "reason": reason,
            }
            | more
        )
        store = Store(self.rooms)
        if record.stack.lock is not None:
            store.add_lock(record.machine.name, record.stack.id, record.stack.lock, LOCK)
        store.add(record)
        return record

    def passes(self, *probes: str, times: int = 1, **more: Any) -> None:
        for _ in range(times):
            for probe in probes or REQUIRED:
                self.run(probe, **more)

    def records(self) -> list[Record]:
        return [record for _, record in Store(self.rooms).records()]
