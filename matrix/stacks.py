"""Stacks: one exact choice of every component, plus an ordered list of patches."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from matrix.components import NONE


@dataclass(frozen=True)
class Stack:
    """One exact choice of every component.

    `requested` holds no `system`: what the runner's image provides is written as the version it
    has (and named in `provided`), because a stack is one exact choice on every machine.
    """

    requested: dict[str, str]
    patches: tuple[tuple[str, str], ...] = ()
    """(candidate, full head SHA) in order of application."""
    name: str = field(default="", compare=False)
    """What the campaign calls it; not part of its identity."""
    provided: frozenset[str] = field(default=frozenset(), compare=False)
    absent: tuple[tuple[str, str, str], ...] = field(default=(), compare=False)
    """(component, miss reason, explanation): what this machine can't provide."""

    @property
    def id(self) -> str:
        return stack_id(self.requested, self.patches)


def patched_name(name: str, patches: Iterable[str]) -> str:
    """What a stack is called with patches that its campaign does not name: `reported+6206`."""
    shorts = [re.sub(r"^.*-(?=\d+$)", "", patch) for patch in patches]
    return "+".join([name, *shorts])


def stack_id(requested: dict[str, str], patches: tuple[tuple[str, str], ...] = ()) -> str:
    """12 hexadecimal digits from the content alone: the same stack has the same id everywhere.

    A component that the stack does not have is no part of its identity, so that the catalogue can
    grow without renaming every stack there is.
    """
    return _id(tuple(requested.items()), patches)


@lru_cache(4096)  # each record of a stack is held against it
def _id(requested: tuple[tuple[str, str], ...], patches: tuple[tuple[str, str], ...]) -> str:
    present = {name: version for name, version in requested if version != NONE}
    content: dict[str, object] = {"requested": present}
    if patches:
        content["patches"] = [list(patch) for patch in patches]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
