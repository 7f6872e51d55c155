"""Git as this project calls it: on one repository of ours, with nothing that could run.

Trees, attributes and configuration of others are data. No hook, filter, merge driver, diff driver,
file system monitor, submodule or remote helper is started, whatever a tree or this machine's
settings name.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

# GitPython looks for git when it is imported, and raises where there is none.
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
import git as git  # noqa: PLC0414  # others take it from here, so that it is set up first

#: The first git with `merge-tree --write-tree`, the merge that needs no worktree.
OLDEST_GIT: Final = (2, 38)

#: A command started from a git hook inherits the hook's repository; ours name their own.
for _name in (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_EXTERNAL_DIFF",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_TEMPLATE_DIR",
    "GIT_WORK_TREE",
):
    os.environ.pop(_name, None)

#: For every command that touches contents: no configuration but ours, and no network.
INERT: Final[Mapping[str, str]] = {
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}
#: Fetching uses the machine's proxies and certificates, and never asks a question.
QUIET: Final[Mapping[str, str]] = {
    "GIT_ASKPASS": "true",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_TERMINAL_PROMPT": "0",
}
#: A tree may ask for transports that are programs (`ext::`); only these are ever spoken.
PROTOCOLS: Final = "http:https:ssh"

#: Given on the command line, so that they win over every file.
_SETTINGS: Final = (
    "core.attributesFile=" + os.devnull,
    "core.autocrlf=false",
    "core.fsmonitor=false",
    "core.hooksPath=" + os.devnull,
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.quotePath=true",
    "diff.renames=true",
    "diff.renameLimit=20000",
    "gc.auto=0",
    "maintenance.auto=false",
    # A new file goes where its author put it, even where the folder around it moved.
    "merge.directoryRenames=false",
    "merge.renameLimit=20000",
    "submodule.recurse=false",
)

#: The repository's own attributes win over those of any tree: files come out as they are stored,
#: merges are git's own, and a conflict is marked so that no ordinary line looks like a mark.
MARK: Final = 43
_ATTRIBUTES: Final = (
    "* -text -eol -ident -filter -working-tree-encoding -crlf !merge !diff !whitespace "
    f"conflict-marker-size={MARK}\n"
)


class GitFailed(Exception):
    """Git ended with a status that was not expected; the message is its last words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@cache
def git_version() -> tuple[int, int]:
    """Major and minor version of the machine's git; (0, 0) where there is none."""
    try:
        text = str(git.Git().version())
    except git.GitError:
        return (0, 0)
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


class Inert:
    """One bare repository of ours, asked without anything of it being run.

    Args:
        folder: the repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.surroundings: Mapping[str, str] = INERT
        """Environment of every command."""

    def create(self) -> None:
        """Make the repository, or complete one whose making was cut short."""
        if not (self.folder / "HEAD").exists():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            # An empty template: what a machine's templates hold are hooks.
            _run(
                ["git", "init", "--quiet", "--bare", "--template=", str(self.folder)],
                self.folder.parent,
                {**INERT, "GIT_DIR": str(self.folder)},
            )
        self.settle()

    def settle(self) -> None:
        """Write down the attributes that win over a tree's own."""
        attributes = self.folder / "info" / "attributes"
        attributes.parent.mkdir(exist_ok=True)
        if not attributes.is_file() or attributes.read_text(encoding="ascii") != _ATTRIBUTES:
            attributes.write_text(_ATTRIBUTES, encoding="ascii")

    def ask(
        self,
        *arguments: str,
        feed: bytes | None = None,
        env: Mapping[str, str] | None = None,
        ok: Sequence[int] = (0,),
    ) -> tuple[int, bytes]:
        """The status and the output of one git command.

        Args:
            arguments: after `git`.
            feed: its standard input.
            env: variables on top of those that make git inert.
            ok: statuses that are answers.

        Raises:
            GitFailed: it ended with another status.
        """
        command = ["git", "--literal-pathspecs"]
        for setting in _SETTINGS:
            command += ["-c", setting]
        status, out, errors = _run(
            [*command, *arguments],
            self.folder,
            {**self.surroundings, "GIT_DIR": str(self.folder), **(env or {})},
            feed,
        )
        if status not in ok:
            words = errors.decode("utf-8", "replace").strip().splitlines()
            fatal = [line for line in words if line.startswith(("fatal:", "error:"))]
            raise GitFailed(status, (fatal or words or ["git gave no reason"])[-1])
        return status, out

    def output(
        self,
        *arguments: str,
        feed: bytes | None = None,
        env: Mapping[str, str] | None = None,
        ok: Sequence[int] = (0,),
    ) -> bytes:
        """The output of one git command, as it is.

        Raises:
            GitFailed: it ended with another status.
        """
        return self.ask(*arguments, feed=feed, env=env, ok=ok)[1]

    def text(
        self,
        *arguments: str,
        feed: bytes | None = None,
        env: Mapping[str, str] | None = None,
        ok: Sequence[int] = (0,),
    ) -> str:
        """The same, as one stripped text.

        Raises:
            GitFailed: it ended with another status.
        """
        out = self.output(*arguments, feed=feed, env=env, ok=ok)
        return out.decode("utf-8", "surrogateescape").strip()

    def is_commit(self, name: str) -> bool:
        """Whether an object is here and is a commit."""
        return self.ask("cat-file", "-e", f"{name}^{{commit}}", ok=(0, 1, 128))[0] == 0

    def blobs(self, names: Iterable[str]) -> dict[str, bytes]:
        """Contents by object name, in one question; names of no blob are left out.

        Raises:
            GitFailed: the repository can't be read.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        out = self.output("cat-file", "--batch", feed="\n".join(wanted).encode() + b"\n")
        found: dict[str, bytes] = {}
        place = 0
        for name in wanted:
            end = out.index(b"\n", place)
            head = out[place:end].split(b" ")
            place = end + 1
            if len(head) != 3 or not head[2].isdigit():
                continue  # "<name> missing"
            size = int(head[2])
            if head[1] == b"blob":
                found[name] = out[place : place + size]
            place += size + 1
        return found


def _run(
    command: list[str], folder: Path, env: Mapping[str, str], feed: bytes | None = None
) -> tuple[int, bytes, bytes]:
    with tempfile.TemporaryFile() as given:
        if feed:
            given.write(feed)
            given.seek(0)
        status, out, errors = git.Git(folder).execute(
            command,
            istream=given,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env=dict(env),
        )
    return int(status), _as_bytes(out), _as_bytes(errors)


def _as_bytes(output: bytes | str) -> bytes:
    return output if isinstance(output, bytes) else output.encode("utf-8", "surrogateescape")
