"""Comparing versions as PEP 440 means them."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version


def same_version(asked: str, have: str) -> bool:
    """Whether a loaded version is the requested one; a local label counts only when asked for."""
    try:
        wanted, found = Version(asked), Version(have)
    except InvalidVersion:
        return asked == have
    return found == wanted if wanted.local else Version(found.public) == wanted
