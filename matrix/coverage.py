"""Pairs of versions: which have been seen together, and which never can be."""

from __future__ import annotations

#: (component, version); an optional patch is a component of its own, see `matrix/space.py`.
Choice = tuple[str, str]
#: Two choices of different components, in the campaign's order of axes.
Pair = tuple[Choice, Choice]
