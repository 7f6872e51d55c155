"""Children that are no processes: so that a test can give a child's function a stand-in."""

from __future__ import annotations

import copy
import importlib
import json
from typing import Any

import pytest

from probes import children, reasons
from probes.answer import plain
from probes.children import Call, Ended
from probes.reasons import Verdict
from probes.session import Concluded, Session


class Hangs(BaseException):
    """Raised by a stand-in in place of never coming back; no handler for errors catches it."""


class Dies(BaseException):
    """Raised by a stand-in in place of a fatal signal."""


class _Inner(Session):
    """The parent's session as a child sees it: steps reach the parent, and are remembered."""

    last: str | None = None

    def step(self, name: str) -> None:
        self.last = name
        super().step(name)


def run(probe: Session, call: Call) -> Ended:
    """What `children.run` does, in this process."""
    inner = copy.copy(probe)
    inner.__class__ = _Inner
    assert isinstance(inner, _Inner)
    inner.parameters = {**probe.parameters, **call.parameters}
    module = importlib.import_module(f"probes.{call.probe.replace('-', '_')}")
    value: Any = None
    how: Any = "raised"
    try:
        arguments = json.loads(json.dumps(dict(call.arguments)))
        value = getattr(module, call.function)(inner, arguments)
        value = json.loads(json.dumps(plain(value)))
        how, verdict = "returned", Verdict("pass")
    except Concluded as concluded:
        verdict = concluded.verdict
    except Hangs:
        how, verdict = "timeout", Verdict("fail", "timeout", f"hangs during: {inner.last}")
    except Dies:
        how, verdict = "died", Verdict("fail", "signal:SIGSEGV", f"during: {inner.last}")
    except Exception as error:  # noqa: BLE001 - as the real one does
        verdict = reasons.of_ours(error)
    return Ended(how, verdict, value, inner.last, {}, 0, "")


@pytest.fixture
def inline_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "run", run)
