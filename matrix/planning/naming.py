"""What generated stacks are called: by what differs from the campaign's reference."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from matrix.components import Component
from matrix.stacks import patched_name

#: Longer names are cut, and end in digits of their own content instead.
LONGEST = 60


def tag_of(component: Component) -> str:
    """What names of stacks call a component."""
    return component.tag or re.sub(r"[^a-z0-9]+", "-", component.short.lower()).strip("-")


def version_text(version: str, among: Sequence[str]) -> str:
    """A version within a name; a revision is cut to as many digits as tell it from the others."""
    if re.fullmatch(r"[0-9a-f]{40}", version):
        for digits in range(9, 40):
            if sum(other.startswith(version[:digits]) for other in among) < 2:
                return version[:digits]
        return version
    return re.sub(r"[^a-z0-9._-]+", "-", version.lower())


def changed_name(
    reference: str,
    versions: Sequence[tuple[str, str]],
    added: Sequence[str] = (),
    removed: Sequence[str] = (),
) -> str:
    """`fe-1.29.1+dsl-4.6.3`, or `reported+6206` where only patches differ.

    Args:
        reference: name of the reference.
        versions: (tag, version as `version_text` writes it) of each component that differs.
        added: patches that the reference does not have.
        removed: patches of the reference that the stack lacks.
    """
    parts = [f"{tag}-{text}" for tag, text in versions] or [reference]
    parts += [f"no-{patched_name('', [patch])[1:]}" for patch in removed]
    parts += [patched_name("", [patch])[1:] for patch in added]
    whole = "+".join(parts)
    if len(whole) <= LONGEST:
        return whole
    digest = hashlib.sha256(repr((reference, versions, added, removed)).encode()).hexdigest()[:8]
    kept = len(parts)
    while True:
        kept -= 1
        name = "+".join([*parts[:kept], f"{len(parts) - kept}-more-{digest}"])
        if len(name) <= LONGEST or kept == 1:
            return name
