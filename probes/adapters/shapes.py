"""Making sure that an upstream function still has the shape that an adapter was written for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from probes.session import OurFault


class UnknownShape(OurFault):
    """An upstream function takes other arguments than any adapter knows: an adapter is due."""


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's parameters, without `self`."""
    names = tuple(inspect.signature(function).parameters)
    return names[1:] if names[:1] == ("self",) else names


def member(module: Any, name: str) -> Any:
    """A module's member.

    Raises:
        UnknownShape: it has none of that name.
    """
    found = getattr(module, name, None)
    if found is None:
        raise UnknownShape(f"{module.__name__} has no {name}")
    return found


def expect_parameters(what: str, function: Callable[..., Any], expected: Sequence[str]) -> None:
    """Check that a function's parameters are exactly the expected ones, in order.

    Raises:
        UnknownShape: they are not.
    """
    found = parameter_names(function)
    if found != tuple(expected):
        raise UnknownShape(f"{what} takes {', '.join(found)}")


def expect_keywords(what: str, function: Callable[..., Any], needed: Sequence[str]) -> None:
    """Check that a function takes all of the given keywords, whatever else it takes.

    Raises:
        UnknownShape: it does not.
    """
    found = parameter_names(function)
    missing = [name for name in needed if name not in found]
    if missing:
        raise UnknownShape(f"{what} does not take {', '.join(missing)}")
