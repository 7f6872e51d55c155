"""What no candidate may bring into a tree, whatever tool would later read it."""

from __future__ import annotations

import posixpath
import unicodedata

from matrix.visible import visible
from patches.inert import Inert

_LINK, _MODULE = "120000", "160000"
#: Characters that some file systems ignore in names, so that another name becomes `.git`.
_IGNORED = frozenset(
    "\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u206a\u206b\u206c\u206d\u206e\u206f\ufeff"
)


def dangers(repository: Inert, before: str, after: str) -> list[str]:
    """Why a tree must not be used, one sentence for each thing that came into it.

    Args:
        repository: holds both trees.
        before: the tree as it was.
        after: the tree as it would be.

    Raises:
        GitFailed: a tree can't be read.
    """
    out = repository.output(
        "diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", before, after
    )
    fields = iter(out.decode("utf-8", "surrogateescape").split("\0"))
    found: list[str] = []
    links: dict[str, str] = {}
    for head in fields:
        if not head:
            continue
        path = next(fields)
        _, mode, _, sha, letter = head.split(" ")
        if letter.startswith("D"):
            continue
        why = bad_path(path)
        if why is not None:
            found.append(f"{shown(path)} {why}")
        if mode == _MODULE:
            found.append(f"{shown(path)} is a submodule, and nothing is fetched for a tree")
        elif mode == _LINK:
            links[path] = sha
    contents = repository.blobs(links.values())
    for path, sha in links.items():
        target = contents.get(sha, b"").decode("utf-8", "surrogateescape")
        if _leaves(path, target):
            found.append(f"{shown(path)} is a link that leaves the tree, to {shown(target)}")
    return found


def shown(path: str) -> str:
    """A path of an untrusted tree, as messages show it."""
    return repr(visible(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")))[:200]


def bad_path(path: str) -> str | None:
    """Why a path is refused, or None."""
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        return "is a path that leaves the tree"
    if any(_is_git(part) for part in parts):
        return "is git's own folder by one of its names"
    if "\\" in path or any(part.endswith((" ", ".")) for part in parts):
        return "has a name that means another file on some systems"
    if any(unicodedata.category(char) in ("Cc", "Cf") for char in path):
        return "has control characters in its name"
    return None


def _is_git(part: str) -> bool:
    plain = "".join(char for char in part if char not in _IGNORED)
    plain = unicodedata.normalize("NFKC", plain).casefold().split(":")[0].rstrip(" .")
    return plain == ".git" or (plain.startswith("git~") and plain[4:].isdigit())


def _leaves(path: str, target: str) -> bool:
    if not target or target.startswith("/") or "\0" in target:
        return True
    place = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return place == ".." or place.startswith("../") or any(map(_is_git, place.split("/")))
