"""Who wrote which file of an environment: the RECORD files of its distributions, and the disk.

Two wheels may claim one path with different content; the one that was unpacked last wins, and the
installer says nothing. The RECORD of every wheel keeps the hash it brought, so the winner of each
path can be told from the file on disk.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_EXAMPLES = 3
NEITHER = "neither"


@dataclass(frozen=True)
class Claim:
    """A distribution says that a path has this content."""

    distribution: str
    algorithm: str
    digest: str
    """URL-safe base64 without padding, as RECORD writes it."""


@dataclass
class Overwrites:
    """All paths that two or more distributions claim with different content, by who claims them."""

    distributions: tuple[str, ...]
    winners: Counter[str] = field(default_factory=Counter)
    """How many paths have the content of which distribution; `neither` for foreign content."""
    examples: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line for a record."""
        won = ", ".join(f"{name} won {count}" for name, count in sorted(self.winners.items()))
        paths = sum(self.winners.values())
        return f"{paths} paths: {won}; such as {', '.join(self.examples)}"


class InstalledFiles:
    """The files that the distributions in some site-packages folders claim.

    Args:
        folders: site-packages folders; a RECORD's paths are relative to the one it lies in.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.claims: dict[Path, list[Claim]] = defaultdict(list)
        self._names: dict[Path, str] = {}
        self._texts: dict[Path, str] = {}
        self._digests: dict[tuple[Path, str], str | None] = {}
        for folder in dict.fromkeys(folder.resolve() for folder in folders):
            for record in sorted(folder.glob("*.dist-info/RECORD")):
                self._read(folder, record)

    def _read(self, folder: Path, record: Path) -> None:
        name = re.sub(r"[-_.]+", "-", record.parent.name.partition("-")[0]).lower()
        with record.open(encoding="utf-8", newline="") as stream:
            for row in csv.reader(stream):
                if len(row) < 2 or "=" not in row[1]:
                    continue  # RECORD itself and compiled files have no hash
                algorithm, _, digest = row[1].partition("=")
                text = _normal(folder, row[0])
                path = Path(text)
                self._texts[path] = text
                self.claims[path].append(Claim(name, algorithm, digest.rstrip("=")))
                self._names[path] = row[0]

    def on_disk(self, path: Path, algorithm: str) -> str | None:
        """The digest of a file as RECORD would write it, or None when it can't be read."""
        key = (path, algorithm)
        if key not in self._digests:
            self._digests[key] = digest_of(path, algorithm)
        return self._digests[key]

    @cached_property
    def shared(self) -> dict[Path, list[Claim]]:
        """Paths that two or more distributions claim, whatever the content."""
        return {
            path: claims
            for path, claims in self.claims.items()
            if len({claim.distribution for claim in claims}) > 1
        }

    @cached_property
    def overwrites(self) -> list[Overwrites]:
        """Paths claimed with different content, grouped by their claimants, and who won."""
        groups: dict[tuple[str, ...], Overwrites] = {}
        for path, claims in sorted(self.shared.items()):
            if len({(claim.algorithm, claim.digest) for claim in claims}) < 2:
                continue
            names = tuple(sorted({claim.distribution for claim in claims}))
            group = groups.setdefault(names, Overwrites(names))
            group.winners[self.winner(path)] += 1
            if len(group.examples) < _EXAMPLES:
                group.examples.append(self._names[path])
        return list(groups.values())

    def under(self, folder: Path) -> list[Path]:
        """The claimed paths below a folder."""
        # As texts: an image claims a hundred thousand paths, and comparing them part by part takes
        # seconds for each component.
        start = f"{folder.resolve()}{os.sep}"
        return [path for path, text in self._texts.items() if text.startswith(start)]

    def winner(self, path: Path) -> str:
        """The distribution whose content a path has, or `neither`."""
        for claim in self.claims[path]:
            if self.on_disk(path, claim.algorithm) == claim.digest:
                return claim.distribution
        return NEITHER

    def verify(self, folder: Path) -> Verified:
        """Compare every claimed code file under a folder with what is claimed of it."""
        paths = [path for path in self.under(folder) if is_code(path)]
        # Hashing releases the interpreter's lock, and torch alone has gigabytes.
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            winners = list(pool.map(self.winner, paths))
        pairs = zip(paths, winners, strict=True)
        wrong = sorted(self._names[path] for path, won in pairs if won == NEITHER)
        return Verified(len(paths), wrong)


@dataclass(frozen=True)
class Verified:
    """How many files were compared with their RECORD, and which of them are not as recorded."""

    files: int
    wrong: list[str]


def is_code(path: Path) -> bool:
    """Whether a file is Python source or a shared library."""
    return path.suffix in (".py", ".so") or ".so." in path.name


def _normal(folder: Path, name: str) -> str:
    # RECORD names scripts as ../../../bin/x. Symbolic links stay as they are, on purpose.
    if ".." not in name and "//" not in name and not name.startswith(("/", "./")):
        return f"{folder}{os.sep}{name}"
    parts: list[str] = []
    for part in (*folder.parts, *name.split("/")):
        if part == "..":
            parts.pop()
        elif part not in (".", ""):
            parts.append(part)
    return str(Path(*parts))


def digest_of(path: Path, algorithm: str) -> str | None:
    """A file's digest as RECORD writes it, or None when the file or the algorithm is missing."""
    try:
        digest = hashlib.new(algorithm)
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except (OSError, ValueError):
        return None
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def notes_for(overwrites: Sequence[Overwrites], names: Iterable[str]) -> Mapping[str, str]:
    """Summaries of the overwrites that any of these distributions took part in, for a record."""
    wanted = set(names)
    return {
        f"overwrites: {' + '.join(group.distributions)}": group.summary()
        for group in overwrites
        if wanted & set(group.distributions)
    }
