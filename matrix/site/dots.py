"""Pictures drawn from published data: a probe's answers over versions, and a patch's life."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from markupsafe import Markup, escape

from matrix.site.derived import DotStrip
from matrix.site.published import Matrix, Word
from matrix.visible import visible
from patches.life import Life, Lives
from patches.strips import strip

_BOX: Final = 24
_GAP: Final = 4
_CHAR: Final = 7.3


def dot_strip(answers: DotStrip, words: Mapping[str, Word]) -> Markup:
    """Answers as an SVG: a column for each version, a box with a sign for each stack.

    It is one picture for a screen reader, told in words by its label; the table beside it holds
    the same with links.
    """
    tallest = max((len(column.dots) for column in answers.columns), default=0)
    height = tallest * (_BOX + _GAP) + 22
    x = 4.0
    drawn = []
    told = []
    for column in answers.columns:
        name = visible(column.short)
        width = max(_BOX, round(len(name) * _CHAR, 1))
        middle = x + width / 2
        for place, dot in enumerate(column.dots):
            y = (tallest - 1 - place) * (_BOX + _GAP) + 2
            word = words[dot.status]
            reason = f", {visible(dot.reason)}" if dot.reason else ""
            drawn.append(
                f'<g class="mx-dot mx-s-{dot.status.replace(" ", "-")}">'
                f"<title>{escape(visible(f'{dot.title} {dot.stack}: {word.label}'))}"
                f"{escape(reason)}</title>"
                f'<rect x="{middle - _BOX / 2:g}" y="{y}" width="{_BOX}" height="{_BOX}" rx="3"/>'
                f'<text x="{middle:g}" y="{y + 17}">{escape(word.sign)}</text></g>'
            )
        drawn.append(
            f'<text class="mx-dot-version" x="{middle:g}" y="{height - 6}">{escape(name)}</text>'
        )
        counts = {dot.status: 0 for dot in column.dots}
        for dot in column.dots:
            counts[dot.status] += 1
        told.append(f"{name}: {', '.join(f'{n} {words[s].label}' for s, n in counts.items())}")
        x += width + 14
    label = escape(f"Answers by version. {'; '.join(told)}")
    return Markup(  # noqa: S704 - every text in it was escaped
        f'<svg class="mx-dots" role="img" aria-label="{label}" width="{x:g}" height="{height}" '
        f'viewBox="0 0 {x:g} {height}">{"".join(drawn)}</svg>'
    )


def life_strip(life: Life, matrix: Matrix) -> Markup:
    """A patch on each revision, as `nox -s patches` draws it; the site has colours of its own."""
    lives = Lives(component="", roots=[], bases=matrix.bases, candidates=[])
    drawn = re.sub(r"<style>.*?</style>", "", strip(life, lives), flags=re.DOTALL)
    return Markup(drawn.strip())  # noqa: S704 - escaped where it is drawn
