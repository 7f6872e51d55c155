"""Marks beside a verdict: that its evidence is old, or that a newer release of a part exists.

A mark replaces no verdict: a stack is one exact choice of versions, and what was shown of it stays
shown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Literal

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from matrix.components import Component, Version
from matrix.models import Model
from matrix.versions import short_version

#: Days after which evidence is marked. Drivers, images and caches of a machine move on by then.
AGE_DAYS = 90


class Mark(Model):
    """One reason to look twice at how fresh a verdict is."""

    kind: Literal["aged", "superseded"]
    text: str
    component: str | None = None
    """For `superseded`."""
    version: str | None = None
    """The newest release of it that the catalogue knows."""
    published: dt.date | None = None
    """When that was published; None where the catalogue does not say."""


def stale(
    requested: Mapping[str, str],
    newest: dt.datetime | None,
    components: Mapping[str, Component],
    as_of: dt.date,
    age_days: int = AGE_DAYS,
) -> list[Mark]:
    """The marks of one stack: its age first, then components in the catalogue's order.

    Args:
        requested: the versions of the stack.
        newest: start of its newest run; without one there is nothing to grow old.
        components: the catalogue.
        as_of: the day that counts as today. A page that must not change by itself takes the day of
            the newest evidence.
        age_days: how old the newest run may be.
    """
    marks = []
    if newest is not None and (as_of - newest.date()).days > age_days:
        days = (as_of - newest.date()).days
        marks.append(Mark(kind="aged", text=f"The newest run is {days} days old."))
    for name, component in components.items():
        later = newer(component, requested.get(name))
        if later is not None:
            when = f", published {later.date}," if later.date else ""
            older = short_version(requested[name])
            text = f"{component.title} {short_version(later.version)}{when} is newer than {older}."
            marks.append(
                Mark(
                    kind="superseded",
                    text=text,
                    component=name,
                    version=later.version,
                    published=later.date,
                )
            )
    return marks


def newer(component: Component, version: str | None) -> Version | None:
    """The newest version that the catalogue knows to be newer than this one, or None.

    Releases are compared by number; one that was published earlier is not newer for its number.
    Git revisions are compared by date alone, and not with releases.
    """
    if version is None:
        return None
    own = next((known for known in component.versions if known.version == version), None)
    date = own.date if own is not None else None
    later = [
        known
        for known in component.versions
        if component.is_revision(known.version) == component.is_revision(version)
        and _is_newer(component, known, version, date)
    ]
    if component.is_revision(version):
        return max(later, key=lambda known: known.date or dt.date.min, default=None)
    return max(later, key=lambda known: Pep440(known.version), default=None)


def _is_newer(component: Component, known: Version, version: str, date: dt.date | None) -> bool:
    after = date is not None and known.date is not None and known.date > date
    if component.is_revision(version):
        return after
    try:
        higher = Pep440(known.version) > Pep440(version)
    except InvalidVersion:
        return False
    return higher and (after or date is None or known.date is None)
