"""What came of putting a candidate onto a revision: the words, and the JSON form of them.

These models are what `--json` prints and what later pages are made from. Fields are only added.
"""

from __future__ import annotations

import datetime as dt
from typing import Literal

from pydantic import Field

from matrix.models import Model
from patches.changes import FileChange

Result = Literal["contained", "clean", "three-way", "conflict", "unsafe", "unavailable"]

#: Result -> what it means. Order is that of legends.
MEANING: dict[Result, str] = {
    "contained": "the revision has it already",
    "clean": "every hunk is put in where its surrounding lines are unchanged",
    "three-way": "it goes in by a three-way merge, which follows moved files and changed lines",
    "conflict": "both sides changed the same lines; nothing was applied",
    "unsafe": "it would put something into the tree that is refused; nothing was applied",
    "unavailable": "the head is unknown, or the source does not have it",
}

Sign = Literal["ancestor", "squash", "patch-id", "no-effect", "empty"]

#: Sign -> what was found.
SIGNS: dict[Sign, str] = {
    "ancestor": "the head is an ancestor of the revision",
    "squash": "a commit whose subject ends with the request's number",
    "patch-id": "commits that make the same change",
    "no-effect": "merging it changes nothing in the imported tree",
    "empty": "the candidate itself changes nothing in the imported tree",
}


class Contained(Model):
    """Why a candidate counts as contained."""

    sign: Sign
    commit: str | None = None
    """The commit that brought it."""
    date: dt.date | None = None
    """When that commit was made, UTC."""
    differs: bool | None = None
    """Whether that commit's change is another than the head's; None where there is none to
    compare."""
    differing: list[str] = Field(default_factory=list)
    """Files in which the two differ."""


class Conflict(Model):
    """One file that both sides changed."""

    path: str
    kind: str
    """Git's word: contents, modify/delete, add/add, rename/delete, binary."""
    ours: list[str] = Field(default_factory=list)
    """Functions that the revision's side of the conflict lies in."""
    theirs: list[str] = Field(default_factory=list)
    """Functions that the candidate's side lies in."""


class Applied(Model):
    """One candidate put onto one revision."""

    id: str
    head: str
    """Full SHA of the pull request's head; `sha256:` and a digest for a patch file."""
    fork: str | None = None
    """The commit that the change was taken from; None for a patch file."""
    base: str
    """The revision it was put onto."""
    result: Result
    why: str | None = None
    """For a result that needs words: what is missing or refused."""
    contained: Contained | None = None
    reverted_by: str | None = None
    """A commit of the revision that took the candidate out again."""
    files: list[FileChange] = Field(default_factory=list)
    conflicts: list[Conflict] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)
    """Files outside the imported tree, such as tests, that could not be applied."""
    brings: list[str] = Field(default_factory=list)
    """Other candidates that it stacks on, and that came with it."""
    tree: str | None = None
    """Git's hash of the tree that came out; None where nothing could be applied."""
