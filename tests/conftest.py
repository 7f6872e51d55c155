from __future__ import annotations

import shutil
from pathlib import Path

import hypothesis
import pytest

from tests.worlds import World, make_world

# Machines that run the tests are shared; how long an example took says nothing.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


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
