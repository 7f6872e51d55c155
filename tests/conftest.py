from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.worlds import World, make_world

# Machines that run the tests are shared; how long an example took says nothing.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test goes first: at the end, one worker would run it while others are idle."""
    items.sort(key=lambda item: item.path.name != "test_kills.py")


@pytest.fixture(scope="session")
def pristine_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Made once; its resolutions, environments and mirror stay for the copies."""
    return make_world(tmp_path_factory.mktemp("pristine"))


@pytest.fixture
def world(tmp_path: Path, pristine_world: World) -> World:
    """A tiny project of the test's own."""
    folder = tmp_path / "world"
    shutil.copytree(pristine_world.root.parent, folder, symlinks=True)
    return World(
        folder / "project", folder / "wheels", folder / "upstream", pristine_world.revision
    )


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def index(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The world's wheels as a package index, which uv's and pip's settings name."""
    for wheel in world.wheels.glob("*.whl"):
        name = wheel.name.split("-")[0].replace("_", "-")
        folder = tmp_path / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
    handler = functools.partial(_Quiet, directory=str(tmp_path / "simple"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
