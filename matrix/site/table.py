"""The table in a compact form: what the home page shows, and what its script filters.

Thousands of stacks must stay small, so versions, remarks and patches are written once and named by
their place in a list, and a stack's probes are one string with a letter for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, product
from string import ascii_lowercase, digits
from typing import Final, Literal

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440
from pydantic import Field

from matrix.components import NONE, SYSTEM
from matrix.judging.verdicts import CellStatus, Verdict
from matrix.models import Model
from matrix.site.published import CellView, ComponentView, Matrix, StackView, Word
from matrix.versions import short_version
from matrix.visible import visible

#: Below the site's root.
TABLE_FILE = "api/v1/table.json"

#: A page holds this many rows as HTML; the rest comes from `TABLE_FILE`.
ROWS_IN_PAGE: Final = 100

#: What stands for a cell in a stack's `cells`.
LETTERS: Final[dict[CellStatus, str]] = {
    "pass": "p",
    "flaky": "k",
    "fail": "f",
    "error": "e",
    "void": "v",
    "skip": "s",
    "miss": "m",
    "not run": "n",
}


class TableComponent(Model):
    """A component, with every version that a stack has."""

    name: str
    title: str
    short: str
    kind: str
    names: list[str]
    """What tools call it, in small letters: package names, and words of reports."""
    versions: list[str]
    """Oldest first. `none`: the stack has no such component; `system`: whatever a machine has."""
    shorts: list[str]
    """The same, as a narrow column shows them."""


class TableProbe(Model):
    """A probe, in the order of a stack's `cells`."""

    id: str
    code: str
    """Two signs that stand for it where there is no room."""
    required: bool
    question: str


class TableStatus(Word):
    """What a cell can show, with the letter that stands for it."""

    letter: str


class TablePatch(Model):
    """A patch that some stack has."""

    id: str
    short: str


class TableRow(Model):
    """A stack."""

    id: str
    title: str
    verdict: Verdict
    stale: bool = False
    """Whether the evidence is too old to rely on."""
    why: str
    """One line: the first failing probe and its reason, or how sure the verdict is."""
    versions: list[int]
    """For each component, the place of its version in the component's `versions`."""
    patches: list[int]
    cells: str
    """One letter for each probe."""
    remarks: dict[str, int]
    """Place of a probe -> place in `remarks`: why a cell is not a pass."""
    day: str | None
    """Day of the newest run, UTC."""


class Table(Model):
    """Everything the table needs."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    name: str
    day: str | None
    """The date of the data: the day of the newest run, UTC."""
    components: list[TableComponent]
    probes: list[TableProbe]
    verdicts: list[Word]
    statuses: list[TableStatus]
    patches: list[TablePatch]
    remarks: list[str]
    stacks: list[TableRow]


def build_table(matrix: Matrix) -> Table:
    """The table of what is published."""
    parts = [_component(part, matrix.stacks) for part in matrix.components]
    place = [{version: at for at, version in enumerate(part.versions)} for part in parts]
    probes = [probe for probe in matrix.probes if not probe.retired]
    patches = sorted({patch.id for stack in matrix.stacks for patch in stack.patches})
    pool: dict[str, int] = {}
    return Table(
        name=matrix.name,
        day=f"{matrix.data_date:%Y-%m-%d}" if matrix.data_date else None,
        components=parts,
        probes=[
            TableProbe(id=p.id, code=p.code, required=p.required, question=visible(p.question))
            for p in probes
        ],
        verdicts=matrix.verdicts,
        statuses=[
            TableStatus(**word.model_dump(), letter=letter)
            for status, letter in LETTERS.items()
            for word in matrix.statuses
            if word.id == status
        ],
        patches=[TablePatch(id=id_, short=patch_short(id_)) for id_ in patches],
        stacks=[
            _row(stack, [p.id for p in probes], parts, place, patches=patches, pool=pool)
            for stack in matrix.stacks
        ],
        remarks=list(pool),
    )


def _row(
    stack: StackView,
    probes: Sequence[str],
    parts: Sequence[TableComponent],
    place: Sequence[dict[str, int]],
    *,
    patches: Sequence[str],
    pool: dict[str, int],
) -> TableRow:
    cells = {cell.probe: cell for cell in stack.cells}
    has = _versions(stack)
    remarks = {}
    for at, probe in enumerate(probes):
        remark = _remark(cells[probe]) if probe in cells else None
        if remark is not None:
            remarks[str(at)] = pool.setdefault(remark, len(pool))
    return TableRow(
        id=stack.id,
        title=visible(stack.title),
        verdict=stack.verdict,
        stale=any(mark.kind == "aged" for mark in stack.marks),
        why=why(stack, probes),
        versions=[
            places[has.get(part.name, NONE)] for part, places in zip(parts, place, strict=True)
        ],
        patches=[patches.index(patch.id) for patch in stack.patches],
        cells="".join(
            LETTERS[cells[probe].status if probe in cells else "not run"] for probe in probes
        ),
        remarks=remarks,
        day=f"{stack.newest:%Y-%m-%d}" if stack.newest else None,
    )


def why(stack: StackView, probes: Collection[str]) -> str:
    """One line that says why a stack has its verdict; `probes` are those that judge it."""
    if stack.verdict in ("broken", "cannot install") and stack.probe is not None:
        cell = next((cell for cell in stack.cells if cell.probe == stack.probe), None)
        count = f", {cell.failed} of {cell.counted} failed" if cell is not None else ""
        return visible(f"{stack.probe}: {stack.reason}{count}")
    if not stack.runs:
        return "planned: no run yet"
    if stack.verdict == "unknown":
        more = f", and {len(stack.missing) - 1} more" if len(stack.missing) > 1 else ""
        return visible(f"missing: {stack.missing[0]}{more}") if stack.missing else "no evidence"
    weak = ""
    if stack.strength is not None:
        runs = stack.strength.runs
        weak = f"fewest runs: {runs}{' (weak)' if stack.strength.weak else ''}"
    failing = [
        cell.probe
        for cell in stack.cells
        if cell.probe in probes and cell.status in ("fail", "flaky")
    ]
    if failing:
        listed = f"{failing[0]} fails" + (
            f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        )
        return visible("; ".join(filter(None, [listed, weak])))
    return weak or "every required probe passed"


def _remark(cell: CellView) -> str | None:
    if cell.status == "flaky":
        return visible(f"{', '.join(cell.reasons)}, {cell.failed} of {cell.counted} failed")
    return visible(cell.reason) if cell.reason else None


def _versions(stack: StackView) -> dict[str, str]:
    return {choice.component: visible(choice.version) for choice in stack.components}


def _component(part: ComponentView, stacks: Iterable[StackView]) -> TableComponent:
    found = {_versions(stack).get(part.name, NONE) for stack in stacks}
    versions = sorted(found, key=version_order)
    return TableComponent(
        name=part.name,
        title=part.title,
        short=part.short,
        kind=part.kind,
        names=part.names,
        versions=versions,
        shorts=[short_version(version) for version in versions],
    )


def version_order(version: str) -> tuple[int, Pep440, str]:
    """Sorts `none`, then `system`, then releases by number, then git revisions."""
    words = {NONE: 0, SYSTEM: 1}
    if version in words:
        return words[version], Pep440("0"), version
    try:
        return 2, Pep440(version), version
    except InvalidVersion:
        return 3, Pep440("0"), version


def patch_short(patch: str) -> str:
    """`#6206` for the candidate of a pull request, else its id."""
    found = re.search(r"-(\d+)$", patch)
    return f"#{found[1]}" if found else visible(patch)


def codes(probes: Sequence[str]) -> dict[str, str]:
    """Two signs for each probe, none twice: initials, else its first letters, else any.

    Raises:
        StopIteration: there are more probes than pairs of letters and digits.
    """
    given: dict[str, str] = {}
    for probe in probes:
        words = [word for word in re.split(r"[^a-z0-9]+", probe.lower()) if word]
        whole = "".join(words)
        wishes = ["".join(word[0] for word in words[:2])] if len(words) > 1 else []
        wishes += [whole[:2], *(whole[:1] + char for char in whole[2:])]
        whatever = ("".join(pair) for pair in product(digits + ascii_lowercase, repeat=2))
        given[probe] = next(
            wish.upper()
            for wish in chain(wishes, whatever)
            if len(wish) == 2 and wish.upper() not in given.values()
        )
    return given


def equal_columns(table: Table, rows: Sequence[TableRow]) -> dict[str, str]:
    """Components that are the same in every row, and their version.

    A planned stack that takes what its machine has differs from nothing.
    """
    equal = {}
    for at, part in enumerate(table.components):
        found = {part.versions[row.versions[at]] for row in rows}
        told = found - {SYSTEM} or found
        if len(told) == 1:
            equal[part.name] = told.pop()
    return equal


def table_text(table: Table) -> str:
    """The published file: one line, for it is made for programs and may be long."""
    data = table.model_dump(mode="json", by_alias=True)
    return json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n"
