"""Another process on a GPU: one that fills its memory, one that works there, one that looks on.

A child of a probe has it beside itself for a block. Both talk through files of a scratch folder,
each of which is written under another name first: a file that is there is complete.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from probes import children
from probes.children import Call, Ended
from probes.gpu_driver import Gpu
from probes.gpu_pair import NthGpu, count
from probes.mechanism_exhaustion import Filling
from probes.session import OurFault, Session

START_S: Final = 120.0
"""For a neighbour to be ready: it starts Python, makes a context and may fill a memory."""
STAY_S: Final = 900.0
"""Longest time that a neighbour stays; whoever forgot it is gone by then."""
_WORK_BYTES: Final = 256 << 20
_PAUSE_S: Final = 0.005
_READY: Final = "ready"
_LEAVE: Final = "leave"


@dataclass
class Neighbour:
    """The other process, as seen from beside it."""

    folder: Path
    ended: Future[Ended]
    facts: dict[str, Any] = field(default_factory=dict)
    """What it said when it was ready; `trouble` where it ended before."""
    _asked: int = 0

    def free_bytes(self) -> list[int]:
        """Memory that nobody has taken, of each GPU, as one that looks on sees it.

        Raises:
            OurFault: it does not answer.
        """
        self._asked += 1
        _write(self.folder, f"ask-{self._asked}", {})
        answer = _wait_for(self.folder, f"told-{self._asked}", 30.0, self.ended)
        if answer is None:
            raise OurFault(f"the process that looks on does not answer: {_how(self.ended)}")
        return [int(number) for number in answer["free_bytes"]]


@contextmanager
def neighbour(
    probe: Session, owner: str, work: str, *, environment: Mapping[str, str]
) -> Iterator[Neighbour]:
    """A block with another process beside this one.

    Args:
        probe: of this process.
        owner: id of the probe whose module has the function `be_neighbour`.
        work: `fill`, `work` or `watch`; see `be_neighbour`.
        environment: says which GPUs it sees.
    """
    folder = Path(tempfile.mkdtemp(prefix="neighbour-", dir=probe.scratch))
    call = Call(
        owner,
        "be_neighbour",
        {"work": work, "folder": str(folder)},
        name="neighbour",
        # It announces no step of its own: that would pass for one of the process beside it.
        limit_s=START_S + STAY_S,
        environment=environment,
    )
    # A child dies with the thread that started it, which is this pool's until the block ends.
    with ThreadPoolExecutor(max_workers=1) as pool:
        ended = pool.submit(children.run, probe, call)
        beside = Neighbour(folder, ended)
        try:
            said = _wait_for(folder, _READY, START_S, ended)
            beside.facts = {"trouble": _how(ended)} if said is None else said
            yield beside
        finally:
            _write(folder, _LEAVE, {})


def be_neighbour(probe: Session, arguments: Mapping[str, Any]) -> None:
    """Stay on the GPUs that this process sees until told to leave.

    `fill` takes all memory of the first one, `work` keeps its memory busy with writes, and `watch`
    tells what is left on each whenever it is asked.
    """
    folder, work = Path(arguments["folder"]), str(arguments["work"])
    gpu = Gpu(probe)
    watched = [gpu.free_bytes]
    busy = None
    facts: dict[str, Any] = {}
    if work == "fill":
        filling = Filling(gpu)
        words = filling.fill()
        facts = {"taken_bytes": filling.taken_bytes, "free_bytes": gpu.free_bytes(), "how": words}
    elif work == "work":
        busy = gpu("cuMemAlloc", _WORK_BYTES)
        gpu("cuMemsetD32", busy, 0, _WORK_BYTES // 4)
        gpu.wait()
    elif work == "watch":
        watched += [NthGpu(gpu, number).left_bytes for number in range(1, count(gpu))]
    else:
        raise ValueError(work)
    _write(folder, _READY, facts)
    asked = 1
    since = time.monotonic()
    while not (folder / _LEAVE).exists() and time.monotonic() - since < STAY_S:
        if busy is not None:
            gpu("cuMemsetD32", busy, asked, _WORK_BYTES // 4)
            gpu.wait()
            continue
        if (folder / f"ask-{asked}").exists():
            _write(folder, f"told-{asked}", {"free_bytes": [look() for look in watched]})
            asked += 1
        time.sleep(_PAUSE_S)


def _write(folder: Path, name: str, facts: Mapping[str, Any]) -> None:
    (folder / f".{name}").write_text(json.dumps(facts), encoding="utf-8")
    (folder / f".{name}").rename(folder / name)


def _wait_for(folder: Path, name: str, seconds: float, ended: Future[Ended]) -> Any:
    """What a file holds once it is there; None where the other process ended or time did."""
    since = time.monotonic()
    while time.monotonic() - since < seconds:
        over = ended.done()  # before the look: it may have written just before it ended
        if (folder / name).exists():
            return json.loads((folder / name).read_text(encoding="utf-8"))
        if over:
            return None
        time.sleep(_PAUSE_S)
    return None


def _how(ended: Future[Ended]) -> str:
    if not ended.done():
        return "it was not ready in time"
    verdict = ended.result().verdict
    return f"it ended: {verdict.reason}: {verdict.detail}"
