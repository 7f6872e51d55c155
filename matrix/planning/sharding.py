"""A campaign spread over several runners: which stacks each takes, and jobs for a CI service.

All cells of a stack go to one runner, so that its environment is built once. Who takes a stack is
told by its content as the campaign asks for it, where `system` is still `system`: so runners with
other images agree without talking to each other. Which stacks a covering campaign has depends on
the evidence, so all parts are run from one commit.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from matrix.errors import DataError
from matrix.planning.campaign_forms import Campaign, StackEntry
from matrix.stacks import stack_id

#: GitHub refuses a matrix of more jobs.
MOST_JOBS = 256


@dataclass(frozen=True)
class Shard:
    """One of several parts, counted from 1."""

    number: int
    of: int

    def takes(self, stack: str) -> bool:
        """Whether a stack, by its id, belongs to this part."""
        return shard_of(stack, self.of) == self.number


def parse_shard(text: str) -> Shard:
    """`3/16` as a part.

    Raises:
        DataError: it is none.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})/([1-9]\d{0,4})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise DataError(f"--shard {text}: write NUMBER/COUNT, such as 3/16; numbers begin with 1.")
    return Shard(int(found[1]), int(found[2]))


def shard_of(stack: str, parts: int) -> int:
    """The number of the part, from 1, to which a stack belongs by its id."""
    digest = hashlib.sha256(stack.encode()).digest()
    return int.from_bytes(digest[:8]) % parts + 1


def asked_id(campaign: Campaign, entry: StackEntry) -> str:
    """The id of a stack as the campaign asks for it, the same on every machine."""
    return stack_id(campaign.requested(entry), tuple((id_, "") for id_ in entry.patches))


def in_shard(campaign: Campaign, shard: Shard) -> Campaign:
    """The campaign with the stacks of one part; there may be none."""
    stacks = [entry for entry in campaign.stacks if shard.takes(asked_id(campaign, entry))]
    return campaign.model_copy(update={"stacks": stacks})


def only_stacks(campaign: Campaign, names: Sequence[str]) -> Campaign:
    """The campaign with the stacks of these names alone; all of it where none is named.

    Raises:
        DataError: it has no such stack.
    """
    unknown = {*names} - {entry.name for entry in campaign.stacks}
    if unknown:
        raise DataError(
            f"--stack {', '.join(sorted(unknown))}: campaign {campaign.name!r} has no such stack. "
            "Jobs take names alone, since an id depends on the machine."
        )
    stacks = [entry for entry in campaign.stacks if not names or entry.name in names]
    return campaign.model_copy(update={"stacks": stacks})


def job_matrix(
    campaign: Campaign,
    options: Sequence[str] = (),
    *,
    part: bool = False,
    most_jobs: int = MOST_JOBS,
) -> dict[str, list[dict[str, str]]]:
    """Jobs that together run a campaign, as GitHub Actions takes them with `fromJSON`.

    A job for each stack; where that would be more jobs than allowed, jobs of several stacks.

    Args:
        campaign: which.
        options: what each job is told besides, such as `--setting=thorough`.
        part: whether it has only some of the stacks it has by itself, so that no job may be told
            to run a shard.
        most_jobs: how many there may be.

    Returns:
        `{"include": [{"name": ..., "arguments": ...}]}`; `arguments` goes behind `nox -s matrix --`
        and is safe in a shell. Shards without a stack have no job.
    """
    own = f"--campaign {shlex.quote(campaign.name)}"
    more = "".join(f" {shlex.quote(option)}" for option in options)
    named = [f"--stack {shlex.quote(entry.name)}" for entry in campaign.stacks]
    if len(named) <= most_jobs:
        jobs = [(entry.name, name) for entry, name in zip(campaign.stacks, named, strict=True)]
    elif part:
        jobs = [
            (f"{number + 1}/{most_jobs}", " ".join(named[number::most_jobs]))
            for number in range(most_jobs)
        ]
    else:
        parts = {shard_of(asked_id(campaign, entry), most_jobs) for entry in campaign.stacks}
        jobs = [
            (f"{number}/{most_jobs}", f"--shard {number}/{most_jobs}") for number in sorted(parts)
        ]
    return {"include": [{"name": name, "arguments": f"{own} {args}{more}"} for name, args in jobs]}


def job_text(jobs: dict[str, list[dict[str, str]]]) -> str:
    """A job matrix in one line, as a step's output has to be."""
    return json.dumps(jobs, separators=(",", ":"))
