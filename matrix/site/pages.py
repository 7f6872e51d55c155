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
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.compiler import CodeGenerator, Frame
from jinja2.nodes import Expr
from markupsafe import Markup, escape

from matrix.errors import MatrixError
from matrix.judging.strength import percent
from matrix.parallel import in_processes
from matrix.site.by_version import version_of
from matrix.site.derived import ClaimAnswer, ClaimView
from matrix.site.dots import dot_strip, life_strip
from matrix.site.published import Matrix, StackView
from matrix.site.table import (
    ROWS_IN_PAGE,
    Table,
    TableComponent,
    TableRow,
    build_table,
    equal_columns,
    table_text,
)
from matrix.versions import short_version
from matrix.visible import visible

TEMPLATES: Final = Path(__file__).parent / "templates"

#: From so many on, starting processes is the smaller part of making their pages.
MANY_STACKS: Final = 100

#: Where a page or template waits for generated text. None may be left in what readers get.
_MARKER = re.compile(r"<!--\s*gen:[^>]*-->")


class _Pages:
    """Templates with what all of them may show."""

    def __init__(self, matrix: Matrix, table: Table) -> None:
        self._environment = _environment()
        self._shared = {
            "matrix": matrix,
            "table": table,
            "verdict_word": {word.id: word for word in matrix.verdicts},
            "status_word": {word.id: word for word in matrix.statuses},
            "letter": {word.letter: word for word in table.statuses},
            "component": {part.name: part for part in matrix.components},
            "probe": {probe.id: probe for probe in matrix.probes},
            "stack_of": {stack.id: stack for stack in matrix.stacks},
            "patch_of": {patch.id: patch for patch in matrix.patches},
            "ran": {stack.id for stack in matrix.stacks if stack.runs},
            "claims_of": _claims_of(matrix),
        }
        # Words that stand on a page hundreds of times are written once.
        macros = self.macros()
        self._shared["verdict_badge"] = {w.id: macros.verdict(w) for w in matrix.verdicts}
        self._shared["status_badge"] = {w.id: macros.status(w) for w in matrix.statuses}

    def macros(self, root: str = "") -> Any:
        """The macros of all pages, to be called from here."""
        source = self._environment.get_template("macros.html.j2")
        return source.make_module({**self._shared, "root": root})

    def page(self, template: str, **more: object) -> str:
        source = self._environment.get_template(f"{template}.md.j2")
        return source.render({"root": "", **self._shared, **more})


def table_pages(matrix: Matrix, table: Table) -> dict[str, str]:
    """The pages that hold the table: the home page, and the one about a reader's environment."""
    pages = _Pages(matrix, table)
    rows = table.stacks[:ROWS_IN_PAGE]
    # Where the page holds all rows, it holds their data too: it then works from a disk as well.
    inline = _script_data(table) if len(rows) == len(table.stacks) else None
    return {
        "index.md": pages.page(
            "index",
            rows=rows,
            equal=equal_columns(table, rows),
            patched=any(row.patches for row in rows),
            inline=inline,
        ),
        "environment.md": pages.page("environment", inline=inline),
    }


def render_pages(matrix: Matrix) -> dict[str, str]:
    """Markdown of every generated page, by its path below the docs folder."""
    table = build_table(matrix)
    made = _Pages(matrix, table)
    page = made.page
    pages = table_pages(matrix, table)
    for name in ("claims", "coverage", "changes"):
        pages[f"{name}.md"] = page(name)
    pages["api/index.md"] = page("api", root="../")
    for kind, title in (
        ("probes", "Probes"),
        ("components", "Components"),
        ("patches", "Patches that may mend something"),
        ("machines", "Machines"),
    ):
        pages[f"{kind}/index.md"] = page("list", kind=kind, title=title, root="../")

    each = in_processes if len(matrix.stacks) >= MANY_STACKS else map
    # A comparison stands on the pages of both its stacks, in the same words.
    told = each(made.macros(root="../").comparison, matrix.comparisons)
    beside = _beside(matrix, told)

    def of_stack(stack: StackView) -> str:
        return page("stack", stack=stack, beside=beside[stack.id], root="../")

    for stack, text in zip(matrix.stacks, each(of_stack, matrix.stacks), strict=True):
        pages[f"stacks/{stack.id}.md"] = text
    for probe in matrix.probes:
        if not probe.retired:
            pages[f"probes/{probe.id}.md"] = page("probe", asked=probe, root="../")
    for part in matrix.components:
        pages[f"components/{part.name}.md"] = page("component", part=part, root="../")
    for patch in matrix.patches:
        pages[f"patches/{patch.id}.md"] = page("patch", patch=patch, root="../")
    for machine in matrix.machines:
        pages[f"machines/{machine.name}.md"] = page("machine", machine=machine, root="../")
    for name, text in pages.items():
        check_no_marker(name, text)
    return pages


def _claims_of(matrix: Matrix) -> dict[str, list[tuple[ClaimView, ClaimAnswer]]]:
    """What upstreams say of each stack, in the order of the claims."""
    found: dict[str, list[tuple[ClaimView, ClaimAnswer]]] = {s.id: [] for s in matrix.stacks}
    for claim in matrix.claims:
        for answer in claim.stacks:
            found.setdefault(answer.stack, []).append((claim, answer))
    return found


def _beside(matrix: Matrix, told: Iterable[Markup]) -> dict[str, list[Markup]]:
    """The comparisons of each stack: looking through all of them on each page takes too long."""
    found: dict[str, list[Markup]] = {stack.id: [] for stack in matrix.stacks}
    for one, text in zip(matrix.comparisons, told, strict=True):
        for stack in (one.before, one.after):
            found.setdefault(stack, []).append(text)
    return found


def _script_data(table: Table) -> Markup:
    """Data for a script element: with every sign escaped that could end or change it."""
    text = table_text(table).strip()
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)  # noqa: S704 - JSON in ASCII, without a sign of HTML


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


class _Generator(CodeGenerator):
    """Makes templates that put out what `_finalize` gives, which is escaped, without escaping it.

    Escaping it once more changes nothing, and takes a quarter of the time of a page.
    """

    def _output_child_pre(
        self, node: Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo
    ) -> None:
        self.write(finalize.src or "escape(")

    def _output_child_post(
        self, node: Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo
    ) -> None:
        self.write(")")


class _Environment(jinja2.Environment):
    code_generator_class = _Generator


def _environment() -> jinja2.Environment:
    environment = _Environment(
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
        listed=listed,
        day=_day,
        minute=_minute,
        number=_number,
        short=short_version,
        version=_version,
        has=_has,
        dots=dot_strip,
        life=life_strip,
        percent=percent,
    )
    environment.tests["contains"] = lambda values, value: value in values
    environment.tests["digest"] = re.compile(r"[0-9a-f]{40,64}").fullmatch
    return environment


def _finalize(value: object) -> Markup:
    """Every value that a template puts out, as HTML that shows it and does nothing."""
    # Nearly all are one of these two.
    kind = type(value)
    if kind is Markup:
        return value  # type: ignore[return-value]
    if kind is str:
        return _shown(value)
    if isinstance(value, Markup):
        return value
    return Markup() if value is None else _shown(str(value))


@lru_cache(1 << 16)  # pages of many stacks say the same words and versions
def _shown(text: str) -> Markup:
    return escape(visible(text))


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


def listed(paragraphs: Iterable[str]) -> list[tuple[bool, list[str]]]:
    """Paragraphs of a docstring in runs: whether they are the items of one list, and their texts.

    An item begins with `- ` or `* `, which is left out.
    """
    return [
        (items, [text[2:] if items else text for text in run])
        for items, run in groupby(paragraphs, lambda text: text.startswith(("- ", "* ")))
    ]


def front_matter(text: object) -> Markup:
    """Text as a value in a page's front matter: a JSON string is a YAML string."""
    return Markup(json.dumps(visible(str(text))))  # noqa: S704 - quoted for YAML, never HTML


def _day(moment: dt.datetime) -> str:
    return moment.astimezone(dt.UTC).date().isoformat()


def _minute(moment: dt.datetime) -> str:
    # A third of what `strftime` takes, and each run has one.
    return f"{moment.astimezone(dt.UTC).isoformat(' ', 'minutes')[:16]} UTC"


def _version(row: TableRow, table: Table, part: TableComponent) -> str:
    """A row's version of a component."""
    return part.versions[row.versions[table.components.index(part)]]


def _has(stack: str, component: str, stacks: Mapping[str, StackView]) -> str:
    """The version of a component that a stack asks for."""
    return version_of(stacks[stack], component)


def _number(value: object) -> str:
    """A measure: six digits are more than any probe's tolerance needs."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_number(item) for item in value)
    return "none" if value is None else str(value)
