from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.probes.asking import Asker

# A shared machine may stall for a moment; how long an example takes is not what is tested.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.fixture
def asker(tmp_path: Path) -> Asker:
    return Asker(tmp_path)
