"""Loading one file of a package without the package.

What the file imports of its own package is replaced: by what the caller gives under the same name,
or else by something that refuses to be used. So a function that needs none of it can be driven
where the package's imports would need what a stack lacks, or take longer than the question does.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from probes.session import OurFault


class LeftOut(OurFault):
    """A function used a part of its package that was not loaded: the adapter must provide it."""


class _Missing:
    """Stands for a name that the file imports and nobody should use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_arguments: Any, **_keywords: Any) -> Any:
        raise LeftOut(f"{self._name} was called")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LeftOut(f"{self._name}.{name} was used")


class _Replaced(ModuleType):
    """A module of the package, with whatever name is asked of it."""

    provided: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.provided[name] if name in self.provided else _Missing(name)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: Sequence[str], provided: Mapping[str, Any]) -> None:
        self._packages = packages
        self._provided = provided

    def covers(self, name: str) -> bool:
        return name.partition(".")[0] in self._packages

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self, is_package=True) if self.covers(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Replaced(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        assert isinstance(module, _Replaced)
        module.provided = self._provided


def load(file: Path, name: str, *, package: str, provided: Mapping[str, Any]) -> Any:
    """Load a file as a module.

    Args:
        file: what to load.
        name: what the module is called here; relative imports of it are replaced as well.
        package: top-level package whose modules are replaced.
        provided: what to give for imported names, whichever module they are imported from.

    Raises:
        ImportError: the file has no loader, or raised this itself.
    """
    home = f"{name}_package"
    full = f"{home}.{name}"
    spec = importlib.util.spec_from_file_location(full, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} has no loader")
    module = importlib.util.module_from_spec(spec)
    with _replacing(_Finder((package, home), provided)):
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return module


@contextmanager
def _replacing(finder: _Finder) -> Iterator[None]:
    def take() -> dict[str, ModuleType]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if finder.covers(name)}

    before = take()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        take()
        sys.modules.update(before)
