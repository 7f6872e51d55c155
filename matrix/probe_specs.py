"""What the host knows of a probe: read from its source, without importing it.

A probe imports the software under test, so the host never imports a probe.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from matrix.errors import DataError
from matrix.models import Model, Slug, explain
from matrix.records import Number
from matrix.rooms import Rooms

#: Module of the probes room -> the modules of the room that it imports.
Imports = dict[Path, list[Path]]


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
    """`functional` probes may share a GPU; `timing`, `soak` and `mechanism` run alone on it."""
    time_limit_s: float = Field(gt=0)
    parameters: dict[str, dict[str, Number | list[Number]]]
    """Parameter settings by name; `quick` is always there."""
    revision: str
    """Hash of the probe's source and of every module of the probes room it imports."""

    @property
    def gpu(self) -> str | None:
        """The GPU architecture it needs, such as `sm90`, or None."""
        return next((need[4:] for need in self.needs if need.startswith("gpu:")), None)


def load_probe_specs(rooms: Rooms) -> dict[str, ProbeSpec]:
    """Every probe of the room, by id; gates first, then by id.

    Raises:
        DataError: a probe's declaration is malformed.
    """
    specs = []
    imports: Imports = {}
    for path in sorted(rooms.probes.glob("*.py")):
        spec = _read(rooms, path, imports)
        if spec is not None:
            specs.append(spec)
    specs.sort(key=lambda spec: (spec.group != "gate", spec.gpu is not None, spec.id))
    return {spec.id: spec for spec in specs}


def _read(rooms: Rooms, path: Path, imports: Imports) -> ProbeSpec | None:
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
                "revision": source_revision(rooms.probes, path, imports),
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


def source_revision(room: Path, path: Path, imports: Imports) -> str:
    """16 hexadecimal digits over a module and all it imports from the probes room.

    `imports` remembers what each module imports, since probes share most of theirs.

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
        seen[key] = current.read_bytes()
        if current not in imports:
            imports[current] = _imported(room, seen[key])
        waiting.extend(imports[current])
    digest = hashlib.sha256()
    for key in sorted(seen):
        digest.update(f"{key}\0{len(seen[key])}\0".encode() + seen[key])
    return digest.hexdigest()[:16]


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
