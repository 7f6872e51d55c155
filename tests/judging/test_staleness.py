"""Marks of age, beside a verdict and never instead of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from matrix.components import Component, load_components
from matrix.judging.staleness import AGE_DAYS, newer, stale
from matrix.rooms import Rooms
from tests.site.world import MCORE, PROJECT

DAY = dt.date(2026, 11, 1)
RUN = dt.datetime(2026, 11, 1, 23, 59, tzinfo=dt.UTC)


def component(*versions: tuple[str, str | None], kind: str = "package") -> Component:
    listed: list[dict[str, Any]] = [
        {"version": v, "reason": "r", "link": "https://example.org"} | ({"date": d} if d else {})
        for v, d in versions
    ]
    return Component.model_validate(
        {
            "name": "part",
            "title": "Part",
            "short": "part",
            "kind": kind,
            "reason": "r",
            "link": "https://example.org",
            "version": listed,
        }
        | ({"remote": "https://example.org/git"} if kind == "git" else {})
    )


@pytest.mark.parametrize(("later", "marked"), [(AGE_DAYS, False), (AGE_DAYS + 1, True)])
def test_evidence_ages_by_whole_days(later: int, marked: bool) -> None:
    found = stale({}, RUN, {}, DAY + dt.timedelta(days=later))

    assert [mark.kind for mark in found] == (["aged"] if marked else [])


def test_without_evidence_nothing_grows_old() -> None:
    assert stale({}, None, {}, dt.date(2030, 1, 1)) == []


def test_a_newer_release_is_named_with_its_date() -> None:
    parts = {"part": component(("1.0", "2026-01-01"), ("1.2", "2026-03-01"), ("1.1", None))}

    (mark,) = stale({"part": "1.0"}, RUN, parts, DAY)

    assert (mark.kind, mark.component, mark.version) == ("superseded", "part", "1.2")
    assert mark.text == "Part 1.2, published 2026-03-01, is newer than 1.0."
    assert stale({"part": "1.2"}, RUN, parts, DAY) == []
    assert stale({"other": "1.0"}, RUN, parts, DAY) == []


def test_a_higher_number_that_was_published_earlier_is_not_newer() -> None:
    part = component(("1.29.1", "2026-10-15"), ("1.31.0", "2026-10-08"), ("1.32.0", "2026-10-27"))

    assert newer(component(*[("1.29.1", "2026-10-15"), ("1.31.0", "2026-10-08")]), "1.29.1") is None
    assert newer(component(*[("1.29.1", "2026-10-15"), ("1.31.0", "2026-10-08")]), "1.31.0") is None
    found = newer(part, "1.31.0")
    assert found is not None
    assert found.version == "1.32.0"


def test_revisions_are_compared_by_date_and_not_with_releases() -> None:
    old, new = "a" * 40, "b" * 40
    part = component((old, "2026-07-25"), (new, "2026-08-21"), ("0.19.2", None), kind="git")

    found = newer(part, old)
    assert found is not None
    assert found.version == new
    assert newer(part, new) is None
    assert newer(part, "c" * 40) is None
    assert newer(part, "0.19.2") is None


def test_the_stack_of_the_report_is_superseded_and_the_newest_is_not() -> None:
    components = load_components(Rooms(PROJECT))
    reported = {
        "nvidia-cudnn-frontend": "1.26.0",
        "nvidia-cutlass-dsl": "4.5.2",
        "apache-tvm-ffi": "0.1.11",
        "megatron-core": MCORE,
    }
    newest = {
        "nvidia-cudnn-frontend": "1.32.0",
        "nvidia-cutlass-dsl": "4.8.1",
        "apache-tvm-ffi": "0.1.15.post2",
    }

    marks = {mark.component: mark.version for mark in stale(reported, RUN, components, DAY)}

    assert marks.items() >= newest.items()
    assert marks["megatron-core"] not in (None, MCORE)
    assert stale(newest, RUN, components, DAY) == []
