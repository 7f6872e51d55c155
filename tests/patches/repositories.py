"""Small upstream repositories with requests in them, made by the tests themselves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from patches.applying import Bench, Pin
from patches.containment import Past
from patches.history import History
from patches.remotes import Remote
from patches.results import Applied

_CLEAN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}

#: Two functions with room between them, so that hunks in one leave the other alone.
CORE = """import math


def first(x):
    y = x + 1
    return y


MIDDLE = 1
MORE = 2
EVEN_MORE = 3
AND_MORE = 4


class Layer:
    def forward(self, x):
        z = first(x)
        return z * 2


def last(x):
    return Layer().forward(x)
"""
CHANGED = CORE.replace("y = x + 1", "y = x + 10")
#: Another line near the changed one, so that a hunk's surroundings are not what they were.
AROUND = CORE.replace("import math\n\n\n", "import math\n\n# around\n")


class Upstream:
    """A bare repository in which requests are branches under `refs/pull`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = folder.parent / f"{folder.name}.index"
        self._days = 0
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--initial-branch=dev", ".")

    def git(
        self, *arguments: str, feed: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> str:
        return self.raw(*arguments, feed=feed, env=env).decode("utf-8", "surrogateescape").strip()

    def raw(
        self, *arguments: str, feed: bytes | None = None, env: Mapping[str, str] | None = None
    ) -> bytes:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.folder,
            check=True,
            capture_output=True,
            input=feed,
            env={**os.environ, **_CLEAN, "GIT_INDEX_FILE": str(self._index), **(env or {})},
        )
        return done.stdout

    def blob(self, content: bytes | str) -> str:
        raw = content.encode() if isinstance(content, str) else content
        return self.git("hash-object", "-w", "--stdin", feed=raw)

    def commit(
        self,
        files: Mapping[str, bytes | str | None],
        *,
        parents: Sequence[str] = (),
        subject: str = "a change",
        modes: Mapping[str, str] | None = None,
        ref: str | None = None,
    ) -> str:
        """A commit of the first parent's files with changes; None takes a file away."""
        if parents:
            self.git("read-tree", parents[0])
        else:
            self.git("read-tree", "--empty")
        lines = []
        for path, content in files.items():
            if content is None:
                lines.append(f"0 {'0' * 40}\t{path}")
            else:
                mode = (modes or {}).get(path, "100644")
                lines.append(f"{mode} {self.blob(content)}\t{path}")
        self.git(
            "update-index", "-z", "--index-info", feed="".join(f"{x}\0" for x in lines).encode()
        )
        return self.commit_tree(self.git("write-tree"), parents=parents, subject=subject, ref=ref)

    def commit_tree(
        self,
        tree: str,
        *,
        parents: Sequence[str] = (),
        subject: str = "a change",
        ref: str | None = None,
    ) -> str:
        self._days += 1
        stamp = f"{1767225600 + self._days * 86400} +0000"
        dates = {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp}
        listed = [part for parent in parents for part in ("-p", parent)]
        sha = self.git("commit-tree", tree, *listed, feed=subject.encode() + b"\n", env=dates)
        if ref is not None:
            self.git("update-ref", ref, sha)
        return sha

    def dev(
        self, files: Mapping[str, bytes | str | None], subject: str = "on dev", *more: str
    ) -> str:
        """A commit at the tip of the branch."""
        try:
            parents = [self.git("rev-parse", "--verify", "--quiet", "refs/heads/dev")]
        except subprocess.CalledProcessError:
            parents = []
        return self.commit(files, parents=[*parents, *more], subject=subject, ref="refs/heads/dev")

    def request(
        self, number: int, files: Mapping[str, bytes | str | None], onto: str, subject: str = "own"
    ) -> str:
        """A commit on top of another one, offered as a request's head."""
        return self.commit(files, parents=[onto], subject=subject, ref=f"refs/pull/{number}/head")

    def show(self, tree: str, path: str, *, at: Path | None = None) -> bytes:
        where = ["--git-dir", str(at)] if at is not None else []
        done = subprocess.run(
            ["git", *where, "cat-file", "blob", f"{tree}:{path}"],
            cwd=self.folder,
            check=True,
            capture_output=True,
        )
        return done.stdout


def bench(
    upstream: Upstream, cache: Path, *pins: Pin, bases: Sequence[str] = (), roots: str = "pkg"
) -> Bench:
    """A bench that has the branch and the pins."""
    history = History(Remote("core", str(upstream.folder)), cache)
    heads = [(pin.number, pin.head) for pin in pins if pin.text is None]
    missing = history.sync(branches=["dev"], heads=[*heads, *((None, base) for base in bases)])
    assert not missing
    tip = history.branch("dev")
    assert tip is not None
    tips = [tip, *bases, *(head for _, head in heads)]
    return Bench(history, Past(history, history.commits(tips), (tip, *bases)), (roots,))


def pin(number: int, head: str, **more: str) -> Pin:
    """A request against dev."""
    return Pin(f"r-{number}", head, component="core", number=number, target="dev", **more)  # type: ignore[arg-type]


def patch_pin(text: bytes, name: str = "mine") -> Pin:
    """A patch file."""
    return Pin(name, "sha256:" + "0" * 64, component="core", text=text)


def applied(upstream: Upstream, tmp_path: Path, candidate: Pin, base: str) -> Applied:
    made = bench(upstream, tmp_path / "cache", candidate, bases=[base])
    return made.apply(made.change(candidate), base, made.history.tree_of(base))


def tip(upstream: Upstream) -> str:
    return upstream.git("rev-parse", "refs/heads/dev")


def content(upstream: Upstream, tmp_path: Path, answer: Applied, path: str) -> bytes:
    (history,) = (tmp_path / "cache").glob("core-history-*.git")
    assert answer.tree is not None
    return upstream.show(answer.tree, path, at=history)
