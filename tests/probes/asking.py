"""Running a probe in a test: in a process of its own through the runner, or in this process."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.answer import Answer
from probes.session import Session

ROOM = Path(__file__).resolve().parents[2] / "probes"


@dataclass
class Reply:
    """The lines of an answer."""

    lines: list[dict[str, Any]]
    returncode: int = 0
    log: str = ""
    raw: str = ""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def end(self) -> dict[str, Any]:
        (line,) = self.of("end")
        return line

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        parts = {line["name"]: line for line in self.of("part")}
        assert len(parts) == len(self.of("part")), "a part was reported twice"
        return parts

    @property
    def controls(self) -> dict[str, bool]:
        return {line["name"]: line["failed"] for line in self.of("control")}

    @property
    def measure(self) -> dict[str, Any]:
        return {
            name: value for line in self.of("measure") for name, value in line["values"].items()
        }

    @property
    def loaded(self) -> dict[str, Any]:
        lines = self.of("loaded")
        return lines[-1]["components"] if lines else {}


def component(requested: str, **more: Any) -> dict[str, Any]:
    """A component's entry in a request."""
    return {
        "requested": requested,
        "resolved": None,
        "distribution": None,
        "module": None,
        "origin": None,
        "absent": None,
        **more,
    }


@dataclass
class Asker:
    """Makes requests whose places lie below one folder."""

    folder: Path
    components: dict[str, dict[str, Any]] = field(default_factory=dict)
    trees: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: Path | None = None

    def request(self, probe: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        scratch = self.folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        return {
            "protocol": 1,
            "probe": probe,
            "parameters": {"setting": "quick", "seed": 7, **parameters},
            "components": self.components,
            "trees": self.trees,
            "environment": str(self.environment or sys.prefix),
            "image": [],
            "scratch": str(scratch),
        }

    def here(self, probe: str, **parameters: Any) -> Reply:
        """Run a real probe in this process, so that a test can give it stand-ins."""
        request = self.request(probe, parameters)
        path = self.folder / "answer.jsonl"
        with path.open("wb") as stream:
            session = Session(request, Answer(stream.fileno()))
            with session.guard():
                module = importlib.import_module(f"probes.{probe.replace('-', '_')}")
                session.use_defaults(module.PROBE["parameters"])
                module.run(session)
            session.end()
        text = path.read_text(encoding="utf-8")
        return Reply([json.loads(line) for line in text.splitlines()], raw=text)

    def room_with(self, **probes: str) -> Path:
        """A probes room with the real machinery and only the probes given, by file name."""
        room = self.folder / "project" / "probes"
        room.mkdir(parents=True)
        for name in (
            "__init__", "runner", "answer", "session", "reasons", "redaction", "loading",
            "gpu_turn",
        ):  # fmt: skip
            shutil.copy(ROOM / f"{name}.py", room)
        for name, source in probes.items():
            (room / f"{name}.py").write_text(source, encoding="utf-8")
        return room

    def outside(
        self, room: Path, request: Mapping[str, Any] | str, *, timeout: float = 60
    ) -> Reply:
        """Run the runner of a room as the host does."""
        scratch = self.folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        text = request if isinstance(request, str) else json.dumps(request)
        done = subprocess.run(
            [sys.executable, "-s", "-P", str(room / "runner.py")],
            input=text,
            capture_output=True,
            text=True,
            cwd=scratch,
            env={"HOME": str(scratch), "TMPDIR": str(scratch), "PATH": os.environ["PATH"],
                 "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=timeout,
            check=False,
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return Reply(lines, done.returncode, done.stderr, done.stdout)
