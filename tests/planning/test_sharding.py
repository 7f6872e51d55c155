"""Parts of a campaign: each stack is in one of them, and every machine agrees in which."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import DataError
from matrix.planning.campaign_forms import Campaign, StackEntry
from matrix.planning.sharding import (
    Shard,
    in_shard,
    job_matrix,
    job_text,
    only_stacks,
    parse_shard,
    shard_of,
)


def campaign(count: int) -> Campaign:
    return Campaign(
        name="c",
        reason="r",
        probes=[],
        components={"torch": "system"},
        stacks=[
            StackEntry(name=f"s{n}", reason="r", components={"a": f"{n}.0"}, patches=["p"][: n % 2])
            for n in range(count)
        ],
    )


@given(st.integers(0, 60), st.integers(1, 20))
def test_parts_are_a_partition(count: int, parts: int) -> None:
    whole = campaign(count)

    found = [in_shard(whole, Shard(number, parts)).stacks for number in range(1, parts + 1)]

    names = [entry.name for stacks in found for entry in stacks]
    assert sorted(names) == sorted(entry.name for entry in whole.stacks)
    # In each part the campaign's order is kept.
    order = [entry.name for entry in whole.stacks]
    assert all([e.name for e in s] == sorted((e.name for e in s), key=order.index) for s in found)


@given(st.text(alphabet="0123456789abcdef", min_size=12, max_size=12), st.integers(1, 300))
def test_a_stack_has_one_part_whatever_else_there_is(stack: str, parts: int) -> None:
    number = shard_of(stack, parts)

    assert 1 <= number <= parts
    assert [n for n in range(1, parts + 1) if Shard(n, parts).takes(stack)] == [number]


def test_the_part_of_a_stack_never_changes() -> None:
    # Runners of different releases of this program would else leave stacks out.
    assert [shard_of(stack, 16) for stack in ("0" * 12, "203d0f6611f9", "f" * 12)] == [4, 10, 8]


def test_parts_are_about_equal() -> None:
    sizes = [len(in_shard(campaign(1600), Shard(n, 16)).stacks) for n in range(1, 17)]

    assert min(sizes) > 60
    assert max(sizes) < 140


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/", "/4", "a/b", "1/0", "-1/4", "01/4", ""])
def test_a_part_that_is_none(text: str) -> None:
    with pytest.raises(DataError, match="such as 3/16"):
        parse_shard(text)


def test_a_part_in_words() -> None:
    assert parse_shard("3/16") == Shard(3, 16)


def test_a_job_for_each_stack() -> None:
    jobs = job_matrix(campaign(3))

    assert jobs["include"][1] == {"name": "s1", "arguments": "--campaign c --stack s1"}
    assert json.loads(job_text(jobs)) == jobs
    assert "\n" not in job_text(jobs)


def test_jobs_are_told_what_the_list_was_asked_with() -> None:
    whole = only_stacks(campaign(3), ["s2"])

    (job,) = job_matrix(whole, ["--setting=thorough", "--patch=a b"])["include"]

    assert job["arguments"] == "--campaign c --stack s2 --setting=thorough '--patch=a b'"


def test_stacks_that_a_campaign_lacks_have_no_job() -> None:
    assert only_stacks(campaign(3), []) == campaign(3)
    with pytest.raises(DataError, match="--stack s7: campaign 'c' has no such stack"):
        only_stacks(campaign(3), ["s1", "s7"])


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 3))
def test_jobs_of_a_part_run_its_stacks_once_and_no_other(count: int, most: int, of: int) -> None:
    some = in_shard(campaign(count), Shard(1, of))

    jobs = job_matrix(some, part=True, most_jobs=most)["include"]

    words = [shlex.split(job["arguments"]) for job in jobs]
    named = [after for job in words for word, after in pairwise(job) if word == "--stack"]
    assert sorted(named) == sorted(entry.name for entry in some.stacks)
    assert len(jobs) <= most
    assert not any("--shard" in job for job in words)


@given(st.integers(0, 700), st.integers(1, 256))
def test_jobs_run_every_stack_once(count: int, most: int) -> None:
    whole = campaign(count)

    jobs = job_matrix(whole, most_jobs=most)["include"]

    assert len(jobs) <= most
    assert len({job["name"] for job in jobs}) == len(jobs)
    ran: list[str] = []
    for job in jobs:
        arguments = shlex.split(job["arguments"])
        assert arguments[:2] == ["--campaign", "c"]
        if arguments[2] == "--stack":
            ran.append(arguments[3])
        else:
            stacks = in_shard(whole, parse_shard(arguments[3])).stacks
            assert stacks, "no runner is started for nothing"
            ran += [entry.name for entry in stacks]
    assert sorted(ran) == sorted(entry.name for entry in whole.stacks)
