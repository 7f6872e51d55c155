"""Where packages and torch come from, by this machine's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from matrix.components import WITH_TORCH, Component
from matrix.errors import Unavailable
from matrix.interpreters import Interpreter, runners_own
from matrix.pip_settings import locations
from matrix.rooms import Rooms
from matrix.torch_choice import TorchChoice, choose_torch
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
