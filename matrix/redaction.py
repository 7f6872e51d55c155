"""Taking this machine's paths out of texts that become evidence."""

from __future__ import annotations

import re

_PATH = re.compile(r"(?<![\w:/.~>-])/(?:[\w.+@-]+/)+[\w.+@-]*")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")

LIMIT = 1000


def redact(text: str, places: dict[str, str]) -> str:
    """A text without this machine's paths and passwords, and no longer than a record allows.

    Args:
        text: what a tool or a process said.
        places: known paths and what stands for each, the longest first.
    """
    for path, name in places.items():
        text = text.replace(path, name)
    text = _CREDENTIALS.sub("<credentials>@", text)
    return _PATH.sub("<path>", text)[:LIMIT]
