"""Whether the exchange and the gathers are ordered with other work when something is late.

Each is called on inputs that are only just being written: the buffer holds other valid rows, and
the right ones are copied into it on the same stream. The result is read by a copy that is queued
right behind, as a caller reads it, and the buffer is overwritten behind that. Late are, in turn:

- the stream of every rank, of the first rank or of the last one: what does not wait for its own
  stream, or for another rank, reads or leaves other rows;
- on a GPU, all streams that torch hands out, among them that of the communication.

A gather that is waited for later has other work between. Forward and backward must be equal bit for
bit. On the CPU a rank is late because it sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from probes import layouts
from probes.adapters.mcore_cp import ContextParallel
from probes.cp_cases import generator
from probes.cp_ranks import Group, Member, barrier
from probes.devices import poisoned_memory
from probes.lanes import Lanes

ROWS: Final = 160
COLUMNS: Final = 64
RATIO: Final = 4


def name(cp_size: int) -> str:
    """The task's name."""
    return f"cp {cp_size} order"


@dataclass(frozen=True)
class Scene:
    """Who is late, and on which stream work is queued."""

    label: str
    stream: Any
    late: Callable[[], None]


def _scenes(member: Member, group: Group, lanes: Lanes | None) -> Iterator[Scene]:
    seconds = float(member.probe.parameters["late_ms"]) / 1000
    late = {"every rank": True, "first": group.rank == 0, "last": group.rank == group.size - 1}
    if lanes is None:
        for who, mine in late.items():
            yield Scene(f"{who} late", None, _sleep(seconds if mine else 0.0))
        return
    for where, stream in (("default stream", lanes.default), ("side stream", lanes.side)):
        for who, mine in late.items():
            yield Scene(
                f"{where}, {who} late", stream, _occupy(lanes, [stream], seconds if mine else 0.0)
            )
    yield Scene(
        "default stream, all others late", lanes.default, _occupy(lanes, lanes.pool, seconds)
    )


def _sleep(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def _occupy(lanes: Lanes, streams: list[Any], seconds: float) -> Callable[[], None]:
    def occupy() -> None:
        for stream in streams if seconds else ():
            lanes.occupy(stream, seconds)

    return occupy


@dataclass(frozen=True)
class Subject:
    """Something that ranks do together."""

    start: Callable[[Any], Callable[[], Any]]
    """From rows to what gives the result."""
    result: Any
    sent: Any
    """The gradient of the result that this rank sends back."""
    gradient: Any


def one_case(member: Member, upstream: ContextParallel, cp_size: int) -> dict[str, Any]:
    """Every scene with the exchange and each gather."""
    group = member.groups[cp_size]
    lanes = Lanes(member.torch, member.device) if member.device.type == "cuda" else None
    elements, details = 0, []
    names = ["exchange", *upstream.gathers]
    for scene in _scenes(member, group, lanes):
        for what in names:
            drawn = generator(member.probe, member.torch, name(cp_size), scene.label, what,
                              group.number)  # fmt: skip
            rows = _whole(member, drawn, cp_size * ROWS)
            subject = _subject(member, upstream, what, group, rows=rows, drawn=drawn)
            mine = rows[group.rank * ROWS : (group.rank + 1) * ROWS]
            member.step(name(cp_size), f"{what}: {scene.label}")
            found = _play(member, scene, subject, mine, group, lanes=lanes, what=what)
            for label, got, wanted in zip(
                ("result", "gradient"), found, (subject.result, subject.gradient), strict=True
            ):
                elements += wanted.numel()
                if got.shape != wanted.shape or not member.torch.equal(got, wanted):
                    details.append(f"{what}, {scene.label}: {label} differs")
    return {"elements": elements, "mismatches": len(details), "detail": "; ".join(details[:6])}


def _whole(member: Member, drawn: Any, rows: int) -> Any:
    """(rows, 1, columns) small whole numbers, of which every sum is exact."""
    torch = member.torch
    numbers = torch.randint(-4, 5, (rows, 1, COLUMNS), generator=drawn)
    return numbers.to(torch.bfloat16).to(member.device)


def _subject(
    member: Member, upstream: ContextParallel, what: str, group: Group, *, rows: Any, drawn: Any
) -> Subject:
    torch = member.torch
    size, rank = group.size, group.rank
    if what != "exchange":
        gather = upstream.gathers[what]
        parts = [_whole(member, drawn, size * ROWS) for _ in range(size)]
        gradient = sum(parts)[rank * ROWS : (rank + 1) * ROWS]
        return Subject(lambda x: gather(x, group.handle), rows, parts[rank], gradient)
    window = layouts.MODELS[member.probe.parameters["model"]].window
    count = max(window, 8)
    sent = [_whole(member, drawn, count) for _ in range(size)]
    gradient = torch.zeros_like(rows[:ROWS])
    if rank + 1 < size:
        gradient[-count:] = sent[rank + 1]
    before = rows[rank * ROWS - count : rank * ROWS] if rank else torch.zeros_like(sent[0])

    def start(x: Any) -> Callable[[], Any]:
        made = upstream.exchange(x, RATIO, window, group.handle)
        return lambda: made

    return Subject(start, before, sent[rank], gradient)


def _play(
    member: Member, scene: Scene, subject: Subject, rows: Any, group: Group, *,
    lanes: Lanes | None, what: str,
) -> tuple[Any, Any]:  # fmt: skip
    """The result and the gradient, as they were read."""
    from probes.references.one_rank import pull_back

    torch = member.torch
    decoy = rows + 1
    buffer = decoy.clone()
    member.wait()
    barrier(torch, member.device, group.handle)
    with lanes.use(scene.stream) if lanes else nullcontext(), poisoned_memory(torch):
        scene.late()
        buffer.copy_(rows)
        x = buffer.detach().requires_grad_()
        with member.probe.tested("call", f"{what}, {scene.label}"):
            given = subject.start(x)
            other = torch.ones_like(rows) @ torch.ones_like(rows[0]).T
            result = given()
        read = result.detach().clone()
        with member.probe.tested("call", f"{what}, backward, {scene.label}"):
            gradient = pull_back([result], [subject.sent], x).clone()
        # Behind everything that may still have to read it.
        buffer.copy_(decoy)
        del other
    with member.probe.tested("call", f"{what}, {scene.label}, at its end"):
        member.wait()
    return read, gradient
