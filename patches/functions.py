"""Python source by its functions: which one a line lies in, which ones are called by which."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

#: What stands for code outside any function.
MODULE = "<module>"


@dataclass(frozen=True)
class Function:
    """A function or a class of a file."""

    name: str
    """With the classes and functions around it: `Indexer.forward`."""
    first: int
    """First line, decorators included; lines count from 1."""
    last: int
    is_class: bool = False
    calls: frozenset[str] = field(default_factory=frozenset)
    """Last parts of the names it calls or hands on: `a.b.c(...)` counts as `c`."""

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@lru_cache(maxsize=512)
def functions_of(source: bytes) -> tuple[Function, ...] | None:
    """Every function and class of a file, outer ones first; None when it is no valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in someone's source is not ours
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: list[Function] = []
    _walk(tree, "", found)
    return tuple(sorted(found, key=lambda function: (function.first, -function.last)))


def _walk(node: ast.AST, prefix: str, found: list[Function]) -> None:
    waiting: list[tuple[ast.AST, str]] = [(node, prefix)]
    while waiting:  # a loop: deeply nested source must not end us
        current, around = waiting.pop()
        for child in ast.iter_child_nodes(current):
            inside = around
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{around}.{child.name}" if around else child.name
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                is_class = isinstance(child, ast.ClassDef)
                calls = frozenset() if is_class else frozenset(_calls(child))
                last = child.end_lineno or child.lineno
                found.append(Function(name, first, last, is_class, calls))
                inside = name
            waiting.append((child, inside))


def _calls(node: ast.AST) -> Iterator[str]:
    """Names that a function uses: called, or handed on as `autograd.Function.apply` is."""
    for child in ast.walk(node):
        if isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.Name):
            yield child.id


def names_at(source: bytes, spans: Iterable[tuple[int, int]]) -> list[str]:
    """The innermost functions that lines of a file lie in, in order of the lines.

    Args:
        source: the file.
        spans: (first line, last line); a span whose last line is before its first is the place
            between two lines.

    Returns:
        Names; `<module>` for code outside functions. A file that is no valid Python, such as one
        with an unfinished merge, is searched for lines that look like `def`.
    """
    functions = functions_of(source)
    names: dict[str, None] = {}
    for first, last in spans:
        if functions is None:
            names[_looks_like(source, first)] = None
            continue
        for name in _touched(functions, first, max(first, last)):
            names[name] = None
    return list(names)


def _touched(functions: Sequence[Function], first: int, last: int) -> list[str]:
    inside = [f for f in functions if f.first <= last and f.last >= first and not f.is_class]
    # Of nested functions the inner ones say more; a line beside them is the outer one's.
    covered: set[int] = set()
    names: list[str] = []
    for function in sorted(inside, key=lambda f: f.last - f.first):
        lines = set(range(max(first, function.first), min(last, function.last) + 1))
        if lines - covered:
            names.append(function.name)
        covered |= lines
    if set(range(first, last + 1)) - covered:
        around = [f for f in functions if f.is_class and f.first <= first and f.last >= last]
        names.append(around[-1].name if around else MODULE)
    return names


_DEF = re.compile(rb"\s*(?:async\s+)?def\s+(\w+)|\s*class\s+(\w+)")


def _looks_like(source: bytes, line: int) -> str:
    lines = source.split(b"\n")
    for text in reversed(lines[: max(line, 0)]):
        if match := _DEF.match(text):
            return (match[1] or match[2]).decode("utf-8", "replace")
    return MODULE
