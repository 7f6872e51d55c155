"""Telling software that refuses a request clearly from software that fails at it.

A release that says beforehand that it does not do a thing lacks that thing; one that starts and
breaks is broken. It counts as a refusal when all of this holds:

- the exception is one that stands for a refusal: `ValueError`, `NotImplementedError`,
  `AssertionError`, or a `RuntimeError` that no other exception led to;
- no CUDA error is named anywhere in it or in what led to it;
- it was raised in a file of the package that was called, not in the compiler or in torch below it;
- its message, or the source line of a bare assertion, speaks of what was asked for.
"""

from __future__ import annotations

import re
import traceback
from types import ModuleType

from probes.reasons import chain, cuda_error
from probes.redaction import one_line

_KINDS = (ValueError, NotImplementedError, AssertionError, RuntimeError)


def refusal(error: BaseException, package: ModuleType, about: str) -> str | None:
    """What the software said when it refused, or None where it failed.

    Args:
        error: what a call raised.
        package: the package that was called; its files are where a refusal is raised.
        about: regular expression, case ignored, that a refusal's words must match.
    """
    links = list(chain(error))
    if not isinstance(error, _KINDS) or (isinstance(error, RuntimeError) and len(links) > 1):
        return None
    if any(cuda_error(f"{type(link).__name__}: {link}") for link in links):
        return None
    frames = traceback.extract_tb(error.__traceback__)
    folders = tuple(f"{str(path).rstrip('/')}/" for path in getattr(package, "__path__", ()))
    if not frames or not folders or not frames[-1].filename.startswith(folders):
        return None
    words = str(error) or frames[-1].line or ""
    return one_line(words, 200) if re.search(about, words, re.IGNORECASE) else None
