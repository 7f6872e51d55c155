"""Small things about the device that every probe with tensors needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from probes.reasons import Verdict
from probes.session import Concluded, Session


def use_device(probe: Session, torch: Any) -> Any:
    """The device that the parameters name, `cuda` unless they say otherwise.

    Float32 products are made exact in float32 (no TF32), since references need that.

    Raises:
        Concluded: there is no GPU that torch can use.
    """
    name = str(probe.parameters.get("device", "cuda"))
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Concluded(Verdict("miss", "machine:no-gpu", "torch sees no GPU"))
    torch.set_float32_matmul_precision("highest")
    return torch.device(name)


def wait(torch: Any, device: Any) -> None:
    """Wait for all work on the device, so that its errors show here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def own_stream(torch: Any, device: Any) -> Iterator[None]:
    """Within this, torch's current stream is a new one, on which all work so far is visible."""
    wait(torch, device)
    side = torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()
    with side:
        yield


@contextmanager
def poisoned_memory(torch: Any) -> Iterator[None]:
    """Within this, torch fills all memory it hands out uninitialised: NaN, or the largest integer.

    This is torch's own switch, which it has for the sake of determinism. It reaches the buffers
    that the software under test allocates for itself, on the stream it launches on; a slot that a
    kernel leaves unwritten is then never right by luck. It only warns of operations without a
    deterministic form.
    """
    # Not `use_deterministic_algorithms`, which imports torch's compiler, and with it Triton.
    before = torch.get_deterministic_debug_mode()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill


def poison_works(torch: Any, device: Any) -> bool:
    """Whether `poisoned_memory` reaches integers and floating-point numbers on this device."""
    with poisoned_memory(torch):
        whole = torch.empty(64, dtype=torch.int32, device=device)
        real = torch.empty(64, dtype=torch.bfloat16, device=device)
    most = torch.iinfo(torch.int32).max
    return bool((whole == most).all().item()) and bool(real.isnan().all().item())
