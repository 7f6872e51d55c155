"""Lives and overlaps as a person sees them in a terminal. Whatever they hold is shown as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from matrix.visible import visible
from patches.life import Cell, Life, Lives
from patches.overlap import RELATIONS, Relation
from patches.results import MEANING, SIGNS, Applied, Result
from patches.survey import Looked

#: Result -> (sign, style). A word stands beside both wherever there is room for one.
LOOK: Final[dict[Result, tuple[str, str]]] = {
    "contained": ("=", "cyan"),
    "clean": ("✔", "green"),
    "three-way": ("⇄", "yellow"),
    "conflict": ("✖", "red"),
    "unsafe": ("!", "bold red"),
    "unavailable": ("?", "dim"),
}
_RELATION: Final[dict[Relation, tuple[str, str]]] = {
    "changes": ("●", "bold"),
    "moves": ("→", ""),
    "calls": ("○", ""),
    "file": ("·", "dim"),
}
_FIRST_COLUMN = 30
_COLUMN = 16


def show_lives(screen: Console, lives: Lives) -> None:
    """A row for each revision, a column for each candidate, and what needs words below."""
    shown = [life for life in lives.candidates if life.cells]
    side_by_side = max(1, (screen.width - _FIRST_COLUMN) // _COLUMN)
    for first in range(0, len(shown), side_by_side):
        group = shown[first : first + side_by_side]
        table = Table(box=box.ROUNDED if screen.is_terminal else box.ASCII)
        table.add_column("onto")
        for life in group:
            table.add_column(_text(life.shown), overflow="fold")
        for place, base in enumerate(lives.bases):
            cells = [_cell(life.cells[place]) for life in group]
            table.add_row(_text(f"{base.name}  {base.date}"), *cells)
        screen.print(table)
    for life in lives.candidates:
        screen.print(_told(life, lives), highlight=False)
    used = dict.fromkeys(cell.result for life in shown for cell in life.cells)
    for result, meaning in MEANING.items():
        if result in used:
            sign, style = LOOK[result]
            screen.print(Text(f"{sign} {result}: {meaning}", style=style), highlight=False)


def _cell(cell: Cell) -> Text:
    sign, style = LOOK[cell.result]
    text = Text(f"{sign} {cell.result}", style=style)
    if cell.conflicts_with:
        # Which ones is told below; a row must stay a line.
        text.append(f" ({len(cell.conflicts_with)}!)", style="red")
    return text


def _told(life: Life, lives: Lives) -> Text:
    """What a candidate's cells don't say."""
    if life.unavailable is not None:
        return _listed(life, [f"not known: {life.unavailable}"])
    lines = []
    wanted = [file for file in life.files if file.matters]
    rest = len(life.files) - len(wanted)
    beside = f", and {rest} outside the imported tree" if rest else ""
    lines.append(f"head {life.head[:12]}; {len(wanted)} files{beside}")
    if life.since is not None:
        lines.append(f"contained since {_since(life)}")
    for other in sorted({other for cell in life.cells for other in cell.conflicts_with}):
        where = [
            base.name
            for base, cell in zip(lives.bases, life.cells, strict=True)
            if other in cell.conflicts_with
        ]
        lines.append(f"conflicts with {other} on {', '.join(where)}")
    if life.stacks_on:
        lines.append(f"stacks on {', '.join(life.stacks_on)}")
    newest = next((c for c in reversed(life.cells) if c.result in ("conflict", "unsafe")), None)
    if newest is not None:
        base = next(base.name for base in lives.bases if base.sha == newest.base)
        lines.append(f"on {base}: {_why(newest)}")
    reverted = next((cell.reverted_by for cell in reversed(life.cells) if cell.reverted_by), None)
    if reverted is not None:
        lines.append(f"taken out again by {reverted[:12]}")
    return _listed(life, lines)


def _listed(life: Life, lines: Sequence[str]) -> Text:
    text = Text.assemble((visible(f"{life.shown}  {life.title}"), "bold"))
    for line in lines:
        text.append("\n    " + visible(line))
    return text


def _since(life: Life) -> str:
    found = life.since
    if found is None:
        return "unknown"
    commit = f"{found.commit[:12]} " if found.commit else ""
    date = f"({found.date}) " if found.date else ""
    differs = {True: ", which differs from the head seen", False: ", the same change", None: ""}
    return f"{commit}{date}by {found.sign}: {SIGNS[found.sign]}{differs[found.differs]}"


def _why(cell: Cell | Applied) -> str:
    if cell.result == "unsafe":
        return cell.why or "refused"
    places = []
    for conflict in cell.conflicts[:4]:
        functions = list(dict.fromkeys([*conflict.ours, *conflict.theirs]))
        named = ", ".join(functions[:4]) + (" and more" if len(functions) > 4 else "")
        places.append(f"{conflict.path.rpartition('/')[2]} ({conflict.kind}: {named or '-'})")
    more = len(cell.conflicts) - len(places)
    return "; ".join(places) + (f"; {more} more files" if more > 0 else "")


def show_overlap(
    screen: Console,
    looked: Looked,
) -> None:
    """A row for each candidate that touches a frame, a column for each frame that was found."""
    places, found, base = looked.places, looked.found, looked.base
    known = [place for place in places if place.path is not None and place.function is not None]
    for number, place in enumerate(known, 1):
        screen.print(
            _text(f"{number}. {place.frame}  in {place.function} of {place.path}"), highlight=False
        )
    for place in places:
        if place not in known:
            screen.print(_text(f"-  {place.frame}: {place.why}", style="dim"), highlight=False)
    table = Table(box=box.ROUNDED if screen.is_terminal else box.ASCII)
    table.add_column("candidate")
    table.add_column(_text(f"on {base[:9]}"))
    for number, _ in enumerate(known, 1):
        table.add_column(str(number))
    quiet: list[str] = []
    unknown: list[str] = []
    for overlap, applied in found:
        if not overlap.touches:
            (unknown if applied is None else quiet).append(overlap.shown)
            continue
        row = []
        for place in known:
            touch = next((t for t in overlap.touches if t.frame == place.frame), None)
            if touch is None:
                row.append(Text(""))
            else:
                sign, style = _RELATION[touch.relation]
                word = touch.relation + ("" if touch.seen else " (says)")
                row.append(Text(f"{sign} {word}", style=style))
        table.add_row(_text(overlap.shown), _result(applied), *row)
    screen.print(table)
    for relation, meaning in RELATIONS.items():
        screen.print(Text(f"{_RELATION[relation][0]} {relation}: {meaning}"), highlight=False)
    if any(not touch.seen for overlap, _ in found for touch in overlap.touches):
        screen.print(
            "(says): the head was not seen; its data in patches/candidates says so",
            highlight=False,
        )
    if quiet:
        screen.print(_text(f"Touch none of it: {', '.join(quiet)}."), highlight=False)
    if unknown:
        screen.print(
            _text(f"Not known, for nobody has seen their heads: {', '.join(unknown)}."),
            highlight=False,
        )


def overlap_json(looked: Looked) -> str:
    """The same as JSON; fields are only added."""
    return json.dumps(
        {
            "form": 1,
            "base": looked.base,
            "frames": [place.model_dump(mode="json") for place in looked.places],
            "candidates": [
                {
                    **overlap.model_dump(mode="json"),
                    "result": "unavailable" if applied is None else applied.result,
                }
                for overlap, applied in looked.found
            ],
        },
        indent=1,
    )


def _result(applied: Applied | None) -> Text:
    result: Result = "unavailable" if applied is None else applied.result
    sign, style = LOOK[result]
    return Text(f"{sign} {result}", style=style)


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)
