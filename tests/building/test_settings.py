"""Where packages and torch come from, by this machine's own settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from matrix.building.here import Here, Setup
from matrix.building.interpreters import Interpreter, runners_own
from matrix.building.pip_settings import locations
from matrix.building.torch_choice import TorchChoice, choose_torch
from matrix.components import WITH_TORCH, Component
from matrix.errors import Unavailable
from matrix.rooms import Rooms
from matrix.settings import Settings
from matrix.stacks import Stack
from tests.wheels import make_wheel

TORCH = Component(
    name="torch", title="t", short="t", kind="torch", reason="r",
    link="https://example.org", distribution="torch", module="torch", default="2.11.0",
)  # fmt: skip


def choose(
    tmp_path: Path,
    *,
    torch: str = "system",
    cudnn: str = "system",
    gpu: bool = False,
    image: dict[str, tuple[str, str]] | None = None,
) -> TorchChoice:
    interpreter = Interpreter(runners_own(), "3.11.7", "linux-x86_64", image or {})
    wheels = tmp_path / "wheels"
    wheels.mkdir(exist_ok=True)
    return choose_torch(
        torch=torch,
        cudnn=cudnn,
        component=TORCH,
        interpreter=interpreter,
        has_gpu=gpu,
        wheelhouse=wheels,
        rooms=Rooms(tmp_path),
    )


IMAGE = {"torch": ("2.11.0+cu130", "/image"), "nvidia-cudnn-cu13": ("9.19.0.56", "/image")}


def test_system_is_what_the_image_has(tmp_path: Path) -> None:
    choice = choose(tmp_path, gpu=True, image=IMAGE)

    assert (choice.torch, choice.cudnn) == ("2.11.0+cu130", "9.19.0.56")
    assert choice.image == ("/image",)
    assert choice.requirements == ()
    assert choice.provided == {"torch", "nvidia-cudnn"}


def test_another_cudnn_goes_in_front_of_the_images(tmp_path: Path) -> None:
    choice = choose(tmp_path, gpu=True, image=IMAGE, cudnn="9.27.0.42")

    assert choice.requirements == ("nvidia-cudnn-cu13==9.27.0.42",)
    assert choice.provided == {"torch"}


def test_an_image_with_the_version_that_is_asked_for_provides_it(tmp_path: Path) -> None:
    assert choose(tmp_path, torch="2.11.0", gpu=True, image=IMAGE).image == ("/image",)


def test_an_image_with_another_version_does_not(tmp_path: Path) -> None:
    choice = choose(tmp_path, torch="2.13.0", gpu=True, image=IMAGE)

    assert choice.image == ()
    assert choice.requirements == ("torch==2.13.0",)


def test_a_gpu_without_torch_gets_the_catalogues_default(tmp_path: Path) -> None:
    choice = choose(tmp_path, gpu=True)

    assert (choice.torch, choice.cudnn) == ("2.11.0", WITH_TORCH)


def test_without_a_gpu_only_a_cpu_build_will_do(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "torch", "2.14.0", {"torch.py": ""})
    with pytest.raises(Unavailable, match="no CPU build of torch") as caught:
        choose(tmp_path)
    assert caught.value.reason == "machine:no-torch"

    make_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"torch.py": ""})
    choice = choose(tmp_path)

    assert (choice.torch, choice.cudnn) == ("2.13.0+cpu", "none")
    assert choice.requirements == ("torch==2.13.0+cpu",)


def test_a_cpu_build_of_another_version_does_not_stand_in(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"torch.py": ""})

    with pytest.raises(Unavailable, match=r"no CPU build of torch 2\.11\.0"):
        choose(tmp_path, torch="2.11.0")


def test_pips_settings_name_folders_and_indexes(tmp_path: Path) -> None:
    text = "\n".join(
        [
            ":env:.find-links='/opt/wheels'",
            "global.find-links='/opt/wheels /srv/wheels'",
            f"global.extra-index-url='file:///no/such file://{tmp_path} https://example.org/simple'",
            "global.timeout='60'",
            "broken",
        ]
    )

    found = locations(text)

    assert found.find_links == ("/opt/wheels", "/srv/wheels")
    assert found.extra_indexes == (f"file://{tmp_path}", "https://example.org/simple")


def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: dict[str, tuple[str, str]]
) -> Callable[[str], tuple[Stack, Setup | None]]:
    """What this machine makes of a stack that asks for a part of the image in some way."""
    interpreter = Interpreter(runners_own(), "3.11.7", "linux-x86_64", image)
    monkeypatch.setattr("matrix.building.here.find_interpreter", lambda wanted: interpreter)
    parts = [
        TORCH,
        TORCH.model_copy(update={"name": "nvidia-cudnn", "kind": "cudnn", "distribution": None}),
        TORCH.model_copy(
            update={"name": "flash-mla", "kind": "image", "distribution": "flash-mla"}
        ),
    ]
    machine = Here(
        rooms=Rooms(tmp_path),
        components={part.name: part for part in parts},
        settings=Settings(),
        gpu=None,
        python=None,
    )

    def stack(asked: str) -> tuple[Stack, Setup | None]:
        requested = {"torch": "2.11.0+cu130", "nvidia-cudnn": "system", "flash-mla": asked}
        return machine.stack(requested, "s")

    return stack


FLASH = {"flash-mla": ("1.0.0+b7643bd", "/elsewhere")}


@pytest.mark.parametrize("asked", ["system", "1.0.0+b7643bd", "1.0.0"])
def test_a_part_of_the_image_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    stack, setup = here(tmp_path, monkeypatch, {**IMAGE, **FLASH})(asked)

    assert stack.requested["flash-mla"] == "1.0.0+b7643bd"
    assert stack.provided == {"torch", "nvidia-cudnn", "flash-mla"}
    assert stack.absent == ()
    assert setup is not None
    assert setup.torch.image == ("/image", "/elsewhere")


def test_a_part_that_the_image_lacks_is_no_part_of_a_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = here(tmp_path, monkeypatch, IMAGE)

    without, _ = asked("none")
    found, _ = asked("system")
    assert found.requested["flash-mla"] == "none"
    assert (found.id, found.absent) == (without.id, ())


@pytest.mark.parametrize("image", [IMAGE, {**IMAGE, "flash-mla": ("2.0", "/image")}])
def test_a_version_that_the_image_lacks_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image: dict[str, tuple[str, str]]
) -> None:
    stack, setup = here(tmp_path, monkeypatch, image)("1.0.0+b7643bd")

    ((name, reason, why),) = stack.absent
    assert (name, reason) == ("flash-mla", "machine:not-provided")
    assert "the image has" in why
    assert setup is not None
