"""Which runs were made in an environment where chance decided whose files stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.keeping.overwritten import Run, in_unsettled, left_to_chance, overwrites_of, unsettled
from matrix.keeping.records import Loaded, Record, StackFacts
from matrix.stacks import stack_id
from tests.keeping.test_store import make_record

NOTE = "overwrites: libs-base + libs-cu13"


def gate(text: str | None, *, origin: str = "environment", key: str = NOTE) -> Record:
    notes = {} if text is None else {key: text}
    loaded = Loaded.model_validate(
        {"version": "4.5.2", "origin": origin, "notes": {"other": "a won 3", **notes}}
    )
    return make_record(
        stack=StackFacts(
            id=stack_id({}), requested={}, resolved={}, loaded={"dsl": loaded}, lock="ab" * 32
        )
    )


@pytest.mark.parametrize(
    ("text", "chance"),
    [
        ("99 paths: libs-cu13 won 99; such as a/won 3", ""),
        ("99 paths: libs-base won 99", "99 paths: libs-base won 99"),
        (
            "99 paths: libs-base won 24, libs-cu13 won 75; such as a",
            "99 paths: libs-base won 24, libs-cu13 won 75",
        ),
        ("1 path: neither won 1", "1 path: neither won 1"),
        (None, ""),
    ],
)
def test_a_gate_says_who_won(text: str | None, chance: str) -> None:
    assert unsettled(gate(text)) == chance
    assert overwrites_of(gate(text, origin="image")) == [], "an image is not built anew"


def test_wheels_are_known_by_their_names() -> None:
    (found,) = overwrites_of(gate("2 paths: b won 2", key="overwrites: c + b + a"))

    assert found.wheels == ("a", "b", "c")
    assert (found.paths, found.settled) == (2, False)


@pytest.mark.parametrize(
    ("key", "text"),
    [("overwrites: a", "1 path: a won 1"), ("overwrites: a + b", "a lot"), ("", "")],
)
def test_what_no_gate_of_ours_says_is_passed_over(key: str, text: str) -> None:
    assert overwrites_of(gate(text, key=key)) == []


def test_only_a_gate_speaks_for_the_runs_behind_it() -> None:
    record = gate("99 paths: libs-base won 99")

    assert set(left_to_chance([record], {"sum"})) == {record.run.id}
    assert not left_to_chance([record], {"fingerprint"})


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("st"), st.booleans(), st.booleans()),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_each_run_goes_by_the_gate_before_it(
    made: list[tuple[str, str, bool, bool]], random: object
) -> None:
    runs = [
        Run(machine, stack, f"{number:03}-0", is_gate, "chance" if chance and is_gate else "")
        for number, (machine, stack, is_gate, chance) in enumerate(made)
    ]
    expected = set()
    now: dict[tuple[str, str], bool] = {}
    for run in runs:
        place = run.machine, run.stack
        if run.is_gate:
            now[place] = bool(run.unsettled)
        if now.get(place):
            expected.add(run.id)
    mixed = list(runs)
    random.shuffle(mixed)  # type: ignore[attr-defined]

    assert set(in_unsettled(mixed)) == expected


@pytest.mark.parametrize("suffixes", ["ab", "ba"])
def test_of_two_gates_in_one_second_the_worse_is_believed(suffixes: str) -> None:
    settled, mixed = (f"20260101T000000Z-{suffix}" for suffix in suffixes)
    runs = [
        Run("m", "s", settled, is_gate=True, unsettled=""),
        Run("m", "s", mixed, is_gate=True, unsettled="chance"),
        Run("m", "s", "20260101T000001Z-0", is_gate=False, unsettled=""),
    ]

    assert set(in_unsettled(runs)) == {mixed, "20260101T000001Z-0"}
