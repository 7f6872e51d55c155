"""Writing the answer: one JSON object a line, each complete before the next begins."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any


class Answer:
    """The private channel to the host.

    Args:
        descriptor: file descriptor to write to.
        redact: applied to every text of a line, keys excepted.
    """

    def __init__(self, descriptor: int, redact: Callable[[str], str] = str) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self._lock = threading.Lock()  # a probe may use threads
        self.redact = redact

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line at once, past every buffer: no later crash can take it away."""
        if os.getpid() != self._process:
            return  # a fork of this process has copies of everything, and nothing to answer
        text = json.dumps(plain(line, self.redact), allow_nan=False, ensure_ascii=True)
        data = (text + "\n").encode("ascii")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


def plain(value: Any, redact: Callable[[str], str] = str) -> Any:
    """`value` as JSON can hold it: tuples become lists, numbers that JSON lacks become text.

    A scalar of torch or numpy is turned into its Python number. Anything else becomes text.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, redact) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, redact) for item in value]
    item = getattr(value, "item", None)
    if callable(item):
        return plain(item(), redact)
    return redact(str(value))
