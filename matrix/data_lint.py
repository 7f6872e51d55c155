"""Every file that holds data, checked by its form and against the others.

A campaign or a page stops at the first wrong file. Here all are looked at, and each problem is one
line: the file, what is wrong, and how to mend it.
"""

from __future__ import annotations

import datetime as dt
import json
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from matrix.components import NONE, SYSTEM, WITH_TORCH, Component, load_components
from matrix.errors import MatrixError
from matrix.judging.claims import ANY, Claims, load_claims
from matrix.keeping.records import Record
from matrix.keeping.store import Store
from matrix.planning.campaign_forms import Campaign
from matrix.planning.campaigns import load_campaign
from matrix.probe_specs import load_probe_specs
from matrix.rooms import Rooms
from matrix.schemas import schema
from matrix.visible import visible
from patches.candidates import Candidate, load_candidates, patch_name

T = TypeVar("T")

#: A clock may be a little off; a record from further ahead was not written by a run.
CLOCK_SKEW = dt.timedelta(hours=1)

#: Fields that hold an address, or a list of them.
_LINKS = frozenset({"link", "links", "remote", "repository"})

#: Words in the place of a version.
_WORDS = frozenset({SYSTEM, NONE, WITH_TORCH})


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong."""

    file: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.file}: {self.what}" if self.file else self.what
        return visible(" ".join(f"{line.rstrip('.')}. {self.mend}".split()))


def lint_data(rooms: Rooms, now: dt.datetime) -> list[Problem]:
    """Everything that is wrong with catalogue, campaigns, claims, candidates and evidence.

    Args:
        rooms: the project.
        now: the time, with its zone; evidence can't be newer.
    """
    problems: list[Problem] = []
    components = _tried(problems, lambda: load_components(rooms))
    specs = _tried(problems, lambda: load_probe_specs(rooms))
    candidates = _tried(problems, lambda: load_candidates(rooms.candidates))
    problems += _forms(rooms, "components", [rooms.catalogue / "components.toml"], problems)
    problems += _forms(rooms, "candidate", sorted(rooms.candidates.glob("*.toml")), problems)
    if components is None or specs is None or candidates is None:
        return sorted(set(problems))
    claims = _tried(problems, lambda: load_claims(rooms, components, specs)) or Claims()
    campaigns = {}
    files = sorted(rooms.campaigns.glob("*.toml"))
    for path in files:
        found = _tried(problems, lambda p=path: load_campaign(rooms, p.stem, components, specs))  # type: ignore[misc]
        if found is not None:
            campaigns[rooms.shown(path)] = found
    problems += _forms(rooms, "campaign", files, problems)
    claims_file = rooms.catalogue / "claims.toml"
    problems += _forms(rooms, "claims", [claims_file] if claims_file.exists() else [], problems)
    records = _evidence(rooms, problems)
    names = _Names(components.keys(), specs.keys(), candidates.keys())
    for path, record in records:
        problems += _of_record(rooms, path, record, names)
        if record.run.started > now + CLOCK_SKEW:
            mend = "Set the clock; if it was the runner's that was wrong, run again."
            what = f"the run started at {record.run.started}, later than now"
            problems.append(Problem(rooms.shown(path), what, mend))
    problems += _twice(rooms, records)
    known = _known_versions(components, [record for _, record in records])
    for shown, campaign in campaigns.items():
        problems += _unknown_versions(shown, _named(campaign), known)
    problems += _of_claims(rooms.shown(claims_file), claims, known, candidates, now.date())
    return sorted(set(problems))


def _tried(problems: list[Problem], load: Callable[[], T]) -> T | None:
    try:
        return load()
    except MatrixError as error:
        # Its message begins with the file and ends with what to do.
        problems.append(Problem("", str(error)))
        return None


# --- Forms and addresses -----------------------------------------------------------------------


def _forms(rooms: Rooms, form: str, paths: list[Path], refused: list[Problem]) -> Iterator[Problem]:
    """What the published schema says of files that their model took, and their addresses."""
    for path in paths:
        shown = rooms.shown(path)
        if any(problem.what.startswith(shown) for problem in refused):
            continue  # The model's own words are better.
        try:
            data = _as_json(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        yield from _against_schema(shown, form, data)
        for where, address in _addresses(data):
            if not _is_https(address):
                yield Problem(shown, f"{where}: {address!r} is no https address", "Correct it.")


def _against_schema(shown: str, form: str, data: Any) -> Iterator[Problem]:
    for error in _validator(form).iter_errors(data):
        where = ".".join(str(part) for part in error.absolute_path) or "top level"
        yield Problem(
            shown,
            f"{where}: {error.message[:200]}, says the published schema",
            "Mend the file, or the model that the schema is made from.",
        )


@cache
def _validator(form: str) -> Draft202012Validator:
    return Draft202012Validator(schema(form))


def _as_json(data: Any) -> Any:
    """TOML as JSON has it: dates as strings."""
    return json.loads(json.dumps(data, default=lambda value: value.isoformat()))


def _addresses(data: Any, where: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        for key, value in data.items():
            place = f"{where}.{key}" if where else key
            if key in _LINKS:
                listed = value if isinstance(value, list) else [value]
                yield from ((place, one) for one in listed if isinstance(one, str))
            else:
                yield from _addresses(value, place)
    elif isinstance(data, list):
        for number, value in enumerate(data, start=1):
            yield from _addresses(value, f"{where} {number}")


def _is_https(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    plain = not any(character.isspace() for character in address)
    return plain and parts.scheme == "https" and bool(parts.hostname) and parts.username is None


# --- Evidence ----------------------------------------------------------------------------------


def _evidence(rooms: Rooms, problems: list[Problem]) -> list[tuple[Path, Record]]:
    store, found = Store(rooms), []
    for path in sorted(rooms.evidence.glob("*/*/*.json")):
        record = _tried(problems, lambda p=path: store.read_at(p))  # type: ignore[misc]
        if record is not None:
            found.append((path, record))
            _tried(problems, lambda r=record: store.lock(r))  # type: ignore[misc]
    return found


@dataclass(frozen=True)
class _Names:
    """What a record may name."""

    components: Collection[str]
    probes: Collection[str]
    candidates: Collection[str]


def _of_record(rooms: Rooms, path: Path, record: Record, known: _Names) -> Iterator[Problem]:
    shown = rooms.shown(path)
    yield from _against_schema(shown, "evidence", json.loads(path.read_text(encoding="utf-8")))
    if record.probe.id not in known.probes:
        mend = "Bring the probe back, or move the record out of matrix/evidence."
        yield Problem(shown, f"there is no probe {record.probe.id!r}", mend)
    for name in record.stack.requested:
        if name not in known.components:
            mend = "Bring it back into components.toml: the stack's id holds it."
            yield Problem(shown, f"there is no component {name!r}", mend)
    for patch in record.stack.patches:
        beside = path.parent / patch_name(patch.head)
        if patch.head.startswith("sha256:"):
            if not beside.is_file():
                mend = "Bring it back from git: without it the run can't be repeated."
                what = f"is named by run {record.run.id} and is not there"
                yield Problem(rooms.shown(beside), what, mend)
        elif patch.id not in known.candidates:
            mend = "Bring its file back into patches/candidates."
            yield Problem(shown, f"there is no candidate {patch.id!r}", mend)


def _twice(rooms: Rooms, records: list[tuple[Path, Record]]) -> Iterator[Problem]:
    first: dict[str, Path] = {}
    for path, record in records:
        other = first.setdefault(record.run.id, path)
        if other != path:
            what = f"run {record.run.id} is in {rooms.shown(other)} too"
            yield Problem(rooms.shown(path), what, "Move the copy out of matrix/evidence.")


# --- Versions and names ------------------------------------------------------------------------


def _known_versions(
    components: Mapping[str, Component], records: list[Record]
) -> dict[str, set[str]]:
    known = {name: {v.version for v in part.versions} for name, part in components.items()}
    for record in records:
        for name, version in record.stack.requested.items():
            known.setdefault(name, set()).add(version)
    return known


def _named(campaign: Campaign) -> Iterator[tuple[str, str, str]]:
    """(where, component, version) of everything that a campaign names."""
    shared = [("components", campaign.components)]
    entries = [*campaign.stacks, *([campaign.reference] if campaign.reference else [])]
    for where, versions in [*shared, *((f"stack {e.name!r}", e.components) for e in entries)]:
        for name, version in versions.items():
            yield where, name, version
    for name, values in campaign.axes.items():
        for version in values:
            yield "axes", name, version


def _unknown_versions(
    shown: str, named: Iterator[tuple[str, str, str]], known: Mapping[str, set[str]]
) -> Iterator[Problem]:
    for where, name, version in named:
        if version not in _WORDS and version not in known.get(name, set()):
            yield Problem(
                shown,
                f"{where}: {name} {version} is neither in the catalogue nor in any record",
                "Add it to components.toml with a reason and a link, or correct it.",
            )


def _of_claims(
    shown: str,
    claims: Claims,
    known: Mapping[str, set[str]],
    candidates: Mapping[str, Candidate],
    today: dt.date,
) -> Iterator[Problem]:
    for claim in claims.claims:
        where = f"claim {claim.id!r}"
        named = [
            (where, name, version)
            for name, text in claim.when.versions.items()
            for version in _bounds(text)
            if not _is_release(version, known.get(name, set()))
        ]
        named += [(where, n, v) for n, listed in claim.when.revisions.items() for v in listed]
        yield from _unknown_versions(shown, iter(named), known)
        for patch in (*claim.when.with_patches, *claim.when.without_patches):
            if patch not in candidates:
                mend = "Add its file to patches/candidates, or correct the id."
                yield Problem(shown, f"{where}: there is no candidate {patch!r}", mend)
        if claim.date > today:
            yield Problem(shown, f"{where}: {claim.date} is still to come", "Correct the date.")


def _bounds(text: str) -> Iterator[str]:
    """Versions that specifiers name as such; `<` and `>` need not name one that exists."""
    if text in (NONE, ANY):
        return
    for specifier in SpecifierSet(text):
        plain = specifier.version.removesuffix(".*")
        if specifier.operator not in ("<", ">") and not Pep440(plain).is_prerelease:
            yield plain


def _is_release(bound: str, known: set[str]) -> bool:
    """Whether a bound is a known version, or the beginning of one: 0.19 of 0.19.2."""
    wanted = Pep440(bound)
    for version in known:
        try:
            have = Pep440(version)
        except InvalidVersion:
            continue
        begins = have.release[: len(wanted.release)] == wanted.release
        if have == wanted or (begins and not wanted.is_postrelease and not wanted.local):
            return True
    return False
