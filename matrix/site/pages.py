"""Pages, rendered from the published data alone.

Text from outside (errors, details, names) is untrusted. It is only ever put into raw HTML, escaped;
never into Markdown, where it could become a link, an image, a heading or an attribute. The one
exception are headings, which the theme's table of contents needs in Markdown: there every sign
that is neither letter, digit nor space is written as a character reference.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Final

import jinja2
from markupsafe import Markup, escape

from matrix.errors import MatrixError
from matrix.site.published import Matrix, StackView
from matrix.visible import visible

TEMPLATES: Final = Path(__file__).parent / "templates"

#: Where a page or template waits for generated text. None may be left in what readers get.
_MARKER = re.compile(r"<!--\s*gen:[^>]*-->")


def render_pages(matrix: Matrix) -> dict[str, str]:
    """Markdown of every generated page, by its path below the docs folder."""
    environment = _environment()
    words = {
        "verdict_word": {word.id: word for word in matrix.verdicts},
        "status_word": {word.id: word for word in matrix.statuses},
        "component": {part.name: part for part in matrix.components},
        "probe": {probe.id: probe for probe in matrix.probes},
    }
    pages = {
        "index.md": environment.get_template("index.md.j2").render(matrix=matrix, root="", **words),
        "api/index.md": environment.get_template("api.md.j2").render(
            matrix=matrix, root="../", **words
        ),
    }
    template = environment.get_template("stack.md.j2")
    for stack in matrix.stacks:
        pages[_source(stack)] = template.render(matrix=matrix, stack=stack, root="../", **words)
    for name, text in pages.items():
        check_no_marker(name, text)
    return pages


def check_no_marker(name: str, text: str) -> None:
    """Refuse a page that still waits for generated text.

    Raises:
        MatrixError: it does; a site generator would publish the gap without a word.
    """
    found = _MARKER.search(text)
    if found is not None:
        raise MatrixError(
            f"{name} still holds the marker {found.group()!r}. Nothing fills it: remove it, or "
            "teach matrix/site/pages.py to."
        )


def _source(stack: StackView) -> str:
    return stack.page.removesuffix(".html") + ".md"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # `{#name}` is how Markdown gives a heading its anchor.
        comment_start_string="{##",
        comment_end_string="##}",
    )
    environment.filters.update(
        heading=heading,
        front_matter=front_matter,
        breakable=breakable,
        prose=prose,
        day=_day,
        minute=_minute,
        number=_number,
    )
    environment.tests["digest"] = re.compile(r"[0-9a-f]{40,64}").fullmatch
    return environment


def _finalize(value: object) -> object:
    """Applied to every value that a template puts out, before it is escaped."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else visible(str(value))


def heading(text: object) -> Markup:
    """Text for a Markdown heading."""
    return Markup(  # noqa: S704 - every sign becomes a character reference
        "".join(
            char if char == " " or char.isalnum() else f"&#{ord(char)};"
            for char in visible(str(text))
        )
    )


def breakable(text: object) -> Markup:
    """Text that a narrow column may break after a colon or a slash."""
    return Markup(  # noqa: S704 - escaped here
        re.sub(r"([:/])", r"\1<wbr>", str(escape(visible(str(text)))))
    )


def prose(text: object) -> Markup:
    """Text of a docstring, in which backquotes mark code."""
    return Markup(  # noqa: S704 - escaped here
        re.sub(r"`+([^`]+)`+", r"<code>\1</code>", str(escape(visible(str(text)))))
    )


def front_matter(text: object) -> Markup:
    """Text as a value in a page's front matter: a JSON string is a YAML string."""
    return Markup(json.dumps(visible(str(text))))  # noqa: S704 - quoted for YAML, never HTML


def _day(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d")


def _minute(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _number(value: object) -> str:
    """A measure: six digits are more than any probe's tolerance needs."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_number(item) for item in value)
    return "none" if value is None else str(value)
