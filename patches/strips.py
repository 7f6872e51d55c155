"""One candidate's life as a strip: a picture of a few hundred bytes for each revision."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape, quoteattr

from matrix.visible import visible
from patches.life import Life, Lives
from patches.results import Result

#: Result -> (letter in the box, class). The letter says it without any colour.
_BOX: Final[dict[Result, tuple[str, str]]] = {
    "contained": ("=", "in"),
    "clean": ("✓", "ok"),
    "three-way": ("3", "mid"),
    "conflict": ("×", "bad"),
    "unsafe": ("!", "bad"),
    "unavailable": ("?", "none"),
}
_WIDTH, _HEIGHT, _GAP = 22, 22, 3
#: Contrast of each letter with its box is at least 4.5 to 1, in both schemes.
_STYLE: Final = """
.strip text { font: 600 13px ui-sans-serif, system-ui, sans-serif; text-anchor: middle; }
.strip-in { fill: #d5e3f0 } .strip-in + text { fill: #16324f }
.strip-ok { fill: #1a7f37 } .strip-ok + text { fill: #ffffff }
.strip-mid { fill: #f2d98d } .strip-mid + text { fill: #4a3800 }
.strip-bad { fill: #ffffff; stroke: #b3261e; stroke-width: 2 } .strip-bad + text { fill: #b3261e }
.strip-none { fill: none; stroke: #767676; stroke-dasharray: 3 2 }
.strip-none + text { fill: #5f5f5f }
@media (prefers-color-scheme: dark) {
  .strip-in { fill: #23405e } .strip-in + text { fill: #dcebfa }
  .strip-ok { fill: #2ea043 } .strip-ok + text { fill: #000000 }
  .strip-mid { fill: #6b5200 } .strip-mid + text { fill: #ffe9ab }
  .strip-bad { fill: #1c1014; stroke: #ff8a80 } .strip-bad + text { fill: #ff8a80 }
  .strip-none { stroke: #9a9a9a } .strip-none + text { fill: #b8b8b8 }
}
"""


def strip(life: Life, lives: Lives) -> str:
    """A candidate's results as an SVG, oldest revision first.

    Each box holds a letter and, for a mouse or a screen reader, the revision and the result in
    words. Colours follow the reader's scheme; none carries meaning alone.
    """
    cells = life.cells
    boxes = []
    for place, base in enumerate(lives.bases):
        result: Result = cells[place].result if cells else "unavailable"
        letter, name = _BOX[result]
        words = f"{base.name} ({base.date}): {result}"
        if cells and cells[place].conflicts_with:
            words += f"; conflicts with {', '.join(cells[place].conflicts_with)}"
        x = place * (_WIDTH + _GAP) + 1
        boxes.append(
            f"<g><title>{escape(visible(words))}</title>"
            f'<rect class="strip-{name}" x="{x}" y="1" width="{_WIDTH}" height="{_HEIGHT}" rx="3"/>'
            f'<text x="{x + _WIDTH / 2:g}" y="{_HEIGHT / 2 + 5.5:g}">{letter}</text></g>'
        )
    width = len(lives.bases) * (_WIDTH + _GAP) - _GAP + 2
    height = _HEIGHT + 2
    label = quoteattr(visible(f"{life.shown} on {len(lives.bases)} revisions, oldest first"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" class="strip" role="img" aria-label={label}>'
        f"<style>{_STYLE}</style>{''.join(boxes)}</svg>\n"
    )
