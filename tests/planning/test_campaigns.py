"""Campaigns as data: every mistake has one clear line, and every strategy keeps its word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matrix.components import Component, load_components
from matrix.errors import DataError
from matrix.keeping.ledger import RecordedStack
from matrix.planning.campaign_forms import Campaign, GeneratedStack, Reference
from matrix.planning.campaign_lint import lint
from matrix.planning.campaigns import load_campaign
from matrix.planning.choosing import choose, heads_of
from matrix.planning.contradictions import contradictions
from matrix.planning.coverage import look, pair_coverage, seen_by_probe
from matrix.planning.layout import Layout
from matrix.planning.rules import Requirement, Rule
from matrix.planning.space import tuples_of
from matrix.planning.strategies import covering_stacks, row_of_entry, standing_stacks
from matrix.rooms import Rooms
from patches.candidates import load_candidates
from tests.evidence_in_short import InShort, entry, spec
from tests.worlds import COMPONENTS

SHA, OTHER = "a" * 40, "b" * 40
HEAD = """
reason = "tests"
probes = ["sum"]
strategy = "{strategy}"
{top}

[reference]
name = "base"
reason = "the start"
link = "https://example.org/base"
components = {{ torch = "system", nvidia-cudnn = "system", nvidia-cudnn-frontend = "1.1", \
nvidia-cutlass-dsl = "2.0", megatron-core = "{sha}" }}

[axes]
nvidia-cudnn-frontend = ["1.0", "1.1", "1.2", "1.3"]
nvidia-cutlass-dsl = ["1.9", "2.0", "2.5", "3.0"]
megatron-core = ["{sha}", "{other}", "0.19.2"]
"""
FLOOR = """
[[rule]]
reason = "1.2 and newer ask for 2.5 at least."
link = "https://example.org/floor"
requires.when = { nvidia-cudnn-frontend = ">=1.2" }
requires.then = { nvidia-cutlass-dsl = ">=2.5" }
"""
CANDIDATE = """
component = "megatron-core"
repository = "https://github.com/example/megatron"
number = {number}
title = "t"
reason = "r"
claims = "c"
state = "open"
target = "main"
head = "{head}"
seen = 2026-01-01
{more}
"""
SPECS = {"fingerprint": spec("fingerprint", group="gate"), "sum": spec("sum")}


@pytest.fixture
def rooms(tmp_path: Path) -> Rooms:
    rooms = Rooms(tmp_path)
    rooms.campaigns.mkdir(parents=True)
    rooms.candidates.mkdir(parents=True)
    (rooms.catalogue / "components.toml").write_text(COMPONENTS)
    for number, head, more in (
        (7, "7" * 40, ""),
        (8, "8" * 40, 'stacked_on = "mcore-7"'),
        (9, "unknown", ""),
    ):
        path = rooms.candidates / f"mcore-{number}.toml"
        path.write_text(CANDIDATE.format(number=number, head=head, more=more))
    return rooms


def write(
    rooms: Rooms, more: str = "", *, strategy: str = "pairwise", top: str = "", text: str = HEAD
) -> None:
    filled = text.format(strategy=strategy, top=top, sha=SHA, other=OTHER)
    (rooms.campaigns / "c.toml").write_text(filled + more)


def load(rooms: Rooms) -> tuple[Campaign, dict[str, Component]]:
    components = load_components(rooms)
    return load_campaign(rooms, "c", components, SPECS), components


def chosen(rooms: Rooms, evidence: InShort | None = None) -> Campaign:
    campaign, components = load(rooms)
    return choose(rooms, campaign, components, SPECS, evidence or InShort()).campaign


def names(campaign: Campaign) -> list[str]:
    return [stack.name for stack in campaign.stacks]


# Mistakes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("pairwise", "pairs"), "strategy: Input should be 'explicit'"),
        (("pairwise", "explicit"), "reference: nothing uses it. Say which `strategy`"),
        (('["1.0", "1.1", "1.2", "1.3"]', '["1.0", "1.2"]'), "the reference has 1.1, which is not"),
        (('"1.2", "1.3"]', '"1.2", "1.2"]'), "axes.nvidia-cudnn-frontend: a version is listed twi"),
        (('["1.0", "1.1", "1.2", "1.3"]', '["1.1"]'), "an axis has at least two versions"),
        (('"1.2", "1.3"]', '"1.2", "x"]'), "axes.nvidia-cudnn-frontend: 'x' is not a version"),
        (("[axes]", '[axes]\nfrontend = ["1", "2"]'), "axes: unknown component 'frontend'. Known"),
        (('torch = "system", ', ""), "reference says nothing of torch"),
        (("[axes]", "[axis]"), "axis: Extra inputs are not permitted"),
    ],
)
def test_mistakes_in_axes_and_reference(rooms: Rooms, change: tuple[str, str], words: str) -> None:
    write(rooms)
    path = rooms.campaigns / "c.toml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change, 1))

    with pytest.raises(DataError, match=re.escape(words)) as caught:
        load(rooms)
    assert "matrix/catalogue/campaigns/c.toml" in str(caught.value)


def rule(body: str) -> str:
    return f'\n[[rule]]\nreason = "r"\n{body}\n'


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (rule(""), "rule.0: Value error, a rule says one of"),
        (rule('exclude = { dsl = "1" }'), "rule 1: exclude.dsl: unknown component"),
        (rule("exclude = { nvidia-cutlass-dsl = [] }"), "exclude.nvidia-cutlass-dsl is empty"),
        (rule('exclude = { nvidia-cutlass-dsl = ">=x" }'), "'>=x' is no version specifier"),
        (rule('exclude = { nvidia-cutlass-dsl = "two" }'), "'two' is not a version"),
        (rule('exclude = { megatron-core = "abcdef1" }'), "is not a full commit SHA"),
        (rule('exclude = { torch = ">=2" }'), "can't be judged while the campaign has torch 'sys"),
        (rule('exclude = { patches = ["mcore-7"] }'), "'mcore-7' is none of the campaign's opt"),
        (
            rule('requires.when = { nvidia-cutlass-dsl = "3.0" }\nrequires.then = {}'),
            "requires.then: Dictionary should have at least 1 item",
        ),
        (
            rule('include = { name = "base", components = {} }'),
            "rule 1: include: 'base' is listed twice",
        ),
        (
            rule('include = { name = "odd", components = { nvidia-cutlass-dsl = "latest" } }'),
            "rule 1: include: nvidia-cutlass-dsl: 'latest' is not a version",
        ),
    ],
)
def test_mistakes_in_rules(rooms: Rooms, more: str, words: str) -> None:
    write(rooms, more)

    with pytest.raises(DataError, match=re.escape(words)) as caught:
        load(rooms)
    assert "matrix/catalogue/campaigns/c.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            rule('exclude = { nvidia-cutlass-dsl = ">=1" }'),
            "no stack is left by rule 1.",
        ),
        (rule('exclude = { nvidia-cutlass-dsl = "2.0" }'), "reference: rule 1 forbids it"),
        (
            FLOOR + rule('exclude = { nvidia-cutlass-dsl = ">=2.5" }'),
            "no stack can have nvidia-cudnn-frontend 1.2: that is ruled out by rule 1 and rule 2.",
        ),
        (
            FLOOR
            + rule('include = { name = "odd", components = { nvidia-cudnn-frontend = "1.3" } }'),
            "rule 2: include: rule 1 forbids it. A [[stack]] may go against rules on purpose",
        ),
    ],
)
def test_rules_that_contradict_each_other(rooms: Rooms, more: str, words: str) -> None:
    write(rooms, more)

    with pytest.raises(DataError, match=re.escape(words)):
        load(rooms)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        ('["mcore-6"]', "'mcore-6': no such candidate"),
        ('["mcore-7", "mcore-7"]', "'mcore-7' is listed twice"),
        ('["mcore-8"]', "'mcore-8' is stacked on mcore-7; list that before it"),
        ('["mcore-8", "mcore-7"]', "list that before it"),
    ],
)
def test_mistakes_in_optional_patches(rooms: Rooms, listed: str, words: str) -> None:
    write(rooms, top=f"optional_patches = {listed}")

    with pytest.raises(DataError, match=re.escape(words)):
        load(rooms)


def test_too_few_axes(rooms: Rooms) -> None:
    text = re.sub(r"(?m)^(nvidia-cutlass-dsl|megatron-core) = \[.*\n", "", HEAD)
    write(rooms, text=text)
    with pytest.raises(DataError, match=r"'pairwise' needs at least 2 of them.*there is 1"):
        load(rooms)
    write(rooms, text=text, strategy="one-at-a-time")
    assert len(load(rooms)[0].stacks) == 4


BISECT = """
[bisect]
axis = "nvidia-cudnn-frontend"
good = "1.0"
bad = "1.3"
probe = "sum"
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[bisect]", "[bisect]\nx = 1"), "bisect.x: Extra inputs"),
        (('"sum"', '"other"'), "bisect.probe: 'other' is none of the campaign's probes"),
        (("frontend", "backend"), "bisect.axis: there is no axis 'nvidia-cudnn-backend'"),
        (('bad = "1.3"', 'bad = "1.9"'), "bisect.bad: '1.9' is not on axis nvidia-cudnn-frontend"),
        (('bad = "1.3"', 'bad = "1.0"'), "bisect: good and bad are the same version"),
        (("[bisect]", "[bisect]\nconfidence = 1.5"), "bisect.confidence: Input should be less"),
    ],
)
def test_mistakes_in_a_bisection(rooms: Rooms, change: tuple[str, str], words: str) -> None:
    write(rooms, BISECT.replace(*change), strategy="bisect")

    with pytest.raises(DataError, match=re.escape(words)):
        load(rooms)


def test_a_bisection_and_its_strategy_go_together(rooms: Rooms) -> None:
    for more, strategy in ((BISECT, "pairwise"), ("", "bisect")):
        write(rooms, more, strategy=strategy)
        with pytest.raises(DataError, match=r"bisect: a \[bisect\] table and strategy"):
            load(rooms)


# Strategies


def test_one_at_a_time_takes_along_what_a_rule_asks_for(rooms: Rooms) -> None:
    write(rooms, FLOOR, strategy="one-at-a-time")

    campaign, _ = load(rooms)

    assert names(campaign) == [
        "base",
        "frontend-1.0",
        "frontend-1.2+dsl-2.5",
        "frontend-1.3+dsl-2.5",
        "dsl-1.9",
        "dsl-2.5",
        "dsl-3.0",
        f"mcore-{'b' * 9}",
        "mcore-0.19.2",
    ]
    assert campaign.stacks[1].reason == "One step from base: nvidia-cudnn-frontend 1.0."
    assert campaign.stacks[2].reason == (
        "One step from base: nvidia-cudnn-frontend 1.2. Two components differ: "
        "nvidia-cudnn-frontend takes nvidia-cutlass-dsl 2.5 along. "
        "1.2 and newer ask for 2.5 at least."
    )
    assert campaign.stacks[2].components["nvidia-cutlass-dsl"] == "2.5"


def test_stacks_written_out_stand_beside_any_strategy(rooms: Rooms) -> None:
    against = 'components = { nvidia-cudnn-frontend = "1.3", nvidia-cutlass-dsl = "1.9" }\n'
    listed = f'\n[[stack]]\nname = "dsl-1.9"\nreason = "against the rule"\n{against}'
    more = listed + FLOOR + rule('include = { name = "more", patches = ["mcore-7"] }')
    shared = (
        f'components = {{ torch = "system", nvidia-cudnn = "system", megatron-core = "{SHA}" }}'
    )
    write(rooms, more, strategy="one-at-a-time", top=shared)

    campaign, _ = load(rooms)

    assert names(campaign)[:3] == ["dsl-1.9", "base", "more"]
    assert campaign.stacks[2].patches == ["mcore-7"]
    # A generated stack gives way where its name is taken.
    assert [name for name in names(campaign) if name.startswith("dsl-1.9")][1].count("+") == 1
    assert len(set(names(campaign))) == len(names(campaign))


def test_an_explicit_campaign_is_what_it_was(rooms: Rooms) -> None:
    text = re.sub(r"(?s)\nstrategy = .*", "", HEAD) + (
        '\n[[stack]]\nname = "only"\nreason = "r"\ncomponents = {{ torch = "system", '
        'nvidia-cudnn = "system", nvidia-cudnn-frontend = "1.1", nvidia-cutlass-dsl = "2.0", '
        'megatron-core = "{sha}" }}\n'
    )
    write(rooms, text=text)
    assert names(chosen(rooms)) == ["only"]
    write(rooms, text=text.split("[[stack]]")[0])
    with pytest.raises(DataError, match=r"list at least one \[\[stack\]\]"):
        load(rooms)


def test_patches_are_put_on_where_they_can_be(rooms: Rooms) -> None:
    write(rooms, top='optional_patches = ["mcore-7", "mcore-8", "mcore-9"]')

    stacks = chosen(rooms).stacks

    with_patches = [stack for stack in stacks if stack.patches]
    assert with_patches
    for stack in stacks:
        if stack.patches:
            assert stack.components["megatron-core"] != "0.19.2", "for git revisions only"
        assert stack.patches in ([], ["mcore-7"], ["mcore-7", "mcore-8"]), "9 was never seen"
    campaign, components = load(rooms)
    assert campaign.name_of(with_patches[0].components, with_patches[0].patches) == (
        with_patches[0].name
    )
    never = "\n".join(lint(campaign, components, load_candidates(rooms.candidates)).lines())
    assert "Nobody has seen the head of mcore-9 yet." in never
    assert "mcore-8 is stacked on mcore-7." in never


def test_what_a_machine_had_is_called_by_what_differs(rooms: Rooms) -> None:
    write(rooms)
    campaign, _ = load(rooms)
    base = {"torch": "2.11.0", "nvidia-cudnn": "9.1", "megatron-core": SHA}

    def called(frontend: str, dsl: str, *patches: str) -> str | None:
        versions = {"nvidia-cudnn-frontend": frontend, "nvidia-cutlass-dsl": dsl}
        return campaign.name_of({**base, **versions}, patches)

    assert called("1.3", "3.0") == "frontend-1.3+dsl-3.0"
    assert called("1.1", "2.0") == "base"
    assert called("1.1", "2.0", "mcore-7") == "base+7"
    assert called("9.9", "2.0") is None


def test_a_covering_campaign_goes_on_from_what_has_evidence(rooms: Rooms) -> None:
    write(rooms, FLOOR)
    first = chosen(rooms)
    machine = {"torch": "2.11.0", "nvidia-cudnn": "9.16.0.29"}
    evidence = InShort()
    for number, stack in enumerate(first.stacks[:5]):
        requested = {**stack.components, **machine}
        evidence.stacks[str(number)] = RecordedStack(requested=requested, patches=[])
    evidence.entries += [
        entry("0", "sum", "pass"),
        entry("1", "sum", "fail", reason="numerics"),
        entry("2", "fingerprint", "fail", reason="resolve:conflict"),
        entry("3", "sum", "miss", reason="machine:no-gpu"),
        entry("4", "sum", "pass", lacked=("source:unreachable",)),
    ]

    again = chosen(rooms, evidence)

    assert set(names(first)[:3]) <= set(names(again)[:4])
    campaign, components = load(rooms)
    layout = Layout(campaign, components, load_candidates(rooms.candidates))
    seen = look(layout, evidence, SPECS, {})
    rows = [row_of_entry(layout, stack) for stack in first.stacks[:3]]
    assert seen.asked == rows
    assert seen.told() == {"0", "1"}
    assert rows[0] is not None
    assert rows[1] is not None
    assert rows[2] is not None
    planned = [row for stack in again.stacks if (row := row_of_entry(layout, stack)) is not None]
    found = pair_coverage(layout, seen, planned)
    shown = layout.pairs(rows[0]) | layout.pairs(rows[1])
    assert found.seen == shown
    assert found.refused == layout.pairs(rows[2]) - shown
    assert not found.unplanned
    assert not found.allowed & found.never
    assert len(found.allowed | found.never) == 4 * 4 + 4 * 3 + 4 * 3
    assert seen_by_probe(layout, seen) == {"sum": shown}


def test_evidence_of_another_head_is_of_another_stack(rooms: Rooms) -> None:
    write(rooms, top='optional_patches = ["mcore-7"]')
    campaign, components = load(rooms)
    layout = Layout(campaign, components, load_candidates(rooms.candidates))
    requested = {**campaign.requested(layout.reference), "torch": "2.11.0", "nvidia-cudnn": "9.1"}
    evidence = InShort()
    evidence.stacks["old"] = RecordedStack(requested=requested, patches=[("mcore-7", "0" * 40)])
    evidence.stacks["now"] = RecordedStack(requested=requested, patches=[("mcore-7", "7" * 40)])

    seen = look(layout, evidence, SPECS, heads_of(load_candidates(rooms.candidates)))

    assert list(seen.rows) == ["now"]


# Any campaign

PARTS = {
    name: Component.model_validate(
        {
            "name": name,
            "title": name,
            "short": name,
            "kind": "package",
            "reason": "r",
            "link": "https://example.org",
        }
    )
    for name in ("a", "b", "c", "d")
}


@st.composite
def campaigns(draw: st.DrawFn) -> Campaign:
    """A campaign with a reference, three or four axes and some rules."""
    axes = {
        name: [f"{n}.0" for n in range(1, draw(st.integers(2, 4)) + 1)]
        for name in list(PARTS)[: draw(st.integers(3, 4))]
    }
    condition = st.dictionaries(
        st.sampled_from(sorted(axes)),
        st.sampled_from([">=2", "<2", "==3.0", "1.0", "2.0", "!=2"]),
        min_size=1,
        max_size=2,
    )
    rules: list[Rule] = []
    for _ in range(draw(st.integers(0, 4))):
        parts: dict[str, Any] = {"exclude": draw(condition)}
        if draw(st.booleans()):
            parts = {"requires": Requirement(when=draw(condition), then=draw(condition))}
        rules.append(Rule(reason=f"rule {len(rules)}", **parts))
    base = {name: draw(st.sampled_from(versions)) for name, versions in axes.items()}
    return Campaign(
        name="any",
        reason="r",
        probes=["sum"],
        strategy=draw(st.sampled_from(["one-at-a-time", "pairwise", "three-way"])),
        reference=Reference(
            name="base", reason="r", components={"a": "1", "b": "1", "c": "1", "d": "1.0", **base}
        ),
        axes=axes,
        rules=rules,
    )


@settings(max_examples=200, deadline=None)
@given(campaigns())
def test_every_plan_obeys_its_rules_and_covers_what_it_claims(campaign: Campaign) -> None:
    layout = Layout(campaign, PARTS, {})
    if list(contradictions(layout)):
        # Loading refuses it. It is right to: something that was asked for can't be had.
        possible = [layout.space.possible({n: p}) for n, a in enumerate(layout.space.axes)
                    for p in range(len(a.values))]  # fmt: skip
        assert not layout.space.allows(layout.centre) or not all(possible)
        return
    campaign = campaign.model_copy(update={"stacks": standing_stacks(layout)})
    layout = Layout(campaign, PARTS, {})
    strength = {"pairwise": 2, "three-way": 3}.get(campaign.strategy, 1)
    if strength > 1:
        stacks = covering_stacks(layout, strength, [])
        assert stacks == covering_stacks(Layout(campaign, PARTS, {}), strength, [])
    else:
        stacks = campaign.stacks
        assert stacks == standing_stacks(Layout(campaign, PARTS, {}))

    rows = [row_of_entry(layout, stack) for stack in stacks]
    assert rows[0] == layout.centre
    known = [row for row in rows if row is not None]
    assert len(known) == len(set(known)) == len(rows)
    assert all(layout.space.allows(row) for row in known)
    shown = {found for row in known for found in tuples_of(row, strength)}
    assert shown == set(layout.space.tuples(strength))
    called = [stack.name for stack in stacks]
    assert len(set(called)) == len(called)
    for stack in stacks:
        assert campaign.name_of(stack.components) == stack.name
        if isinstance(stack, GeneratedStack) and campaign.strategy == "one-at-a-time":
            differing = sum(
                version != campaign.requested(layout.reference)[name]
                for name, version in stack.components.items()
            )
            assert ("components differ" in stack.reason) == (differing > 1)


@settings(max_examples=60, deadline=None)
@given(campaigns())
def test_what_lint_counts_is_what_is_there(campaign: Campaign) -> None:
    layout = Layout(campaign, PARTS, {})
    if list(contradictions(layout)):
        return
    from itertools import product

    found = lint(campaign, PARTS, {})

    rows = list(product(*(range(len(axis.values)) for axis in layout.space.axes)))
    assert found.size == len(rows)
    assert found.allowed == sum(layout.space.allows(row) for row in rows)
    for number, (removal, own) in enumerate(zip(found.removals, campaign.rules, strict=True)):
        alone = layout.given.space([own])
        rest = layout.given.space([r for n, r in enumerate(campaign.rules) if n != number])
        assert removal.stacks == sum(not alone.allows(row) for row in rows)
        assert removal.stacks_alone == sum(
            not alone.allows(row) and rest.allows(row) for row in rows
        )
        shown = {t for row in rows if alone.allows(row) for t in tuples_of(row, 2)}
        assert removal.pairs == found.pairs - len(shown)
        nothing = f"rule {number + 1} removes nothing"
        assert any(text.startswith(nothing) for text in found.warnings) == (not removal.stacks)


@pytest.mark.parametrize("name", ["around-reported", "wide"])
def test_the_campaigns_of_this_project(name: str) -> None:
    from matrix.commands.cli import ROOT
    from matrix.probe_specs import load_probe_specs

    rooms = Rooms(ROOT)
    components, specs = load_components(rooms), load_probe_specs(rooms)
    campaign = load_campaign(rooms, name, components, specs)
    candidates = load_candidates(rooms.candidates)
    found = lint(campaign, components, candidates)

    assert found.warnings == []
    if name == "wide":
        assert found.size == 884_736
        assert campaign.strategy == "pairwise"
        stacks = choose(rooms, campaign, components, specs, InShort()).campaign.stacks
        layout = Layout(campaign, components, candidates)
        rows = [row_of_entry(layout, stack) for stack in stacks]
        assert {t for row in rows if row for t in tuples_of(row, 2)} == set(layout.space.tuples(2))
        assert len(stacks) < 80
    else:
        assert len(campaign.stacks) == 14
        # The whole question that is put to the reported stack elsewhere.
        default = load_campaign(rooms, "default", components, specs)
        assert set(campaign.probes) == set(default.probes)
