"""Candidates as data: pull requests and patch files that a stack may carry."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, HttpUrl, StringConstraints, ValidationError, model_validator

from matrix.errors import DataError
from matrix.models import Model, Slug, explain, read_toml
from matrix.visible import visible
from patches.applying import Pin

#: Nobody has seen it, so it is not guessed.
UNKNOWN = "unknown"

Sha = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|unknown)$")]
Line = Annotated[str, StringConstraints(min_length=1, max_length=600)]


class Candidate(Model):
    """One pull request, or one patch file of somebody's own."""

    id: Slug
    component: Slug
    title: Line
    """In our words."""
    reason: Line
    """Why it is listed."""
    repository: HttpUrl | None = None
    number: int | None = Field(default=None, gt=0)
    head: Sha = UNKNOWN
    head_date: dt.date | None = None
    """When the head was committed, UTC."""
    base: Sha = UNKNOWN
    """The commit it was written against: where its branch left the target."""
    target: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./-]{0,99}$")] | None = None
    """The branch it is meant for."""
    stacked_on: Slug | None = None
    """A candidate that it needs before it."""
    path: str | None = None
    """A patch file beside this one, instead of a pull request."""
    seen: dt.date
    """When the facts here were read."""
    state: Literal["open", "merged", "closed", "local", "unknown"]
    claims: Line
    """What it says it mends, in our words."""
    call_sites: list[Line] = Field(default_factory=list)
    """`path::function` in the tree it was written against."""
    probes: list[Slug] = Field(default_factory=list)
    """Probes whose answer it may change."""
    notes: list[Line] = Field(default_factory=list)
    links: list[HttpUrl] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_of_two_kinds(self) -> Candidate:
        if (self.path is None) == (self.number is None):
            raise ValueError("a candidate is a pull request (`number`) or a patch file (`path`)")
        if self.number is not None and (self.repository is None or self.target is None):
            raise ValueError("a pull request needs `repository` and `target`")
        if self.path is not None and (Path(self.path).is_absolute() or ".." in self.path):
            raise ValueError("`path` names a file beside this one")
        return self

    @property
    def shown(self) -> str:
        """What a person calls it."""
        return f"#{self.number}" if self.number is not None else self.id


def load_candidates(folder: Path, shown: str = "patches/candidates") -> dict[str, Candidate]:
    """Every candidate, by id, in order of numbers.

    Args:
        folder: holds one TOML file for each.
        shown: what messages call the folder.

    Raises:
        DataError: a file does not fit.
    """
    found: dict[str, Candidate] = {}
    for path in sorted(folder.glob("*.toml")):
        where = f"{shown}/{path.name}"
        try:
            candidate = Candidate.model_validate({"id": path.stem, **read_toml(path, where)})
        except ValidationError as error:
            raise DataError(f"{where} does not fit a candidate's form:\n{explain(error)}") from None
        if candidate.id != path.stem:
            raise DataError(
                f"{where}: the candidate calls itself {candidate.id!r}; leave that out."
            )
        found[candidate.id] = candidate
    for candidate in found.values():
        if candidate.stacked_on is not None and candidate.stacked_on not in found:
            raise DataError(
                f"{shown}/{candidate.id}.toml: stacked_on: there is no candidate "
                f"{candidate.stacked_on!r}."
            )
    return dict(sorted(found.items(), key=lambda item: (item[1].number or 10**9, item[0])))


def pin_of(candidate: Candidate, folder: Path, head: str | None = None) -> Pin:
    """A candidate pinned to the head that its file names, or to an earlier one.

    Raises:
        DataError: its patch file can't be read, or no longer is what was pinned.
    """
    if candidate.path is not None:
        return file_pin(folder / candidate.path, candidate.component, candidate.id, head)
    same = head is None or head == candidate.head
    return Pin(
        candidate.id,
        candidate.head if head is None else head,
        component=candidate.component,
        number=candidate.number,
        # Where another head branched off is for its own history to say.
        fork=candidate.base if same and candidate.base != UNKNOWN else None,
        target=candidate.target,
    )


def file_pin(path: Path, component: str, name: str | None = None, head: str | None = None) -> Pin:
    """A patch file pinned by its content.

    Raises:
        DataError: it can't be read, is too large, or is not what was pinned.
    """
    if path.is_symlink():
        raise DataError(f"{visible(str(path))} is a symbolic link. Name the patch file itself.")
    try:
        size = path.stat().st_size
        text = path.read_bytes() if path.is_file() and size <= 64 * 2**20 else b""
    except OSError as error:
        raise DataError(f"{visible(str(path))} can't be read: {error.strerror}.") from None
    if not re.search(rb"^(diff --git|--- )", text, re.MULTILINE):
        raise DataError(
            f"{visible(str(path))} is no patch. Make one with `git diff` or `git format-patch`."
        )
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    if head is not None and head != digest:
        raise DataError(f"{visible(str(path))} is not what it was: {digest}, not {head}.")
    slug = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-._")[:60] or "patch"
    return Pin(name or slug, digest, component=component, text=text)


def candidate_of_file(pin: Pin) -> Candidate:
    """A patch file that no file here describes, for tables."""
    return Candidate(
        id=pin.id,
        component=pin.component,
        title="a patch file",
        reason="named on the command line",
        path=f"{pin.id}.patch",
        seen=dt.datetime.now(dt.UTC).date(),
        state="local",
        claims="unknown",
    )


def patch_name(head: str) -> str:
    """The file that keeps a patch file beside its evidence, from `sha256:` and a digest."""
    return f"patch--{head.removeprefix('sha256:')[:16]}.patch"


class Patching:
    """What a command line, a campaign or a record names, as pins.

    Args:
        folder: holds the candidates.
        components: git components; a patch file is for the first.
        evidence: where runs with patch files keep them.
    """

    def __init__(
        self, folder: Path, components: Sequence[str], evidence: Path | None = None
    ) -> None:
        self._folder = folder
        self._evidence = evidence
        self._components = list(components)

    @cached_property
    def candidates(self) -> dict[str, Candidate]:
        """All that there are.

        Raises:
            DataError: a file does not fit.
        """
        return load_candidates(self._folder)

    def chosen(self, wanted: Iterable[str]) -> tuple[Pin, ...]:
        """Pins for ids, numbers, or patch files, in order of application.

        Raises:
            DataError: a name is unknown, fits several or is named twice, or comes before one that
                it stacks on.
        """
        pins: list[Pin] = []
        for name in wanted:
            pin = self._one(name)
            if any(pin.id == other.id for other in pins):
                raise DataError(f"--patch {visible(name)} is named twice.")
            pins.append(pin)
        ids = [pin.id for pin in pins]
        for place, id_ in enumerate(ids):
            below = self.candidates[id_].stacked_on if id_ in self.candidates else None
            if below in ids[place + 1 :]:
                raise DataError(f"--patch: {id_} stacks on {below}; put {below} before it.")
        return tuple(pins)

    def _one(self, name: str) -> Pin:
        plain = name.removeprefix("#")
        fitting = [
            candidate
            for candidate in self.candidates.values()
            if plain in (candidate.id, str(candidate.number))
        ]
        if len(fitting) > 1:
            ids = ", ".join(candidate.id for candidate in fitting)
            raise DataError(f"--patch {name} fits several candidates: {ids}. Give an id.")
        if fitting:
            return pin_of(fitting[0], self._folder)
        if name.endswith((".patch", ".diff")) or "/" in name:
            path = Path(name).expanduser()
            pin = file_pin(path, self._components[0])
            same = pin.id in self.candidates
            return file_pin(path, self._components[0], f"file-{pin.id}") if same else pin
        known = ", ".join(self.candidates) or "none"
        raise DataError(
            f"--patch {visible(name)}: no such candidate. Name a patch file, or one of: {known}."
        )

    def recorded(
        self, patches: Iterable[tuple[str, str]], files: Iterable[str] = ()
    ) -> tuple[Pin, ...]:
        """Pins for the patches of a record: (id, head) in order.

        Args:
            patches: what the record names.
            files: patch files that may be among them.

        Raises:
            DataError: a candidate is gone, or a patch file is not what was recorded.
        """
        given = {(pin.id, pin.head): pin for pin in self.chosen(files)}
        pins = []
        for id_, head in patches:
            if (id_, head) in given:
                pins.append(given[id_, head])
            elif (kept := self._kept(head)) is not None:
                pins.append(file_pin(kept, self._components[0], id_, head))
            elif id_ in self.candidates:
                pins.append(pin_of(self.candidates[id_], self._folder, head))
            else:
                raise DataError(
                    f"patch {id_} ({head[:19]}) is among no candidates. Name its file with --patch."
                )
        return tuple(pins)

    def _kept(self, head: str) -> Path | None:
        """The patch file of a record, where a run kept it."""
        if self._evidence is None or not re.fullmatch(r"sha256:[0-9a-f]{64}", head):
            return None
        return next(iter(sorted(self._evidence.glob(f"*/*/{patch_name(head)}"))), None)
