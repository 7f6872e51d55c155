"""Comparing versions as PEP 440 does, as far as this project needs it. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(
    r"""v?(?:(?P<epoch>\d+)!)?
        (?P<release>\d+(?:\.\d+)*)
        (?:[-_.]?(?P<pre>a|alpha|b|beta|c|rc|pre|preview)[-_.]?(?P<pre_n>\d*))?
        (?:[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_n>\d*)|-(?P<post_short>\d+))?
        (?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_n>\d*))?
        (?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?""",
    re.VERBOSE | re.IGNORECASE,
)
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


@dataclass(frozen=True)
class Version:
    """A version in normal form: `public` without the local part, and `local`, or None."""

    public: tuple[object, ...]
    local: str | None


def parse(text: str) -> Version:
    """A version's normal form.

    Raises:
        ValueError: the text is no version.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a version: {text!r}")
    release = tuple(int(number) for number in match["release"].split("."))
    while release and release[-1] == 0:  # 2.11 and 2.11.0 are the same
        release = release[:-1]
    pre = match["pre"]
    public = (
        int(match["epoch"] or 0),
        release,
        (_PRE.get(pre.lower(), pre.lower()), int(match["pre_n"] or 0)) if pre else None,
        int(match["post_n"] or match["post_short"] or 0)
        if match["post"] or match["post_short"]
        else None,
        int(match["dev_n"] or 0) if match["dev"] else None,
    )
    local = match["local"]
    return Version(public, re.sub(r"[-_]", ".", local.lower()) if local else None)


def matches(requested: str, loaded: str) -> bool:
    """Whether `loaded` is what `requested` asks for.

    A request without a local part (`2.11.0`) is met by any local build (`2.11.0+cu130`); one with
    a local part only by that build. Texts that are no versions must be equal.
    """
    try:
        wanted, found = parse(requested), parse(loaded)
    except ValueError:
        return requested.strip() == loaded.strip()
    if wanted.public != found.public:
        return False
    return wanted.local is None or wanted.local == found.local


def other_than(version: str) -> str:
    """A version that differs from the given one in its last release number: a wrong request."""
    match = re.match(r"v?(?:\d+!)?\d+(?:\.\d+)*", version)
    if match is None:
        return f"{version}x"
    head, _, last = match[0].rpartition(".")
    bumped = str(int(last.lstrip("v") or 0) + 1)
    return f"{head}.{bumped}{version[match.end() :]}" if head else f"{bumped}.1"


def cudnn_version(number: int) -> tuple[int, int, int]:
    """Three numbers from the one that cuDNN states: 91900 is 9.19.0, and 8902 was 8.9.2."""
    if number >= 10_000:
        return number // 10_000, number // 100 % 100, number % 100
    return number // 1_000, number // 100 % 10, number % 100


def first_three(version: str) -> tuple[int, ...]:
    """The first three numbers of a dotted version, zeros where it has fewer.

    Raises:
        ValueError: it does not start with a number.
    """
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]
    if not numbers:
        raise ValueError(f"not a dotted version: {version!r}")
    return (*numbers, 0, 0)[:3]
