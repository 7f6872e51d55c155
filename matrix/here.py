"""What this machine can provide for a stack: its Python, its torch, its git sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from matrix.components import Component
from matrix.errors import DataError, Unavailable
from matrix.interpreters import Interpreter, find_interpreter
from matrix.machine import Gpu
from matrix.resolution import Resolution
from matrix.rooms import Rooms
from matrix.settings import Settings
from matrix.stacks import Stack
from matrix.torch_choice import TorchChoice, choose_torch
from matrix.uv import Packages
from patches.sources import Source


@dataclass(frozen=True)
class Setup:
    """How a stack's environment is made here."""

    interpreter: Interpreter
    torch: TorchChoice
    resolution: Resolution | None = None
    """A lock to use instead of resolving again."""


class Here:
    """This machine, asked once per command.

    Raises:
        DataError: the settings name something that is no git component, or a Python at a path
            where none runs.
    """

    def __init__(
        self,
        *,
        rooms: Rooms,
        components: dict[str, Component],
        settings: Settings,
        gpu: Gpu | None,
        python: str | None,
    ) -> None:
        self._rooms = rooms
        self._components = components
        self._settings = settings
        self._reachable: dict[str, bool] = {}
        self.gpu = gpu
        for name in settings.sources:
            if name not in components or components[name].kind != "git":
                known = ", ".join(name for name, part in components.items() if part.kind == "git")
                raise DataError(f"--source {name}: not a git component. Git components: {known}.")
        self.sources = {
            name: Source(name, settings.sources.get(name, component.remote or ""), rooms.sources)
            for name, component in components.items()
            if component.kind == "git"
        }
        self.interpreter: Interpreter | Unavailable
        try:
            self.interpreter = find_interpreter(settings.python or python)
        except Unavailable as error:
            self.interpreter = error

    def places(self) -> dict[str, str]:
        """Paths of this machine that no record may show, and what stands for each."""
        places = {
            str(self._rooms.cache): "<cache>",
            str(self._rooms.root): "<project>",
            str(Path.home()): "~",
        }
        if self._settings.wheelhouse is not None:
            places[str(self._settings.wheelhouse)] = "<wheelhouse>"
        if isinstance(self.interpreter, Interpreter):
            places[self.interpreter.executable] = "<python>"
        for name, place in self._settings.sources.items():
            if "://" not in place:
                places[place] = f"<mirror of {name}>"
        # The longest first: a cache may lie inside the project, and that inside the home folder.
        return dict(sorted(places.items(), key=lambda item: -len(item[0])))

    def stack(self, requested: dict[str, str], name: str) -> tuple[Stack, Setup | None]:
        """A stack with `system` replaced by what is here, and how its environment is made.

        What this machine lacks for it is told in the stack; without any Python there is no setup.
        """
        absent: list[tuple[str, str, str]] = []
        setup: Setup | None = None
        torch = next(part for part in self._components.values() if part.kind == "torch")
        cudnn = next(part for part in self._components.values() if part.kind == "cudnn")
        provided: frozenset[str] = frozenset()
        if isinstance(self.interpreter, Unavailable):
            absent.append((torch.name, self.interpreter.reason, str(self.interpreter)))
        else:
            try:
                choice = choose_torch(
                    torch=requested[torch.name],
                    cudnn=requested[cudnn.name],
                    component=torch,
                    interpreter=self.interpreter,
                    has_gpu=self.gpu is not None,
                    wheelhouse=self._settings.wheelhouse,
                    rooms=self._rooms,
                )
            except Unavailable as error:
                absent.append((torch.name, error.reason, str(error)))
                # The rest of the stack can still be resolved and loaded; that is an answer too.
                choice = TorchChoice(
                    requested[torch.name],
                    requested[cudnn.name],
                    Packages(self._settings.wheelhouse),
                )
            setup = Setup(self.interpreter, choice)
            provided = choice.provided
            requested = {**requested, torch.name: choice.torch, cudnn.name: choice.cudnn}
        absent += self._unreachable(requested)
        stack = Stack(requested, name=name, provided=provided, absent=tuple(absent))
        return stack, setup

    def _unreachable(self, requested: dict[str, str]) -> list[tuple[str, str, str]]:
        found = []
        for name, source in self.sources.items():
            version = requested[name]
            if not self._components[name].is_revision(version) or source.has(version):
                continue
            if name not in self._reachable:
                self._reachable[name] = source.reachable()
            if not self._reachable[name]:
                why = (
                    f"{source.shown} can't be reached from here and {version[:12]} is not in the "
                    f"cache; name a local mirror with --source {name}=PATH"
                )
                found.append((name, "source:unreachable", why))
        return found
