"""Counting what the DSL is asked to compile, and by which kernel's call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass
class Compiles:
    """The compilations during one kernel's calls."""

    count: int = 0
    seconds: float = 0.0
    names: list[str] = field(default_factory=list)
    """What was compiled, each once, by the name of the function or of the kernel's class."""


class Counter:
    """Stands in for `cute.compile` while it is installed, and passes every call on.

    Upstreams look the function up in its module at each call, so replacing it there reaches them
    all. Besides the plain call it has the original's other uses, such as options in brackets.
    """

    def __init__(self, original: Any) -> None:
        self._original = original
        self._kernel = "none"
        self.by_kernel: dict[str, Compiles] = {}
        self.replacement: Any = None
        """When set, compile nothing more: count the call and return this."""

    def __call__(self, function: Any, *arguments: Any, **options: Any) -> Any:
        return self._count(self._original, function, *arguments, **options)

    def __getitem__(self, options: Any) -> Any:
        return partial(self._count, self._original[options])

    def _count(self, original: Any, function: Any, /, *arguments: Any, **options: Any) -> Any:
        noted = self.by_kernel.setdefault(self._kernel, Compiles())
        noted.count += 1
        name = str(getattr(function, "__name__", None) or type(function).__name__)
        if name not in noted.names:
            noted.names.append(name)
        if self.replacement is not None:
            return self.replacement
        started = time.perf_counter()
        try:
            return original(function, *arguments, **options)
        finally:
            noted.seconds += time.perf_counter() - started

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def total(self) -> int:
        """All compilations so far."""
        return sum(noted.count for noted in self.by_kernel.values())

    def of(self, kernel: str) -> Compiles:
        """What was compiled during a kernel's calls."""
        return self.by_kernel.get(kernel, Compiles())

    @contextmanager
    def during(self, kernel: str) -> Iterator[None]:
        """Within this, compilations are a kernel's."""
        before, self._kernel = self._kernel, kernel
        try:
            yield
        finally:
            self._kernel = before


@contextmanager
def counted(cute: Any) -> Iterator[Counter]:
    """Install a counter in the DSL's module `cutlass.cute` for a while."""
    original = cute.compile
    counter = Counter(original)
    cute.compile = counter
    try:
        yield counter
    finally:
        cute.compile = original
