"""Which revisions candidates are put onto: releases, and a branch's commits some days apart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, HttpUrl, StringConstraints, ValidationError

from matrix.errors import DataError
from matrix.models import Model, Slug, explain, read_toml
from patches.history import Commits, History

Branch = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./-]{0,99}$")]
Pattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.*/-]{0,99}$")]


class Series(Model):
    """The revisions of one component."""

    name: Slug
    reason: str
    link: HttpUrl
    branch: Branch
    first: Annotated[dt.date, Field(alias="from")]
    """The branch as it was at the end of this day, UTC, and every so many days after."""
    last: Annotated[dt.date | None, Field(alias="to")] = None
    """None is the branch's newest commit, which is always among them."""
    every_days: int = Field(default=7, gt=0)
    releases: list[Pattern] = Field(default_factory=list)
    """Patterns of tags."""
    releases_from: dt.date | None = None
    """Older releases are left out."""


class Base(Model):
    """One revision."""

    sha: str
    name: str
    """A tag without its prefix's branch, or the branch and the day, or the first digits."""
    kind: Literal["release", "branch", "catalogue"]
    date: dt.date
    """When it was committed, UTC."""


class _File(Model):
    component: list[Series]


def load_series(path: Path, shown: str = "patches/bases.toml") -> dict[str, Series]:
    """The series of every component.

    Raises:
        DataError: the file does not fit.
    """
    try:
        file = _File.model_validate(read_toml(path, shown))
    except ValidationError as error:
        raise DataError(f"{shown} does not fit the form of bases:\n{explain(error)}") from None
    return {series.name: series for series in file.component}


def bases_of(
    series: Series, history: History, commits: Commits, catalogue: Iterable[str]
) -> list[Base]:
    """The revisions of a series that are here, oldest first.

    Args:
        series: what is wanted.
        history: knows refs.
        commits: knows when each was made.
        catalogue: revisions that are always among them.

    Raises:
        DataError: there is no such branch.
    """
    found: dict[str, Base] = {}
    for sha in catalogue:
        if sha in commits.all:
            found[sha] = Base(sha=sha, name=sha[:9], kind="catalogue", date=_day(commits, sha))
    for name, sha in _releases(series, history.refs).items():
        day = _day(commits, sha) if sha in commits.all else None
        if day is not None and day >= (series.releases_from or dt.date.min):
            found.setdefault(sha, Base(sha=sha, name=name, kind="release", date=day))
    tip = history.branch(series.branch)
    if tip is None:
        raise DataError(
            f"{history.remote.shown} has no branch {series.branch!r}; the bases of {series.name} "
            "are taken from it. Correct patches/bases.toml or name another source."
        )
    for sha in _weekly(series, commits, tip):
        day = _day(commits, sha)
        found.setdefault(
            sha, Base(sha=sha, name=f"{series.branch} {day:%m-%d}", kind="branch", date=day)
        )
    return sorted(found.values(), key=lambda base: (commits.all[base.sha].time, base.name))


def _releases(series: Series, refs: Mapping[str, str]) -> dict[str, str]:
    """Final releases only: a candidate for a release says nothing that the release does not."""
    return {
        ref.removeprefix("refs/tags/"): sha
        for ref, sha in refs.items()
        if ref.startswith("refs/tags/") and not ref.rpartition(".")[2].strip("0123456789")
    }


def _weekly(series: Series, commits: Commits, tip: str) -> list[str]:
    line = commits.first_parents(tip)
    newest = _day(commits, tip)
    last = min(series.last or newest, newest)
    days = []
    day = series.first
    while day < last:
        days.append(day)
        day += dt.timedelta(days=series.every_days)
    days.append(last)
    chosen: dict[str, None] = {}
    for day in days:
        for commit in line:
            if _day(commits, commit.sha) <= day:
                chosen[commit.sha] = None
                break
    return list(chosen)


def _day(commits: Commits, sha: str) -> dt.date:
    return dt.datetime.fromtimestamp(commits.all[sha].time, dt.UTC).date()
