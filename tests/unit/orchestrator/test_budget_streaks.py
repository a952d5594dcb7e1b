"""Dear sources from round to round: asked on after hits, ever more rarely after misses, always where they gain."""

from __future__ import annotations

from itertools import pairwise

import pytest

from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.experience import Experience
from orchestrator.budget.streaks import DearWorth
from tests.unit.orchestrator.test_orchestrator_budget import asks, play, ranked

MARGIN = 200.0


def asked(worth: DearWorth, rounds: int, *, gained_us: float, hit: bool) -> list[int]:
    """Numbers of the rounds that ask, each of which gains so much."""
    out = []
    for number in range(rounds):
        if worth.next_round_asks():
            out.append(number)
            worth.judge(gained_us, MARGIN, hit=hit)
    return out


def test_every_session_begins_with_a_question_whatever_earlier_ones_lost() -> None:
    for before_us in (None, -9_000.0, 9_000.0):
        assert DearWorth(before_us).next_round_asks()


def test_a_source_that_loses_is_asked_ever_more_rarely_and_hardly_at_all_in_the_end() -> None:
    numbers = asked(DearWorth(), 200, gained_us=-4_000.0, hit=False)
    gaps = [after - before for before, after in pairwise(numbers)]
    assert gaps[:5] == [2, 3, 5, 9, 17]
    assert set(gaps[5:]) == {33}


def test_a_question_now_and_then_is_one_question_though_its_round_is_learned_from_a_round_late() -> None:
    worth, numbers = DearWorth(), []
    for number in range(100):
        unlearned = bool(numbers) and numbers[-1] == number - 1
        if worth.next_round_asks():
            numbers.append(number)
        if unlearned:
            worth.judge(-4_000.0, MARGIN, hit=False)
    # The first two rounds are asked before anything is known.
    assert numbers[:2] == [0, 1]
    assert all(after - before > 1 for before, after in pairwise(numbers[1:]))


def test_a_source_is_left_alone_where_less_holds_than_it_leads_to_expect() -> None:
    experience = Experience()
    for _ in range(6):
        budget = AdaptiveBudget(experience)
        for _ in range(40):
            play(budget, [ranked([0.8])], 1, row_us=1_000.0, wait_us=6_000.0)
    budget = AdaptiveBudget(experience)
    asked = [_ask_in_vain(budget) for _ in range(40)]
    # By what is expected alone, 35 of them.
    assert sum(asked) <= 20


def _ask_in_vain(budget: AdaptiveBudget) -> bool:
    """A round in which nothing holds: whether the head was asked."""
    wanted = asks(budget, "head")
    play(budget, [ranked([0.8])] if wanted else [], 0, row_us=1_000.0, wait_us=6_000.0)
    return wanted


def test_a_hit_of_a_source_that_loses_halves_the_gap_only() -> None:
    worth = DearWorth()
    asked(worth, 30, gained_us=-4_000.0, hit=False)
    # Sixteen rounds are left out behind the fifth miss; a hit makes it eight, the next one four.
    for gap in (8, 4, 2):
        while not worth.next_round_asks():
            pass
        worth.judge(-4_000.0, MARGIN, hit=True)
        assert [worth.next_round_asks() for _ in range(gap + 1)] == [False] * gap + [True]
        worth._left_out = -1


def test_a_source_that_breaks_even_is_asked_behind_its_hits_and_now_and_then() -> None:
    worth = DearWorth()
    assert asked(worth, 20, gained_us=0.0, hit=True) == list(range(20))
    numbers = asked(worth, 100, gained_us=0.0, hit=False)
    assert max(after - before for before, after in pairwise(numbers)) == 9
    while not worth.next_round_asks():
        pass
    worth.judge(0.0, MARGIN, hit=True)
    assert worth.next_round_asks()


def test_a_source_that_gains_is_asked_in_every_round_through_its_misses() -> None:
    worth = DearWorth(5_000.0)
    assert asked(worth, 30, gained_us=4_000.0, hit=False) == list(range(30))


@pytest.mark.parametrize(("accepts", "least", "most"), [(1, 36, 40), (0, 4, 10)])
def test_a_head_is_asked_on_where_its_offers_hold_and_left_alone_where_they_do_not(
    accepts: int, least: int, most: int
) -> None:
    experience = Experience()
    for _ in range(3):
        budget, count = AdaptiveBudget(experience), 0
        for _ in range(40):
            wanted = budget.asked("head") and (not budget.dear("head") or budget.worth_asking("head", []))
            count += wanted
            play(budget, [ranked([0.8])] if wanted else [], accepts if wanted else 0, row_us=1_000.0, wait_us=6_000.0)
    assert least <= count <= most
