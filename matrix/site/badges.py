"""A stack's verdict as the JSON that badge services such as shields.io read from an endpoint."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from matrix.judging.verdicts import Verdict
from matrix.models import Model
from matrix.site.published import StackView
from matrix.visible import visible

#: Below the site's root, one file for each stack.
BADGES: Final = "api/v1/badges"

_COLOURS: Final[dict[Verdict, str]] = {
    "supported": "brightgreen",
    "caveat": "yellow",
    "broken": "red",
    "cannot install": "red",
    "unknown": "lightgrey",
}


class Badge(Model):
    """The endpoint form, version 1, as https://shields.io/badges/endpoint-badge gives it."""

    schema_version: Literal[1] = Field(default=1, alias="schemaVersion")
    label: str
    message: str
    color: str


def badge_of(stack: StackView) -> Badge:
    """The badge of a stack: its verdict, the first failing probe, and the day of its newest run."""
    message: str = stack.verdict
    if any(mark.kind == "aged" for mark in stack.marks):
        message += " (stale)"
    if stack.probe:
        message += f": {stack.probe}"
    if stack.newest:
        message += f", {stack.newest:%Y-%m-%d}"
    return Badge(
        label=f"CSA/DSA {stack.id}", message=visible(message), color=_COLOURS[stack.verdict]
    )
