"""No path of the machine leaves a probe: known prefixes get a name, others keep their last part."""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

DETAIL_LIMIT = 500
"""Characters."""

# An absolute path of two or more parts that no known prefix covered. Not preceded by a character
# that makes it the rest of something else: a relative path, a URL, a name in angle brackets.
_OTHER_PATH = re.compile(r"(?<![\w/:<>~.\-])/(?:[^\s/:'\",;()<>\[\]]+/)+([^\s/:'\",;()<>\[\]]*)")


def prefixes_of(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of (prefix, name) for a request, in the order in which they must be replaced."""
    named: list[tuple[object, str]] = [(request.get("scratch"), "<scratch>")]
    named += [(tree.get("path"), "<tree>") for tree in (request.get("trees") or {}).values()]
    named.append((request.get("environment"), "<env>"))
    named += [(path, "<image>") for path in request.get("image") or ()]
    named.append((Path(__file__).resolve().parent.parent, "<project>"))
    named.append((sys.base_prefix, "<python>"))
    named += [(home, "~") for home in _homes()]
    return ordered((str(path), name) for path, name in named if path)


def _homes() -> Iterable[str]:
    yield os.environ.get("HOME", "")
    try:
        yield pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container's user without an entry
        return


def ordered(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Longest prefix first, each also as the file system resolves it; the first name wins."""
    found: dict[str, str] = {}
    for raw, name in pairs:
        for path in (raw, str(Path(raw).resolve())):
            stripped = path.rstrip("/")
            if stripped.count("/") >= 1 and len(stripped) > 1:
                found.setdefault(stripped, name)
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def redactor(pairs: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """A function that takes every path of this machine out of a text."""
    replacements = [
        (re.compile(rf"(?<![\w.\-]){re.escape(path)}(?![\w\-])"), name)
        for path, name in ordered(pairs)
    ]

    def redact(text: str) -> str:
        for pattern, name in replacements:
            text = pattern.sub(name, text)
        return _OTHER_PATH.sub(r"<path>/\1", text)

    return redact


def one_line(text: str, limit: int = DETAIL_LIMIT) -> str:
    """`text` on one line of at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
