"""Comparing versions as PEP 440 means them."""

from __future__ import annotations

import re
from functools import lru_cache

from packaging.version import InvalidVersion, Version


def short_version(version: str) -> str:
    """A version as people read it: of a full git revision, the first nine digits."""
    return version[:9] if re.fullmatch(r"[0-9a-f]{40}", version) else version


@lru_cache(4096)  # each record names the same few
def same_version(asked: str, have: str) -> bool:
    """Whether a loaded version is the requested one; a local label counts only when asked for."""
    try:
        wanted, found = Version(asked), Version(have)
    except InvalidVersion:
        return asked == have
    return found == wanted if wanted.local else Version(found.public) == wanted
