"""Which candidates touch the functions of a traceback, their files, or who calls them.

A frame is a place in one revision. A candidate was written against another one, in which the file
may have another name and the function too. So each frame is followed first, and compared then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from matrix.models import Model
from patches.applying import Change
from patches.changes import sections
from patches.functions import MODULE, names_at
from patches.history import History
from patches.tracing import MOVES, Place, Tracer, Tree, moves

#: What a candidate does to a frame's function, the closest first.
Relation = Literal["changes", "moves", "calls", "file"]

RELATIONS: dict[Relation, str] = {
    "changes": "it changes the function itself",
    "moves": "it moves the function to another file, unchanged",
    "calls": "it changes a function that calls it",
    "file": "it changes the file, elsewhere",
}
#: Named so in every class; who calls them names the class.
_ORDINARY = frozenset({"forward", "backward", "apply", "setup_context", "run"})


class Touch(Model):
    """What one candidate does to one frame."""

    frame: str
    relation: Relation
    path: str
    """Where the function is in what the candidate was written against."""
    function: str
    callers: list[str] = Field(default_factory=list)
    """For `calls`: who calls it and is changed, `path::function`."""
    seen: bool = True
    """False when the head was not seen, and the candidate's own data says so."""


class Overlap(Model):
    """What one candidate does to a traceback."""

    id: str
    shown: str
    touches: list[Touch] = Field(default_factory=list)


class Touched:
    """Functions and files that a candidate touches, on both its sides.

    Args:
        history: holds both trees.
        before: what the candidate was written against.
        after: its head.
    """

    def __init__(self, history: History, before: Tree, after: Tree) -> None:
        self.before = before
        self.after = after
        self._gone = moves(history, before.tree, after.tree)
        self._files: set[str] = set()
        self._functions: dict[str, set[str]] = {}
        self._calls: dict[str, dict[str, frozenset[str]]] = {}
        for section in sections(history, before.tree, after.tree, MOVES):
            # A file that was split or moved away, and one that took its name, are two files: that
            # all lines of the first are gone from there is no change of its functions.
            if section.old is not None and self._counts(section.old, section.new):
                self._note(section.old, before, [span.old for span in section.hunks])
            if section.new is not None:
                self._note(section.new, after, [span.new for span in section.hunks])

    def _counts(self, old: str, new: str | None) -> bool:
        """Whether what a section takes away was taken from the functions of the old file."""
        if old == new or new is None:
            return self._gone.stays(old) or self._gone.of(old) == []
        return not self._gone.stays(old)  # else it is a copy, and the old file is as it was

    def _note(self, path: str, tree: Tree, lines: Sequence[tuple[int, int]]) -> None:
        if path not in tree.files or not lines:
            return
        self._files.add(path)
        self._functions.setdefault(path, set()).update(names_at(tree.source(path), lines))
        calls = {function.name: function.calls for function in tree.functions(path)}
        self._calls.setdefault(path, {}).update(calls)

    def relation(self, path: str, function: str) -> tuple[Relation, list[str]] | None:
        """What the candidate does to a function of the tree it was written against."""
        elsewhere = self._gone.of(path)
        places = {*elsewhere} or {path}
        if any(function in self._functions.get(place, ()) for place in places):
            return "changes", []
        callers = self._callers(function)
        if elsewhere and not self._gone.stays(path):
            return "moves", callers
        if callers:
            return "calls", callers
        return ("file", []) if places & self._files else None

    def _callers(self, function: str) -> list[str]:
        head, _, last = function.rpartition(".")
        if last == MODULE:
            return []
        ordinary = last in _ORDINARY or last.startswith("__")
        wanted = head.rpartition(".")[2] if ordinary and head else last
        return sorted(
            f"{path}::{name}"
            for path, names in self._functions.items()
            for name in names
            if name != function and wanted in self._calls.get(path, {}).get(name, ())
        )


def overlap_of(tracer: Tracer, places: Sequence[Place], change: Change, shown: str) -> Overlap:
    """What one candidate, whose head is here, does to the places of a traceback.

    Raises:
        GitFailed: a tree can't be read.
    """
    before, after = tracer.tree(change.before), tracer.tree(change.after)
    touched = Touched(tracer.history, before, after)
    touches = []
    for place in places:
        found = tracer.follow(place, touched.before)
        where = found or tracer.follow(place, touched.after)
        relation = None if where is None else touched.relation(*where)
        if where is None or relation is None:
            continue
        touches.append(
            Touch(
                frame=place.frame,
                relation=relation[0],
                path=where[0],
                function=where[1],
                callers=relation[1],
            )
        )
    return Overlap(id=change.pin.id, shown=shown, touches=touches)


def declared(
    tracer: Tracer,
    places: Sequence[Place],
    newest: Tree,
    *,
    id_: str,
    shown: str,
    sites: Sequence[str],
) -> Overlap:
    """What a candidate whose head nobody saw says of itself, compared with a traceback.

    Args:
        tracer: follows the places.
        places: of the traceback.
        newest: the newest tree of the candidate's target.
        id_: the candidate.
        shown: what a person calls it.
        sites: `path::function`, as its data has them.
    """
    named = [(path, function) for path, _, function in (s.partition("::") for s in sites)]
    touches = []
    for place in places:
        found = tracer.follow(place, newest)
        if found is None:
            continue
        functions = [function for path, function in named if path == found[0]]
        relation: Relation = "changes" if found[1] in functions else "file"
        if functions:
            touches.append(
                Touch(
                    frame=place.frame,
                    relation=relation,
                    path=found[0],
                    function=found[1],
                    seen=False,
                )
            )
    return Overlap(id=id_, shown=shown, touches=touches)
