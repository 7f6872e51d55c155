"""Putting one tree's change onto another tree, in memory: plainly, or by a three-way merge."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patches.inert import GitFailed, Inert

#: One author and one moment, so that the same inputs give the same objects everywhere.
FIXED = {
    "GIT_AUTHOR_NAME": "patches",
    "GIT_AUTHOR_EMAIL": "patches@invalid",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00+0000",
    "GIT_COMMITTER_NAME": "patches",
    "GIT_COMMITTER_EMAIL": "patches@invalid",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00+0000",
}


@dataclass(frozen=True)
class Clash:
    """One path that a merge could not settle."""

    path: str
    kind: str
    stages: dict[int, str]
    """1 (before), 2 (ours), 3 (theirs) -> blob."""


@dataclass(frozen=True)
class Merged:
    """What a three-way merge gave."""

    tree: str
    """With marks in files that clash."""
    clashes: tuple[Clash, ...]


def commit(repository: Inert, tree: str, *parents: str, message: str = "a tree\n") -> str:
    """A commit of a tree that is the same object wherever it is made.

    Raises:
        GitFailed: the tree is not here.
    """
    command = ["commit-tree", tree]
    for parent in parents:
        command += ["-p", parent]
    return repository.text(*command, feed=message.encode(), env=FIXED)


def merge(repository: Inert, before: str, ours: str, theirs: str) -> Merged:
    """The three-way merge of three trees.

    Raises:
        GitFailed: one of them can't be read.
    """
    # This git takes the base from the history of two commits, so a small history is made.
    root = commit(repository, before)
    one, other = (commit(repository, tree, root) for tree in (ours, theirs))
    status, out = repository.ask(
        "merge-tree", "--write-tree", "-z", "--messages", one, other, ok=(0, 1)
    )
    fields = out.decode("utf-8", "surrogateescape").split("\0")
    if status == 0:
        return Merged(fields[0], ())
    stages: dict[str, dict[int, str]] = {}
    place = 1
    while place < len(fields) and fields[place]:
        facts, _, path = fields[place].partition("\t")
        _, sha, stage = facts.split(" ")
        stages.setdefault(path, {})[int(stage)] = sha
        place += 1
    kinds = _kinds(fields[place + 1 :])
    # A clash of folders or names can leave no stages; its message names it all the same.
    named = [*stages, *(path for path in kinds if path not in stages)]
    return Merged(
        fields[0],
        tuple(Clash(path, kinds.get(path, "contents"), stages.get(path, {})) for path in named),
    )


def _kinds(fields: Sequence[str]) -> dict[str, str]:
    """Path -> git's short word for its conflict, from the messages of a merge."""
    kinds: dict[str, str] = {}
    place = 0
    while place < len(fields) and fields[place].isdigit():
        count = int(fields[place])
        paths = fields[place + 1 : place + 1 + count]
        word = fields[place + 1 + count]
        if word.startswith("CONFLICT (") and paths:
            kinds.setdefault(paths[0], word.removeprefix("CONFLICT (").rstrip(")"))
        place += count + 3
    return kinds


class Scratch:
    """Index files of one piece of work; gone when it ends."""

    def __init__(self, repository: Inert) -> None:
        self._repository = repository
        self._folder = tempfile.TemporaryDirectory(prefix="index-")

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def index(self) -> str:
        """A path for an index."""
        return str(Path(self._folder.name) / "index")

    def plainly(
        self, tree: str, patch: bytes, *options: str, three_way: bool = False
    ) -> tuple[str | None, list[Clash], str]:
        """A tree with a patch on it.

        Args:
            tree: what it is put onto.
            patch: the text.
            options: of `git apply`.
            three_way: merge where the surroundings differ, if the blobs it names are here.

        Returns:
            The new tree, or None with the paths that clash, and git's words.
        """
        if not patch:
            return tree, [], ""
        env = {"GIT_INDEX_FILE": self.index}
        self._repository.text("read-tree", tree, env=env)
        merge_option = ["--3way"] if three_way else []
        try:
            self._repository.text(
                "apply", "--cached", "--whitespace=nowarn", *merge_option, *options, "-",
                feed=patch, env=env,
            )  # fmt: skip
        except GitFailed as failed:
            return None, self._unmerged(), str(failed)
        return self._repository.text("write-tree", "--missing-ok", env=env), [], ""

    def _unmerged(self) -> list[Clash]:
        out = self._repository.output("ls-files", "-u", "-z", env={"GIT_INDEX_FILE": self.index})
        stages: dict[str, dict[int, str]] = {}
        for entry in out.decode("utf-8", "surrogateescape").split("\0"):
            if entry:
                facts, _, path = entry.partition("\t")
                _, sha, stage = facts.split(" ")
                stages.setdefault(path, {})[int(stage)] = sha
        return [Clash(path, "contents", found) for path, found in stages.items()]
