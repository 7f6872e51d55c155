"""What this machine can provide for a stack: its Python, its torch, its git sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.building.interpreters import Interpreter, find_interpreter
from matrix.building.machine import Gpu
from matrix.building.resolution import Resolution
from matrix.building.torch_choice import TorchChoice, choose_torch
from matrix.building.uv import Packages
from matrix.components import NONE, SYSTEM, Component
from matrix.errors import DataError, Unavailable
from matrix.rooms import Rooms
from matrix.settings import Settings
from matrix.stacks import Stack
from matrix.versions import same_version
from patches.applying import Pin
from patches.candidates import Patching
from patches.history import is_sha
from patches.patched import Patcher
from patches.sources import Source


@dataclass(frozen=True)
class Setup:
    """How a stack's environment is made here."""

    interpreter: Interpreter
    torch: TorchChoice
    resolution: Resolution | None = None
    """A lock to use instead of resolving again."""
    pins: tuple[Pin, ...] = ()
    """Patches of the stack, in order of application."""


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
        gpus: Sequence[Gpu] = (),
        python: str | None,
    ) -> None:
        self._rooms = rooms
        self._components = components
        self._settings = settings
        self._reachable: dict[str, bool] = {}
        self.gpu = gpu
        self.gpus = tuple(gpus) or ((gpu,) if gpu else ())
        for name in settings.sources:
            if name not in components or components[name].kind != "git":
                known = ", ".join(name for name, part in components.items() if part.kind == "git")
                raise DataError(f"The source {name}: not a git component. Those are: {known}.")
        self.sources = {
            name: Source(name, settings.sources.get(name, component.remote or ""), rooms.sources)
            for name, component in components.items()
            if component.kind == "git"
        }
        self.patching = Patching(
            rooms.candidates,
            [name for name, part in components.items() if part.kind == "git"],
            rooms.evidence,
        )
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

    def stack(
        self, requested: dict[str, str], name: str, pins: tuple[Pin, ...] = ()
    ) -> tuple[Stack, Setup | None]:
        """A stack with `system` replaced by what is here, and how its environment is made.

        Patches of components that the stack has no revision of are left out.
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
            setup, requested, lacking = self._with_image_parts(
                Setup(self.interpreter, choice),
                {**requested, torch.name: choice.torch, cudnn.name: choice.cudnn},
            )
            absent += lacking
            provided = setup.torch.provided
        pins = tuple(
            pin
            for pin in pins
            if self._components[pin.component].is_revision(requested.get(pin.component, NONE))
        )
        absent += self._unpatchable(requested, pins)
        patched = frozenset(pin.component for pin in pins)
        absent += self._unreachable(
            {name: version for name, version in requested.items() if name not in patched}
        )
        stack = Stack(
            requested,
            patches=tuple((pin.id, pin.head) for pin in pins),
            name=name,
            provided=provided,
            absent=tuple(absent),
        )
        return stack, None if setup is None else replace(setup, pins=pins)

    def _with_image_parts(
        self, setup: Setup, requested: dict[str, str]
    ) -> tuple[Setup, dict[str, str], list[tuple[str, str, str]]]:
        """A setup with the parts that no index has and this image does, and what it has not."""
        lacking = []
        choice, requested = setup.torch, dict(requested)
        for name, component in self._components.items():
            asked = requested.get(name, NONE)
            if component.kind != "image" or asked == NONE:
                continue
            found = setup.interpreter.provided.get((component.distribution or name).lower())
            # Such parts are built against the image's torch, and are of no use beside another.
            have = None if found is None or not choice.image else found[0]
            if have is None and asked == SYSTEM:
                requested[name] = NONE
            elif have is None or (asked != SYSTEM and not same_version(asked, have)):
                beside = "" if found is None or choice.image else ", and only beside its own torch"
                text = f"{name} {asked} is asked for; the image has {found[0] if found else 'none'}"
                lacking.append((name, "machine:not-provided", f"{text}{beside}"))
            else:
                requested[name] = have
                choice = choice.with_part(name, found[1] if found else "")
        return replace(setup, torch=choice), requested, lacking

    def _unpatchable(
        self, requested: dict[str, str], pins: tuple[Pin, ...]
    ) -> list[tuple[str, str, str]]:
        """Patched components that can't be had here."""
        found = []
        for name in dict.fromkeys(pin.component for pin in pins):
            own = [pin for pin in pins if pin.component == name]
            unknown = [pin.id for pin in own if pin.text is None and not is_sha(pin.head)]
            if unknown:
                why = f"nobody has seen the head of {', '.join(unknown)} yet"
                found.append((name, "patch:unavailable", why))
            elif not Patcher(
                self.sources[name].remote, self._rooms.sources, self._components[name].roots
            ).kept(requested[name], own):
                found += self._unreachable({name: requested[name]}, cached=False)
        return found

    def _unreachable(
        self, requested: dict[str, str], *, cached: bool = True
    ) -> list[tuple[str, str, str]]:
        found = []
        for name, source in self.sources.items():
            version = requested.get(name, NONE)
            if not self._components[name].is_revision(version):
                continue
            if cached and source.has(version):
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
