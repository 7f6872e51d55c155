"""Following places of one revision into other trees, where files and functions have other names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from matrix.models import Model
from patches.changes import matters
from patches.frames import Frame
from patches.functions import MODULE, Function, functions_of, names_at
from patches.history import History

#: Git's likeness of files: a file that is hardly the same counts as another one of that name.
MOVES = ("-B50%", "-M40%", "-C40%")
#: Two functions with fewer lines in common, of all their lines, are two functions.
_ALIKE = 0.5


class Place(Model):
    """A frame found in a revision."""

    frame: str
    """As it was given."""
    path: str | None = None
    function: str | None = None
    line: int | None = None
    why: str | None = None
    """Why it could not be found."""


class Tree:
    """The Python files of one tree.

    Args:
        history: holds it.
        tree: its name.
        roots: folders to look into.
    """

    def __init__(self, history: History, tree: str, roots: Sequence[str]) -> None:
        self.history = history
        self.tree = tree
        self._roots = roots
        self._sources: dict[str, bytes] = {}

    @cached_property
    def files(self) -> dict[str, str]:
        """Path -> blob of every Python file of the imported folders."""
        out = self.history.output("ls-tree", "-r", "-z", self.tree)
        found: dict[str, str] = {}
        for entry in out.decode("utf-8", "surrogateescape").split("\0"):
            facts, _, path = entry.partition("\t")
            if path.endswith(".py") and matters(path, self._roots) and facts.startswith("100"):
                found[path] = facts.split(" ")[2]
        return found

    def read(self, paths: Iterable[str]) -> None:
        """Read files in one go."""
        wanted = [path for path in paths if path in self.files and path not in self._sources]
        blobs = self.history.blobs(self.files[path] for path in wanted)
        for path in wanted:
            self._sources[path] = blobs.get(self.files[path], b"")

    def source(self, path: str) -> bytes:
        """A file's content; empty when there is no such file."""
        self.read([path])
        return self._sources.get(path, b"")

    def functions(self, path: str) -> tuple[Function, ...]:
        """A file's functions; none when it is no valid Python."""
        return functions_of(self.source(path)) or ()


def locate(tree: Tree, frames: Sequence[Frame]) -> list[Place]:
    """Where frames are in a tree. A file named without its folder is looked for beside the others.

    Args:
        tree: of the revision in which the traceback was seen.
        frames: in order.
    """
    near: set[str] = set()
    for frame in frames:
        if frame.path is not None and len(fits := _fitting(tree, frame.path)) == 1:
            near.add(fits[0].rpartition("/")[0])
    return [_located(tree, frame, near) for frame in frames]


def _fitting(tree: Tree, written: str) -> list[str]:
    """Paths that a written path means: it may be longer than the tree's, or only its end."""
    clean = written.replace("\\", "/").removeprefix("./")
    whole = [path for path in tree.files if clean == path or clean.endswith(f"/{path}")]
    return whole or [path for path in tree.files if path.endswith(f"/{clean}")]


def _located(tree: Tree, frame: Frame, near: set[str]) -> Place:
    if frame.path is None:
        return _by_name(tree, frame)
    fits = _fitting(tree, frame.path)
    if len(fits) > 1:
        fits = [path for path in fits if path.rpartition("/")[0] in near] or fits
    if not fits:
        return Place(frame=frame.shown, why="no file of this component")
    if len(fits) > 1:
        return Place(frame=frame.shown, why=f"{len(fits)} files are called so; give the folder")
    path = fits[0]
    if frame.line is None:
        if frame.name is None:
            return Place(frame=frame.shown, path=path, function=MODULE)
        named = [f for f in tree.functions(path) if _called(f, frame.name)]
        if not named:
            return Place(frame=frame.shown, path=path, why=f"it has no function {frame.name}")
        return Place(frame=frame.shown, path=path, function=named[0].name, line=named[0].first)
    source = tree.source(path)
    if frame.line > source.count(b"\n") + 1:
        return Place(frame=frame.shown, path=path, why=f"it has no line {frame.line}")
    (function,) = names_at(source, [(frame.line, frame.line)])
    return Place(frame=frame.shown, path=path, function=function, line=frame.line)


def _called(function: Function, name: str) -> bool:
    return function.name == name or function.name.endswith(f".{name}")


def _by_name(tree: Tree, frame: Frame) -> Place:
    name = str(frame.name)
    short = name.rpartition(".")[2].encode()
    tree.read(tree.files)
    found = [
        (path, function)
        for path in tree.files
        if b"def " + short in tree.source(path) or b"class " + short in tree.source(path)
        for function in tree.functions(path)
        if _called(function, name)
    ]
    if len(found) != 1:
        why = (
            f"{len(found)} functions are called so; give the file" if found else "no such function"
        )
        return Place(frame=frame.shown, why=why)
    path, function = found[0]
    return Place(frame=frame.shown, path=path, function=function.name, line=function.first)


@dataclass(frozen=True)
class Moves:
    """Where files of one tree are in another."""

    targets: dict[str, list[str]]
    """Old path -> where its content is now; its own path first where it stayed, none where it is
    gone."""

    def of(self, path: str) -> list[str]:
        """Where a file's content is."""
        return self.targets.get(path, [path])

    def stays(self, path: str) -> bool:
        """Whether a file still has its name."""
        return path in self.of(path)


class Tracer:
    """Follows places of one revision into other trees.

    Args:
        history: holds the trees.
        base: the tree in which the traceback was seen.
        roots: folders to look into.
    """

    def __init__(self, history: History, base: str, roots: Sequence[str]) -> None:
        self.history = history
        self.base = Tree(history, base, roots)
        self._roots = roots
        self._trees: dict[str, Tree] = {base: self.base}
        self._moves: dict[tuple[str, str], Moves] = {}

    def tree(self, name: str) -> Tree:
        """A tree, read once."""
        return self._trees.setdefault(name, Tree(self.history, name, self._roots))

    def follow(self, place: Place, other: Tree) -> tuple[str, str] | None:
        """The path and the function that a place is in another tree; None when it is gone.

        A file is followed by git's own likeness of files, a function by its name there, and by the
        lines that it shares where its name is another.
        """
        if place.path is None or place.function is None:
            return None
        paths = [path for path in self._between(other).of(place.path) if path in other.files]
        if place.function == MODULE:
            return (paths[0], MODULE) if paths else None
        mine = next((f for f in self.base.functions(place.path) if f.name == place.function), None)
        if mine is None:
            return None
        lines = _lines(self.base.source(place.path), mine)
        best = self._best(lines, mine.name, paths, other)
        if best is None:
            folder = place.path.rpartition("/")[0] + "/"
            nearby = [path for path in other.files if path.startswith(folder)]
            best = self._best(lines, mine.name, nearby, other)
        return best

    def _best(
        self, lines: Counter[bytes], name: str, paths: Sequence[str], other: Tree
    ) -> tuple[str, str] | None:
        best: tuple[float, str, str] | None = None
        other.read(paths)
        for path in paths:
            for function in other.functions(path):
                if function.is_class:
                    continue
                alike = _alike(lines, _lines(other.source(path), function))
                if alike < (_ALIKE / 2 if function.name == name else _ALIKE):
                    continue
                # The name decides between functions that are nearly the same.
                score = alike + (0.2 if function.name == name else 0.0)
                if best is None or score > best[0]:
                    best = (score, path, function.name)
        return best[1:] if best is not None else None

    def _between(self, other: Tree) -> Moves:
        key = (self.base.tree, other.tree)
        if key not in self._moves:
            self._moves[key] = moves(self.history, *key)
        return self._moves[key]


def moves(history: History, before: str, after: str) -> Moves:
    """Files of one tree that are elsewhere in another, or were split.

    A file whose content went elsewhere while another one took its name counts as moved.
    """
    out = history.output("diff-tree", "-r", *MOVES, "-z", "--name-status", before, after).decode(
        "utf-8", "surrogateescape"
    )
    fields = iter(out.split("\0"))
    targets: dict[str, list[str]] = {}
    stays: dict[str, bool] = {}
    gone: list[str] = []
    for letter in fields:
        if not letter:
            continue
        path = next(fields)
        if letter[0] in "RC":
            targets.setdefault(path, []).append(next(fields))
        elif letter[0] == "M":
            # "M099": hardly a line is the same, so the name says nothing.
            stays[path] = not (letter[1:].isdigit() and int(letter[1:]) >= 60)
        elif letter[0] == "D":
            stays[path] = False
            gone.append(path)
    for path, elsewhere in targets.items():
        if stays.get(path, False):
            elsewhere.insert(0, path)
    for path in gone:
        targets.setdefault(path, [])
    return Moves({path: found for path, found in targets.items() if found != [path]})


def _lines(source: bytes, function: Function) -> Counter[bytes]:
    lines = source.split(b"\n")[function.first - 1 : function.last]
    return Counter(stripped for line in lines if (stripped := line.strip()))


def _alike(some: Counter[bytes], others: Counter[bytes]) -> float:
    total = some.total() + others.total()
    return 2 * (some & others).total() / total if total else 0.0
