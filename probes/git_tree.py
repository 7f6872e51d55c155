r"""The id that git would give a folder, computed from the files on disk without git.

Written from git's object format: a blob is hashed as `blob <size>\0<content>`, a tree as
`tree <size>\0` followed by `<mode> <name>\0<20 bytes>` for each entry, the entries ordered by
name as if folders' names ended in a slash.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

#: Never part of a tree: git's own folder (a file in a linked worktree) and Python's caches.
IGNORED = frozenset({".git"})

_FILE, _EXECUTABLE, _LINK, _FOLDER = b"100644", b"100755", b"120000", b"40000"


def tree_id(folder: Path) -> str:
    """The id of the tree that holds exactly what is in `folder` now.

    Files that git does not track count: what is on the disk is what runs. Empty folders don't,
    since git has none. Submodules are not supported, nor are filters that change content between
    the store and the disk; a tree with either gets another id here than in git.

    Returns:
        40 hexadecimal digits.
    """
    return (_tree(folder) or _object(b"tree", b"")).hex()


def _tree(folder: Path) -> bytes | None:
    entries: list[tuple[bytes, bytes, bytes, bytes]] = []
    with os.scandir(folder) as found:
        for entry in found:
            if entry.name in IGNORED:
                continue
            name = os.fsencode(entry.name)
            path = Path(entry.path)
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                target = os.fsencode(path.readlink())
                entries.append((name, _LINK, name, _object(b"blob", target)))
            elif stat.S_ISDIR(mode):
                child = _tree(path)
                if child is not None:
                    entries.append((name + b"/", _FOLDER, name, child))
            elif stat.S_ISREG(mode):
                kind = _EXECUTABLE if mode & stat.S_IXUSR else _FILE
                entries.append((name, kind, name, _object(b"blob", path.read_bytes())))
    if not entries:
        return None
    entries.sort()
    body = b"".join(kind + b" " + name + b"\0" + sha for _, kind, name, sha in entries)
    return _object(b"tree", body)


def _object(kind: bytes, content: bytes) -> bytes:
    header = kind + b" " + str(len(content)).encode() + b"\0"
    return hashlib.sha1(header + content, usedforsecurity=False).digest()
