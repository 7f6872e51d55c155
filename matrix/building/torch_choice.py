"""Which torch, and with it which cuDNN, a tested environment gets on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.building.interpreters import Interpreter
from matrix.building.pip_settings import cpu_builds, locations, settings_text, uv_cpu_build
from matrix.building.uv import Packages
from matrix.components import NONE, SYSTEM, WITH_TORCH, Component
from matrix.errors import Unavailable
from matrix.rooms import Rooms
from matrix.versions import same_version


@dataclass(frozen=True)
class TorchChoice:
    """What stands for torch and cuDNN in a stack on this machine."""

    torch: str
    cudnn: str
    packages: Packages
    """Where all packages of the environment come from."""
    provided: frozenset[str] = frozenset()
    image: tuple[str, ...] = ()
    """Folders of the image that go on the environment's path, after its own."""
    requirements: tuple[str, ...] = ()
    """Lines that the resolver gets; empty when the image provides torch."""

    def with_part(self, name: str, folder: str) -> TorchChoice:
        """The same, with another part of the image that lies in a folder."""
        image = self.image if folder in self.image else (*self.image, folder)
        return replace(self, provided=self.provided | {name}, image=image)


def choose_torch(
    *,
    torch: str,
    cudnn: str,
    component: Component,
    interpreter: Interpreter,
    has_gpu: bool,
    wheelhouse: Path | None,
    rooms: Rooms,
) -> TorchChoice:
    """The torch and cuDNN for one stack.

    `system` is what the image has. Where the image has none, a machine with a GPU installs the
    catalogue's default, and one without gets a CPU build: CUDA libraries would be gigabytes to run
    nothing on.

    Raises:
        Unavailable: this machine can't have the torch that is asked for.
    """
    packages = Packages(wheelhouse=wheelhouse)
    own = interpreter.torch
    if own is not None and (torch == SYSTEM or same_version(torch, own[0])):
        return _from_image(own, cudnn, interpreter, packages)
    if has_gpu:
        version = component.default if torch == SYSTEM else torch
        if version is None:
            raise Unavailable(
                "machine:no-torch",
                f"{interpreter.executable} has no torch, and the catalogue names no default.",
            )
        requirements = [f"torch=={version}"]
        if cudnn == SYSTEM:
            cudnn = WITH_TORCH
        return TorchChoice(version, cudnn, packages, requirements=tuple(requirements))
    return _cpu_build(torch, cudnn, interpreter, packages, rooms)


def _from_image(
    own: tuple[str, str], cudnn: str, interpreter: Interpreter, packages: Packages
) -> TorchChoice:
    provided = {"torch"}
    requirements: list[str] = []
    if cudnn == SYSTEM:
        cudnn = interpreter.cudnn or WITH_TORCH
    if cudnn in (interpreter.cudnn, WITH_TORCH):
        provided.add("nvidia-cudnn")
    elif cudnn != NONE:
        # A wheel of its own goes first on the path; torch finds it before the image's.
        major = _cuda_major(interpreter)
        requirements.append(f"nvidia-cudnn-cu{major}=={cudnn}")
    return TorchChoice(
        torch=own[0],
        cudnn=cudnn,
        packages=packages,
        provided=frozenset(provided),
        image=(own[1],),
        requirements=tuple(requirements),
    )


def _cuda_major(interpreter: Interpreter) -> str:
    names = sorted(name for name in interpreter.provided if name.startswith("nvidia-cudnn-cu"))
    if not names:
        raise Unavailable(
            "machine:no-torch",
            f"The image's torch ({interpreter.executable}) does not say which CUDA it was built "
            "for, so another cuDNN can't be put in front of it. Ask for cuDNN `system`.",
        )
    return names[-1].removeprefix("nvidia-cudnn-cu")


def _cpu_build(
    torch: str, cudnn: str, interpreter: Interpreter, packages: Packages, rooms: Rooms
) -> TorchChoice:
    text = settings_text()
    offer = _offer(interpreter, packages.wheelhouse, text, rooms)
    chosen = next(
        (version for version in offer.versions if torch == SYSTEM or same_version(torch, version)),
        None,
    )
    if chosen is None:
        asked = "torch" if torch == SYSTEM else f"torch {torch}"
        where = (
            "on offer: pip's settings (find-links, extra-index-url) and the index uv knows for CPU "
            "builds were asked. Point pip's find-links at a folder that holds one."
            if packages.wheelhouse is None
            else "in the wheelhouse, the only place that is asked. Put one there."
        )
        text = f"no CPU build of {asked} for Python {interpreter.minor} is {where}"
        raise Unavailable("machine:no-torch", text)
    if packages.wheelhouse is None:
        known = locations(text)
        packages = Packages(
            find_links=known.find_links,
            # An index in front of the machine's own would answer for other packages too.
            extra_indexes=known.extra_indexes if offer.indexes else (),
            torch_backend=offer.torch_backend,
        )
    # With no GPU there is no use for cuDNN, and a stack that wants one can't be had whole here.
    if cudnn not in (SYSTEM, NONE, WITH_TORCH):
        raise Unavailable("machine:no-gpu", f"cuDNN {cudnn} is not installed where no GPU is.")
    version = chosen if torch == SYSTEM else torch
    return TorchChoice(version, NONE, packages, requirements=(f"torch=={chosen}",))


@dataclass(frozen=True)
class _Offer:
    versions: list[str]
    indexes: bool = False
    """Whether pip's extra indexes are needed to get them; else its folders are enough."""
    torch_backend: str | None = None
    """uv's name of the place that offers them, when it is not one that pip's settings name."""


def _offer(interpreter: Interpreter, wheelhouse: Path | None, text: str, rooms: Rooms) -> _Offer:
    """CPU builds on offer; remembered, because asking an index takes a second or more."""
    key = hashlib.sha256(
        "\n".join(
            [interpreter.version, interpreter.platform, text, Packages(wheelhouse).identity]
        ).encode()
    ).hexdigest()[:16]
    memory = rooms.cache / "torch-cpu" / f"{key}.json"
    try:
        offer = _Offer(**json.loads(memory.read_text(encoding="utf-8")))
        return replace(offer, versions=[str(version) for version in offer.versions])
    except (OSError, ValueError, TypeError):
        pass
    offer = _Offer(cpu_builds(interpreter, wheelhouse, folders_only=True))
    if not offer.versions and wheelhouse is None:
        offer = _Offer(cpu_builds(interpreter, None, folders_only=False), indexes=True)
    if not offer.versions and wheelhouse is None:
        build = uv_cpu_build(interpreter)
        offer = _Offer([build], torch_backend="cpu") if build else offer
    if offer.versions:
        # "None on offer" is not remembered: people mend their settings and try again.
        with contextlib.suppress(OSError):  # a cache that can't be written is done without
            memory.parent.mkdir(parents=True, exist_ok=True)
            memory.write_text(json.dumps(vars(offer)), encoding="utf-8")
    return offer
