"""The lives of candidates: over revisions, beside each other, remembered, in every form."""

from __future__ import annotations

import datetime as dt
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.console import Console

from patches.applying import Bench, Pin
from patches.bases import Series
from patches.candidates import Candidate
from patches.life import Lives
from patches.remotes import Remote
from patches.strips import strip
from patches.survey import Survey
from patches.tables import show_lives
from tests.patches.repositories import CORE, Upstream, patch_pin

ADDRESS = "https://github.com/example/core"


def series(**more: object) -> Series:
    return Series.model_validate(
        {
            "name": "core", "reason": "tests", "link": ADDRESS, "branch": "dev",
            "from": "2026-01-02", "every_days": 2, "releases": ["v*"], **more,
        }
    )  # fmt: skip


def candidate(number: int, head: str, **more: object) -> tuple[Candidate, Pin]:
    facts = Candidate.model_validate(
        {
            "id": f"core-{number}", "component": "core", "repository": ADDRESS, "number": number,
            "title": "a title", "reason": "tests", "claims": "much", "target": "dev", "head": head,
            "seen": "2026-01-01", "state": "open", **more,
        }
    )  # fmt: skip
    pin = Pin(facts.id, head, component="core", number=number, target="dev")
    return facts, pin


def survey(
    upstream: Upstream, cache: Path, *candidates: tuple[Candidate, Pin], **more: object
) -> Survey:
    made = Survey(
        remote=Remote("core", str(upstream.folder)),
        cache=cache,
        roots=["pkg"],
        candidates=candidates,
        series=series(**more),
        catalogue=[],
    )
    made.sync()
    return made


def lives(upstream: Upstream, cache: Path, *candidates: tuple[Candidate, Pin]) -> Lives:
    return survey(upstream, cache, *candidates).lives(lambda _: None)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Ten days of a branch, one commit a day, and a release on the third."""
    made = Upstream(tmp_path / "upstream")
    made.dev({"pkg/core.py": CORE}, "day 1")
    for day in range(2, 11):
        made.dev({"pkg/day.py": f"day = {day}\n"}, f"day {day}")
    made.git("tag", "v1.0", "refs/heads/dev~7")
    made.git("tag", "v1.1rc0", "refs/heads/dev~6")
    return made


def day(upstream: Upstream, number: int) -> str:
    return upstream.git("rev-parse", f"refs/heads/dev~{10 - number}")


def test_revisions_are_releases_and_the_branch_every_so_many_days(
    upstream: Upstream, tmp_path: Path
) -> None:
    found = lives(upstream, tmp_path / "cache").bases

    assert [base.sha for base in found] == [day(upstream, number) for number in (1, 3, 5, 7, 9, 10)]
    assert [(base.name, base.kind) for base in found if base.kind == "release"] == [
        ("v1.0", "release")
    ]
    assert found[-1].name == f"dev {found[-1].date:%m-%d}"
    assert found[0].date == dt.date(2026, 1, 2)


def test_a_life_until_it_is_contained(upstream: Upstream, tmp_path: Path) -> None:
    old = CORE.replace("y = x + 1", "y = x")
    fork = day(upstream, 4)
    head = upstream.request(5, {"pkg/core.py": CORE + "def extra():\n    return 1\n"}, fork)
    squash = upstream.dev({"pkg/core.py": CORE + "def extra():\n    return 1\n"}, "Extra (#5)")
    upstream.dev({"pkg/core.py": old}, "later")

    (life,) = lives(upstream, tmp_path / "cache", candidate(5, head)).candidates

    assert [cell.result for cell in life.cells] == ["clean"] * 6 + ["contained"]
    assert life.since is not None
    assert (life.since.commit, life.since.sign, life.since.differs) == (squash, "squash", False)
    assert life.fork == fork


def test_who_gets_in_whose_way(upstream: Upstream, tmp_path: Path) -> None:
    start = day(upstream, 2)
    one = upstream.request(1, {"pkg/core.py": CORE.replace("x + 1", "x + 11")}, start)
    two = upstream.request(2, {"pkg/core.py": CORE.replace("x + 1", "x + 12")}, start)
    far = upstream.request(3, {"pkg/core.py": CORE.replace("AND_MORE = 4", "AND_MORE = 5")}, start)

    found = lives(
        upstream, tmp_path / "cache", candidate(1, one), candidate(2, two), candidate(3, far)
    )

    by_id = {life.id: life.cells[-1].conflicts_with for life in found.candidates}
    assert by_id == {"core-1": ["core-2"], "core-2": ["core-1"], "core-3": []}


def test_a_stacked_candidate_brings_what_it_stands_on_until_that_is_there(
    upstream: Upstream, tmp_path: Path
) -> None:
    start = day(upstream, 2)
    lower = upstream.request(1, {"pkg/low.py": "low = 1\n"}, start)
    upper = upstream.request(2, {"pkg/up.py": "up = 1\n"}, lower)
    upstream.dev({"pkg/low.py": "low = 1\n"}, "Low (#1)")

    found = lives(upstream, tmp_path / "cache", candidate(2, upper), candidate(1, lower))

    life = next(life for life in found.candidates if life.id == "core-2")
    assert life.stacks_on == ["core-1"]
    assert life.cells[0].brings == ["core-1"]
    assert life.cells[-1].brings == []
    assert life.cells[-1].result == "clean"
    assert all(not cell.conflicts_with for cell in life.cells)


def test_what_was_found_is_remembered(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = upstream.request(1, {"pkg/core.py": CORE.replace("x + 1", "x + 11")}, day(upstream, 2))
    two = upstream.request(2, {"pkg/core.py": CORE.replace("x + 1", "x + 12")}, day(upstream, 2))
    cache = tmp_path / "cache"
    first = lives(upstream, cache, candidate(1, one), candidate(2, two))
    asked = []
    real = Bench.apply

    def count(self: Bench, *arguments: object, **more: object) -> object:
        asked.append(arguments)
        return real(self, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Bench, "apply", count)

    assert lives(upstream, cache, candidate(1, one), candidate(2, two)) == first
    assert asked == []
    # A moved head is another question; the other candidate's answers stay.
    moved = upstream.request(2, {"pkg/core.py": CORE + "#\n"}, day(upstream, 2))
    lives(upstream, cache, candidate(1, one), candidate(2, moved))
    assert len(asked) == len(first.bases)
    # And a damaged memory is made anew.
    for path in (cache / "lives" / "core").glob("*.json"):
        path.write_text("{")
    assert lives(upstream, cache, candidate(1, one), candidate(2, two)) == first


def test_what_nobody_has_seen_is_not_known(upstream: Upstream, tmp_path: Path) -> None:
    found = lives(upstream, tmp_path / "cache", candidate(1, "unknown"), candidate(2, "a" * 40))

    assert [life.cells for life in found.candidates] == [[], []]
    assert [life.unavailable is not None for life in found.candidates] == [True, True]


def test_a_patch_file_has_a_life_too(upstream: Upstream, tmp_path: Path) -> None:
    start = day(upstream, 1)
    after = upstream.commit({"pkg/core.py": CORE + "# mine\n"}, parents=[start])
    pin = patch_pin(upstream.raw("diff", start, after))
    facts, _ = candidate(1, "unknown")
    local = facts.model_copy(update={"id": "mine", "number": None, "path": "mine.patch"})

    (life,) = lives(upstream, tmp_path / "cache", (local, pin)).candidates

    assert {cell.result for cell in life.cells} == {"clean"}


HOSTILE = "[bold]\x1b[31m<script>alert(1)</script>\u202e & \"'"


def test_words_of_others_are_text_everywhere(upstream: Upstream, tmp_path: Path) -> None:
    name = "pkg/[red]<b>\u202e&.py"
    head = upstream.request(1, {"pkg/core.py": "x", name: "a = 1\n"}, day(upstream, 1))
    upstream.dev({"pkg/core.py": "y"}, HOSTILE)
    found = lives(
        upstream,
        tmp_path / "cache",
        candidate(1, head, title=HOSTILE, claims=HOSTILE),
        candidate(2, "unknown", title=HOSTILE),
    )

    screen = Console(file=io.StringIO(), width=120, force_terminal=True)
    show_lives(screen, found)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "[bold]" in text
    assert "\x1b[31m<" not in text
    assert "\u202e" not in text
    for life in found.candidates:
        picture = strip(life, found)
        ET.fromstring(picture)  # noqa: S314  # our own
        assert "<script>" not in picture
        assert "\u202e" not in picture
    # JSON keeps what was said; it is for programs.
    assert json.loads(found.model_dump_json())["candidates"][0]["title"] == HOSTILE


def test_a_strip_says_it_in_signs_and_words(upstream: Upstream, tmp_path: Path) -> None:
    head = upstream.request(1, {"pkg/core.py": CORE.replace("x + 1", "x + 11")}, day(upstream, 1))
    upstream.dev({"pkg/core.py": CORE.replace("x + 1", "x - 1")})
    found = lives(upstream, tmp_path / "cache", candidate(1, head))

    root = ET.fromstring(strip(found.candidates[0], found))  # noqa: S314  # our own

    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    letters = [text.text for text in root.iter(f"{space}text")]
    assert len(titles) == len(found.bases)
    assert titles[-1] is not None
    assert titles[-1].endswith(": conflict")
    assert letters[-1] == "×"
    assert root.get("role") == "img"
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
