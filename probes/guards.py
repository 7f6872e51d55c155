"""Seeing writes outside of a buffer without a sanitizer: guard zones in the same allocation.

A kernel that writes next to its buffer usually hits other memory of the process, and nothing
happens that anyone would see. Within `guarded_allocations`, what torch's factory functions hand out
lies in the middle of a larger allocation whose margins hold a pattern, whoever asks: so the buffers
that software under test makes for itself are guarded as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

PATTERN: Final = 0xA5
"""Byte of the margins. As a float32 it is -2.9e-16: a sum with anything that matters changes it."""
ALIGNMENT: Final = 512
"""Bytes; what the caching allocator gives, and what kernels rely on."""
_FACTORIES: Final = (
    "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like",
)  # fmt: skip


@dataclass(frozen=True)
class Guarded:
    """One guarded buffer."""

    what: str
    """Function, dtype and shape that it was asked for with."""
    whole: Any
    """(bytes,) uint8, margins included."""
    start: int
    """First byte of the buffer."""
    stop: int
    """First byte after it."""

    def damage(self) -> tuple[int, int]:
        """Bytes of the margin before the buffer, and of the one after it, that changed."""
        before = (self.whole[: self.start] != PATTERN).sum()
        after = (self.whole[self.stop :] != PATTERN).sum()
        return int(before.item()), int(after.item())


@dataclass
class Guards:
    """Every buffer that was handed out."""

    buffers: list[Guarded] = field(default_factory=list)

    def damages(self) -> list[str]:
        """What was written outside of a buffer, in words."""
        found = []
        for buffer in self.buffers:
            before, after = buffer.damage()
            if before or after:
                found.append(f"{before} bytes before and {after} after {buffer.what}")
        return found


@contextmanager
def guarded_allocations(torch: Any, device: Any, margin_bytes: int) -> Iterator[Guards]:
    """Within this, torch's factory functions make guarded buffers on the device.

    Args:
        torch: the module.
        device: whose buffers to guard; others are left alone.
        margin_bytes: on each side of a buffer; rounded up to the alignment.
    """
    margin = -(-margin_bytes // ALIGNMENT) * ALIGNMENT
    guards = Guards()
    factories = {getattr(torch, name): name for name in _FACTORIES}

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = function(*args, **(kwargs or {}))
            name = factories.get(function)
            if name is None or made.device.type != device.type or not made.is_contiguous():
                return made
            if not made.numel():
                return made
            # torch leaves the mode out while it handles a call, so this asks for no guards.
            return _guard(torch, guards, made, name=name, margin=margin)

    with Mode():
        yield guards


def _guard(torch: Any, guards: Guards, made: Any, *, name: str, margin: int) -> Any:
    size = made.numel() * made.element_size()
    whole = torch.empty(margin + size + margin, dtype=torch.uint8, device=made.device)
    whole.fill_(PATTERN)
    inner = whole[margin : margin + size].view(made.dtype).view(made.shape)
    inner.copy_(made)
    what = f"{name} {str(made.dtype).removeprefix('torch.')} {tuple(made.shape)}"
    guards.buffers.append(Guarded(what, whole, margin, margin + size))
    return inner


def between_rows(torch: Any, rows: Any, guard_rows: int) -> Any:
    """A copy of a table with rows of NaN before and after it in the same allocation.

    Args:
        torch: the module.
        rows: (rows, dim), floating point.
        guard_rows: on each side.

    Returns:
        The whole table, (guard_rows + rows + guard_rows, dim). A slice of it is the guarded copy.
    """
    count, dim = rows.shape
    whole = torch.full((guard_rows + count + guard_rows, dim), torch.nan, dtype=rows.dtype,
                       device=rows.device)  # fmt: skip
    whole[guard_rows : guard_rows + count] = rows
    return whole
