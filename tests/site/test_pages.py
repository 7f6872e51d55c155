"""Pages as a browser gets them: hostile text, links, and the site generator's strict mode."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from matrix.errors import MatrixError
from matrix.site import render
from matrix.site.pages import breakable, check_no_marker, front_matter, heading, prose, visible
from matrix.site.publish import GENERATED_FILES, GENERATED_FOLDERS
from tests.site.serving import build_site
from tests.site.world import MCORE, OTHER_GPU, PROBES, World

HOSTILE = [
    "<script>alert('owned')</script>",
    "<img src=x onerror=alert('owned')>",
    "a | b | c",
    "`code` **bold** # heading",
    "[owned](javascript:alert(1)) ![owned](https://evil.example/x.png)",
    "<javascript:alert(1)> <https://evil.example/>",
    "{{ 7 * 191 }} {% include 'owned' %} {# owned #}",
    "</div></details>\n\n# Owned heading\n\n[owned](https://evil.example/)",
    "<!-- gen:owned --> <!-- owned",
    "--8<-- 'owned' {: onclick=owned } {#owned-id} *[HTML]: owned",
    "\x02wzxhzdk:0\x03 \x1b[31mred \u202edesrever &lt;b&gt; &#60;b&#62;",
    '" onmouseover="alert(1)" x="',
]
HOSTILE_TEXT = " ~ ".join(HOSTILE)


class Page(HTMLParser):
    """What a browser would make of a page: elements, links, anchors, text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def hostile_world(root: Path) -> World:
    world = World(root)
    world.probe("compile", question=HOSTILE_TEXT[:200], method=HOSTILE_TEXT, **PROBES["compile"])
    world.campaign(reported="4.5.2")
    file = world.rooms.campaigns / "default.toml"
    quoted = HOSTILE_TEXT.replace("'", "’")
    quoted = "".join(char for char in quoted if char.isprintable() or char == "\n")
    file.write_text(
        file.read_text().replace("reason = '''for the test'''", f"reason = '''{quoted}'''")
    )
    text = HOSTILE_TEXT[:900]
    hostile_catalogue(world)
    stack = {
        "loaded": {
            "torch": {
                "version": text,
                "file": text,
                "sha256": text,
                "origin": text,
                "notes": {text: text},
            }
        },
        "contradicted": [{"claim": text, "asked": text}],
        "absent": {"megatron-core": text},
        "source": {"megatron-core": {"revision": text, "tree": text}},
    }
    machine = OTHER_GPU | dict.fromkeys(("gpu", "driver", "cuda", "python", "cpu", "kernel"), text)
    part = {
        "name": text,
        "status": "fail",
        "reason": "numerics",
        "detail": text,
        "measure": {text: text},
    }
    control = {"name": text, "failed": False, "detail": text}
    world.run(
        "compile",
        "fail",
        "numerics",
        detail=text,
        machine=machine,
        stack=stack,
        parts=[part],
        control=[control],
        measure={text: text},
    )
    world.run("layout-indices", "error", "probe:ValueError", detail=text, stack=stack)
    return world


def hostile_catalogue(world: World) -> None:
    """A candidate, its life, a claim and a report, all with hostile words."""
    words = json.dumps("".join(c for c in HOSTILE_TEXT[:500] if c.isprintable()))
    world.rooms.candidates.mkdir(parents=True)
    (world.rooms.candidates / "mcore-1.toml").write_text(
        f"""component = "megatron-core"
repository = "https://github.com/NVIDIA/Megatron-LM"
number = 1
title = {words}
reason = {words}
claims = {words}
state = "open"
target = "dev"
seen = 2026-11-30
notes = [{words}]
call_sites = [{words}]
"""
    )
    text = HOSTILE_TEXT[:500]
    cell = {
        "base": "a" * 40,
        "result": "conflict",
        "conflicts": [{"path": text, "kind": text, "ours": [text], "theirs": [text]}],
        "conflicts_with": [text],
    }
    life = {"id": "mcore-1", "shown": text, "title": text, "state": text, "claims": text}
    life |= {"head": "unknown", "cells": [cell]}
    base = {"sha": "a" * 40, "name": text, "kind": "branch", "date": "2026-11-01"}
    lives = {"component": "megatron-core", "roots": [], "bases": [base], "candidates": [life]}
    (world.rooms.candidates.parent / "lives.json").write_text(json.dumps(lives))
    (world.rooms.catalogue / "claims.toml").write_text(
        f"""[[claim]]
id = "hostile"
statement = {words}
contradiction = {words}
links = ["https://example.org/"]
date = 2026-01-01
level = "info"
basis = "thread"
[claim.when]
versions = {{ torch = "any" }}
[[claim.expect]]
probe = "compile"
status = "pass"
"""
    )
    (world.rooms.catalogue / "reports.toml").write_text(
        f"""[[report]]
id = "hostile"
title = {words}
link = "https://example.org/"
date = 2026-01-01
reason = {words}
stack = "reported"
candidates = ["mcore-1"]
components = {{ torch = {words} }}
[[report.symptom]]
reason = {words}
where = {words}
probes = ["compile"]
"""
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real configuration and hand-written pages, with a hostile world's evidence."""
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed; it is in the dependency group docs")
    world = hostile_world(tmp_path_factory.mktemp("site") / "project")
    render(world.rooms)
    return build_site(world)


def generated_pages(site: Path) -> list[Path]:
    names = [name.replace(".md", ".html") for name in GENERATED_FILES]
    folders = [sorted(site.glob(f"{folder}/*.html")) for folder in GENERATED_FOLDERS]
    return [*(site / name for name in names), *(page for folder in folders for page in folder)]


def hostile_stack(site: Path) -> Path:
    (page,) = site.glob("stacks/*.html")
    return page


def test_hostile_text_adds_no_element_and_no_attribute(site: Path) -> None:
    pages = [Page(path.read_text()) for path in generated_pages(site)]

    assert len(pages) > 20
    for page in pages:
        assert page.tags.count("h1") == 1
        assert "img" not in page.tags
        assert not [name for _, name, _ in page.attributes if name.startswith("on")]
        assert not [value for value in page.values("id") if "owned" in value.lower()]
        links = page.values("href") + page.values("src")
        assert not [link for link in links if "evil.example" in link or "script:" in link]


def test_hostile_text_is_shown_as_it_is(site: Path) -> None:
    page = Page(hostile_stack(site).read_text())

    for text in HOSTILE[:-2]:
        assert visible(text) in page.text, text
    assert "\\u0002wzxhzdk:0\\u0003 \\u001b[31mred \\u202edesrever &lt;b&gt;" in page.text
    assert "1337" not in page.text


def test_only_hashes_are_shortened(site: Path) -> None:
    html = hostile_stack(site).read_text()

    assert f'title="{MCORE}">{MCORE[:12]}</code>' in html
    assert "<code>&lt;script&gt;alert(&#39;owned&#39;)&lt;/script&gt; ~" in html


def test_scripts_are_those_of_the_theme(site: Path) -> None:
    def scripts(path: Path) -> int:
        page = Page(path.read_text())
        data = page.attributes.count(("script", "type", "application/json"))
        return page.tags.count("script") - data

    assert {scripts(page) for page in generated_pages(site)} == {scripts(site / "reading.html")}


def test_search_index_holds_no_markup_of_strangers(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()

    assert "<script" not in index
    assert "<img" not in index


def test_every_internal_link_leads_somewhere(site: Path) -> None:
    broken = []
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue  # its links start at the site's address; there is a test of its own
        page = Page(path.read_text())
        for link in page.values("href") + page.values("src"):
            target, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            target = target.partition("?")[0]
            file = (path.parent / unquote(target)).resolve() if target else path
            if not file.is_file():
                broken.append((path.name, link))
            elif anchor and file.suffix == ".html":
                anchors = Page(file.read_text()).values("id")
                broken += [(path.name, link)] if unquote(anchor) not in anchors else []

    assert broken == []


def test_a_missing_address_finds_its_way_below_a_folder_of_a_host(tmp_path: Path) -> None:
    if find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed; it is in the dependency group docs")
    world = World(tmp_path / "project")
    render(world.rooms)
    site = build_site(world, SITE_URL="https://example.org/some/folder/")
    page = Page((site / "404.html").read_text())

    links = [link for link in page.values("href") + page.values("src") if "//" not in link]
    assert len(links) > 10
    for link in links:
        assert link.startswith("/some/folder/"), link
        assert (site / link.removeprefix("/some/folder/")).is_file(), link


def test_nothing_is_fetched_from_other_hosts(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path.read_text())
        fetched = page.values("src") + [
            value
            for tag, name, value in page.attributes
            if tag == "link" and name == "href"
        ]  # fmt: skip
        assert not [link for link in fetched if re.match(r"(https?:)?//", link)], path


def test_no_marker_is_left_in_the_built_site(site: Path) -> None:
    for path in site.rglob("*.html"):
        check_no_marker(path.name, path.read_text())


def test_each_status_is_told_by_sign_and_word(site: Path) -> None:
    home = (site / "index.html").read_text()
    badges = re.findall(r'<span class="mx-badge[^>]*>(.*?)</span> ?([^<]*)</span>', home)

    assert badges
    for sign, word in badges:
        assert re.sub(r"<[^>]*>", "", sign).strip()
        assert word.strip()


def test_marker_is_named() -> None:
    with pytest.raises(MatrixError, match=r"page.md still holds the marker '<!-- gen:table -->'"):
        check_no_marker("page.md", "text <!-- gen:table --> text")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc", "a b c"),
        ("\x00", "\\u0000"),
        ("a\u202eb", "a\\u202eb"),
        ("✔\ufe0e é", "✔\ufe0e é"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_filters_escape() -> None:
    assert heading("a_b <x>\n# c") == "a&#95;b &#60;x&#62; &#35; c"
    assert breakable("<a>:b/c") == "&lt;a&gt;:<wbr>b/<wbr>c"
    assert prose("`<b>` and `") == "<code>&lt;b&gt;</code> and `"
    assert front_matter('a: "b"\n---') == '"a: \\"b\\" ---"'


def test_lists_of_a_docstring_are_lists_of_the_page(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    said = "First:\n\n* `one` <b>thing</b>;\n* another.\n\nLast."
    world.probe("compile", method=said, **PROBES["compile"])
    world.passes("compile")

    render(world.rooms)
    page = (world.rooms.docs / "probes" / "compile.md").read_text()

    assert "<p>First:</p>" in page
    assert "<li><code>one</code> &lt;b&gt;thing&lt;/b&gt;;</li>" in page
    assert "<li>another.</li>\n</ul>\n<p>Last.</p>" in page
