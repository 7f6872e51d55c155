"""Taking this machine's paths, addresses and passwords out of texts that become evidence."""

from __future__ import annotations

import getpass
import re
import socket

from matrix.visible import visible
from probes.redaction import redactor

_ADDRESS = re.compile(r"\b(?:https?|ssh|git|file|ftp)://[^\s'\"<>)\]]+")

LIMIT = 1000


def redact(text: str, places: dict[str, str]) -> str:
    """A text that identifies neither this machine nor a person, and is no longer than allowed.

    Addresses go as a whole: an index or a mirror may carry a token anywhere in its address. Only
    the public hosts of upstream sources stay.

    Args:
        text: what a tool or a process said.
        places: known paths and what stands for each.
    """
    text = _ADDRESS.sub(_public_or_hidden, visible(text))
    text = redactor(places.items())(text)
    for word, name in ((socket.gethostname(), "<host>"), (_login(), "<user>")):
        # Short words, `root` and the like would be found in the middle of ordinary sentences.
        if len(word) > 4 and word != "localhost":
            text = re.sub(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", name, text)
    return text[:LIMIT]


def _public_or_hidden(found: re.Match[str]) -> str:
    return found.group() if found.group().startswith("https://github.com/") else "<address>"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return ""
