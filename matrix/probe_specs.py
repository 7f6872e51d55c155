"""What the host knows of a probe: read from its source, without importing it.

A probe imports the software under test, so the host never imports a probe.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from matrix.errors import DataError
from matrix.keeping.records import Number
from matrix.models import Model, Slug, explain
from matrix.rooms import Rooms


@dataclass(frozen=True)
class Source:
    """A module of the probes room."""

    code: bytes
    """Without docstrings, comments and empty lines."""
    imports: list[Path]
    """The modules of the room that it imports."""


#: What was read already, since probes share most of their modules.
Sources = dict[Path, Source]


class ProbeSpec(Model):
    """One question."""

    id: Slug
    question: str
    """First line of the probe's docstring."""
    method: str
    """The rest of the docstring."""
    needs: list[str]
    """Component names, and `gpu:sm90` for a GPU of that architecture."""
    required: bool
    """Whether a stack must pass this to be supported."""
    group: Literal["gate", "functional", "timing", "soak", "mechanism", "health"]
    """What kind of question it is. A gate comes before all others; health is asked of machines."""
    gpus: int = Field(default=1, ge=1)
    """How many GPUs of that architecture its process is shown, if it needs any."""
    all_gpus: bool = False
    """Whether it is shown all others as well, and may use all nodes of a Slurm allocation."""
    alone: bool | Literal["children"] = False
    """Whether it needs the GPU for itself in a part of its run, which it announces; `children` when
    only processes that it starts use the GPU, and see to that themselves."""
    time_limit_s: float = Field(gt=0)
    parameters: dict[str, dict[str, Number | list[Number]]]
    """Parameter settings by name; `quick` is always there."""
    revision: str
    """Hash of the probe's code and of every module of the probes room it imports."""

    @property
    def gpu(self) -> str | None:
        """The GPU architecture it needs, such as `sm90`, or None."""
        return next((need[4:] for need in self.needs if need.startswith("gpu:")), None)


def gates_of(specs: Mapping[str, ProbeSpec]) -> frozenset[str]:
    """Ids of the probes that say what is installed, and are asked before all others."""
    return frozenset(probe for probe, spec in specs.items() if spec.group == "gate")


def load_probe_specs(rooms: Rooms) -> dict[str, ProbeSpec]:
    """Every probe of the room, by id; gates first, then by id.

    Raises:
        DataError: a probe's declaration is malformed.
    """
    specs = []
    sources: Sources = {}
    for path in sorted(rooms.probes.glob("*.py")):
        spec = _read(rooms, path, sources)
        if spec is not None:
            specs.append(spec)
    specs.sort(key=lambda spec: (spec.group != "gate", spec.gpu is not None, spec.id))
    return {spec.id: spec for spec in specs}


def _read(rooms: Rooms, path: Path, sources: Sources) -> ProbeSpec | None:
    shown = rooms.shown(path)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DataError(f"{shown} does not parse: {error}. Mend it.") from None
    declared = _literal(tree, "PROBE", shown)
    if declared is None:
        return None
    question, _, method = (ast.get_docstring(tree) or "").partition("\n")
    try:
        spec = ProbeSpec.model_validate(
            {
                **declared,
                "question": question.strip(),
                "method": method.strip(),
                "revision": source_revision(rooms.probes, path, sources),
            }
        )
    except ValidationError as error:
        raise DataError(f"{shown}: PROBE does not fit a probe's form:\n{explain(error)}") from None
    if spec.id.replace("-", "_") != path.stem:
        raise DataError(f"{shown}: the probe calls itself {spec.id!r}; its file must match.")
    if not spec.question:
        raise DataError(f"{shown}: the docstring's first line must be the probe's question.")
    if "quick" not in spec.parameters:
        raise DataError(f"{shown}: PROBE has no parameter setting 'quick'.")
    return spec


def _literal(tree: ast.Module, name: str, shown: str) -> dict[str, object] | None:
    for node in tree.body:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        if value is not None and any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        ):
            try:
                literal = ast.literal_eval(value)
            except ValueError:
                literal = None
            if not isinstance(literal, dict):
                raise DataError(f"{shown}: {name} must be a plain literal dictionary.")
            return literal
    return None


def source_revision(room: Path, path: Path, sources: Sources) -> str:
    """16 hexadecimal digits over a module's code and all it imports from the probes room.

    Words are no part of it: evidence outlives a better sentence in a docstring or a comment.
    The runner and what it imports are part of every probe. A probe that did not change keeps its
    revision when another one does, and so keeps its evidence.
    """
    runner = room / "runner.py"
    waiting = [path, runner] if runner.exists() else [path]
    seen: dict[str, bytes] = {}
    while waiting:
        current = waiting.pop()
        key = current.relative_to(room).as_posix()
        if key in seen:
            continue
        if current not in sources:
            text = current.read_bytes()
            sources[current] = Source(code_of(text), _imported(room, text))
        seen[key] = sources[current].code
        waiting.extend(sources[current].imports)
    digest = hashlib.sha256()
    for key in sorted(seen):
        digest.update(f"{key}\0{len(seen[key])}\0".encode() + seen[key])
    return digest.hexdigest()[:16]


#: A string that is a statement of its own, on lines of its own: a docstring. Found by its form and
#: not by parsing, for speed; a test compares this with what a parser says of every module here.
_DOCSTRING = re.compile(rb'^[ \t]*"""(?:[^"\\]|\\.|"(?!""))*"""[ \t]*$', re.MULTILINE | re.DOTALL)


def code_of(source: bytes) -> bytes:
    """A module's source without docstrings, comments on lines of their own, and empty lines."""
    lines = _DOCSTRING.sub(b"", source).splitlines()
    return b"\n".join(line for line in lines if line.strip() and not line.strip().startswith(b"#"))


#: An import from the probes room, at any depth of indentation. Not by parsing: a plan reads every
#: module of the room, and walking their trees would take longer than all the rest of it. A line of
#: a docstring that looks like an import adds a module to the revision, which does no harm.
_IMPORT = re.compile(
    rb"^[ \t]*(?:import[ \t]+(?P<module>probes[\w.]*)"
    rb"|from[ \t]+(?P<package>probes[\w.]*)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n#]+))",
    re.MULTILINE,
)


def _imported(room: Path, source: bytes) -> list[Path]:
    found: list[Path] = []
    for match in _IMPORT.finditer(source):
        package = (match["module"] or match["package"]).decode()
        listed = (match["names"] or b"").decode().strip("() \t\n").split(",")
        names = [package, *(f"{package}.{name.split()[0]}" for name in listed if name.split())]
        for name in names:
            rest = name.split(".")[1:]
            # A package's own __init__ runs when a module inside it is imported.
            for depth in range(len(rest) + 1):
                base = room.joinpath(*rest[:depth])
                found += [f for f in (base.with_suffix(".py"), base / "__init__.py") if f.is_file()]
    return found
