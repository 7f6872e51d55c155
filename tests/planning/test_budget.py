"""What a budget buys: never more than it holds, gates first, and what decides most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix.errors import DataError
from matrix.planning.budget import Offer, Spending, parse_budget, spend
from matrix.planning.coverage import Pair


def pair(number: int) -> Pair:
    return ("a", str(number)), ("b", str(number))


@st.composite
def purchases(draw: st.DrawFn) -> tuple[list[Offer], float, dict[str, float]]:
    """Some stacks with some probes, and what may be spent on them."""
    offers = []
    for stack in range(draw(st.integers(1, 5))):
        if draw(st.booleans()):
            offers.append(Offer(f"s{stack}", "gate", draw(st.floats(0.5, 9)), gate=True))
        for probe in range(draw(st.integers(0, 4))):
            pairs = frozenset(map(pair, draw(st.sets(st.integers(0, 6), max_size=4))))
            worth = draw(st.sampled_from([0.0, 0.0, 1.0, 7.5]))
            offers.append(Offer(f"s{stack}", f"p{probe}", draw(st.floats(0.5, 50)), pairs, worth))
    offers = draw(st.permutations(offers))
    build = {f"s{n}": draw(st.floats(0, 90)) for n in range(draw(st.integers(0, 5)))}
    return offers, draw(st.floats(0, 400)), build


def cost(found: Spending, offers: list[Offer], build: dict[str, float]) -> float:
    seconds = {offer.cell: offer.seconds for offer in offers}
    return sum(seconds[cell] for cell in found.cells) + sum(build.get(s, 0) for s in found.stacks)


@given(purchases())
def test_a_budget_is_kept_and_nothing_is_lost(
    purchase: tuple[list[Offer], float, dict[str, float]],
) -> None:
    offers, budget, build = purchase

    found = spend(offers, budget_s=budget, build_s=build)

    assert found.seconds <= budget
    assert found.seconds == pytest.approx(cost(found, offers, build))
    assert sorted([*found.cells, *found.left_out]) == sorted(offer.cell for offer in offers)
    assert len(set(found.cells)) == len(found.cells)


@given(purchases())
def test_a_gate_comes_before_everything_else_of_its_stack(
    purchase: tuple[list[Offer], float, dict[str, float]],
) -> None:
    offers, budget, build = purchase

    found = spend(offers, budget_s=budget, build_s=build)

    gated = {offer.stack for offer in offers if offer.gate}
    for stack in found.stacks:
        probes = [probe for of, probe in found.cells if of == stack]
        assert (probes[0] == "gate") == (stack in gated)
        # A gate alone is worth nothing when its stack has more to offer.
        more = [offer for offer in offers if offer.stack == stack and not offer.gate]
        assert len(probes) > 1 or not more or stack not in gated


@given(purchases())
def test_what_is_left_out_did_not_fit(
    purchase: tuple[list[Offer], float, dict[str, float]],
) -> None:
    offers, budget, build = purchase

    found = spend(offers, budget_s=budget, build_s=build)

    for offer in offers:
        if offer.cell not in found.left_out:
            continue
        gates = [g for g in offers if g.gate and g.stack == offer.stack and g is not offer]
        more = [o for o in offers if o.stack == offer.stack and not o.gate]
        if offer.gate and more:
            continue  # bought with the first of them only
        price = offer.seconds
        if offer.stack not in found.stacks:
            price += build.get(offer.stack, 0) + sum(gate.seconds for gate in gates)
        assert found.seconds + price > budget


@given(purchases())
def test_the_first_choice_decides_most_for_each_second(
    purchase: tuple[list[Offer], float, dict[str, float]],
) -> None:
    offers, _, build = purchase
    gates = {offer.stack: offer.seconds for offer in offers if offer.gate}

    found = spend(offers, budget_s=10**6, build_s=build)

    def ratio(offer: Offer) -> float:
        price = offer.seconds + build.get(offer.stack, 0) + gates.get(offer.stack, 0)
        return (len(offer.pairs) + offer.worth) / price

    first = next((cell for cell in found.cells if cell[1] != "gate"), None)
    others = {offer.cell: ratio(offer) for offer in offers if not offer.gate}
    if first is not None:
        assert others[first] == pytest.approx(max(others.values()))


@given(purchases())
def test_the_same_offers_buy_the_same(
    purchase: tuple[list[Offer], float, dict[str, float]],
) -> None:
    offers, budget, build = purchase

    assert spend(offers, budget_s=budget, build_s=build) == spend(
        offers, budget_s=budget, build_s=dict(reversed(build.items()))
    )


def test_an_environment_is_paid_for_once_and_its_other_cells_are_cheap_then() -> None:
    offers = [Offer(f"s{n}", f"p{m}", 10, worth=5) for m in range(3) for n in range(2)]

    found = spend(offers, budget_s=130, build_s={"s0": 100, "s1": 100})

    assert found.cells == (("s0", "p0"), ("s0", "p1"), ("s0", "p2"))
    assert found.seconds == 130


def test_a_pair_that_was_shown_decides_nothing_a_second_time() -> None:
    twice = frozenset({pair(1), pair(2)})
    offers = [
        Offer("s0", "p", 10, twice),
        Offer("s1", "p", 10, twice),
        Offer("s2", "p", 10, frozenset({pair(3)})),
        Offer("s3", "p", 10, frozenset({pair(4), pair(5), pair(6)})),
    ]

    found = spend(
        offers,
        budget_s=20,
        build_s={},
        seen={"p": frozenset({pair(4), pair(5), pair(6)}), "q": frozenset({pair(9)})},
        allowed=frozenset(map(pair, range(1, 9))),
    )

    assert found.cells == (("s0", "p"), ("s2", "p"))
    assert found.left_out == (("s1", "p"), ("s3", "p"))
    assert (found.pairs_before, found.pairs_after, found.pairs_allowed) == (3, 6, 8)


def test_another_probe_has_yet_to_see_the_pair() -> None:
    offers = [Offer("s0", "p", 10, frozenset({pair(1)})), Offer("s0", "q", 9, frozenset({pair(1)}))]

    found = spend(offers, budget_s=9, build_s={}, seen={"p": frozenset({pair(1)})})

    assert found.cells == (("s0", "q"),)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("25m", 1500), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400)],
)
def test_a_budget_in_words(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "25", "m", "0s", "25 m", "-5m", "5d", "1e9h", "99999999h"])
def test_a_budget_that_is_none(text: str) -> None:
    with pytest.raises(DataError, match="Write 90s, 25m, 2h"):
        parse_budget(text)


@pytest.mark.parametrize(
    "offers",
    [
        [Offer("s", "p", 1), Offer("s", "p", 2)],
        [Offer("s", "p", 0)],
        [Offer("s", "p", float("inf"))],
        [Offer("s", "p", 1, worth=-1)],
        [Offer("s", "g", 1, gate=True), Offer("s", "h", 1, gate=True)],
    ],
)
def test_offers_that_make_no_sense(offers: list[Offer]) -> None:
    with pytest.raises(ValueError, match=r"twice|no time|two gates"):
        spend(offers, budget_s=10, build_s={})
