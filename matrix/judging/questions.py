"""What someone has: components and versions as people and package managers write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.utils import canonicalize_name

from matrix.components import NONE, Component
from matrix.errors import DataError
from matrix.planning.naming import tag_of
from matrix.versions import same_version

_GIVEN = re.compile(
    r"\s*(?P<name>[A-Za-z0-9][\w.-]*)\s*(?:==|=)\s*(?P<version>[^\s;=]+)\s*(?:;.*)?"
)


def given_versions(
    words: Iterable[str], components: Mapping[str, Component], *, strict: bool = True
) -> dict[str, str]:
    """Component -> version, from words such as `FE=1.26.0` and lines such as `torch==2.11.0`.

    Args:
        words: what was written. A component goes by its name, its short words, or its distribution.
        components: the catalogue.
        strict: refuse what is no known component. A list of packages has many of those.

    Raises:
        DataError: a word has no such form, names nothing known, or two versions of one component.
    """
    called = _called(components)
    found: dict[str, str] = {}
    for word in words:
        match = _GIVEN.fullmatch(word)
        name = _component(match["name"], called) if match is not None else None
        if match is None or name is None:
            if not strict:
                continue
            known = ", ".join(f"{tag_of(part)} ({part.title})" for part in components.values())
            what = "is not NAME=VERSION" if match is None else "names no component"
            raise DataError(f"{word!r} {what}. Components: {known}. Example: fe=1.26.0.")
        if found.setdefault(name, match["version"]) != match["version"]:
            raise DataError(f"{name} is given twice: {found[name]} and {match['version']}.")
    return found


def _called(components: Mapping[str, Component]) -> dict[str, str]:
    called: dict[str, str] = {}
    for name, part in components.items():
        for word in (name, tag_of(part), part.short, part.title, part.distribution):
            if word is not None:
                called.setdefault(canonicalize_name(word.replace(" ", "-")), name)
    return called


def _component(word: str, called: Mapping[str, str]) -> str | None:
    plain = canonicalize_name(word)
    # A package manager names cuDNN by the CUDA release that its build is for.
    return called.get(plain) or called.get(re.sub(r"-cu\d+$", "", plain))


def fits(given: str, have: str) -> bool:
    """Whether a version of a stack is the given one.

    A local label such as `+cu129` counts only where both have one, and a revision may be cut to
    seven digits or more.
    """
    if given == have:
        return True
    if NONE in (given, have):
        return False
    if re.fullmatch(r"[0-9a-f]{40}", have):
        return re.fullmatch(r"[0-9a-f]{7,40}", given) is not None and have.startswith(given)
    return same_version(given, have) or same_version(have, given)
