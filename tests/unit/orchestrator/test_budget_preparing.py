"""Whether a head is run over a prompt: where what it brings to the answer is more than that takes."""

from __future__ import annotations

from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.base import FixedBudget
from orchestrator.budget.experience import Experience
from orchestrator.budget.preparing import Preparing
from tests.unit.orchestrator.test_orchestrator_budget import asks, play, ranked


def known(*, row_us: float, gained_us: float, tokens: int = 2, rounds: int = 60) -> Preparing:
    """After many rounds that gained so much and published so many tokens each."""
    made = Preparing()
    made.prepared("head", 1_000, 1_000 * row_us)
    for _ in range(rounds):
        made.brought("head", gained_us, tokens)
    return made


def test_a_long_prompt_with_a_short_answer_is_not_worth_what_a_short_one_is() -> None:
    preparing = known(row_us=170.0, gained_us=1_000.0)
    assert preparing.worth("head", 100, 64)
    assert not preparing.worth("head", 1_000, 64)
    assert preparing.worth("head", 1_000, 1_000)


def test_a_source_that_loses_is_prepared_for_every_eighth_request_alone() -> None:
    preparing = known(row_us=170.0, gained_us=-500.0)
    assert [preparing.worth("head", 10, 500) for _ in range(16)] == [False] * 7 + [True] + [False] * 7 + [True]


def test_all_are_prepared_until_enough_is_known_of_them() -> None:
    assert known(row_us=500.0, gained_us=0.0, rounds=47).worth("head", 2_000, 1)
    unmeasured = Preparing()
    for _ in range(60):
        unmeasured.brought("head", -900.0, 1)
    assert unmeasured.worth("head", 2_000, 1)
    assert known(row_us=500.0, gained_us=-900.0).worth("other", 2_000, 1)


def test_what_a_source_brings_is_followed_when_it_changes() -> None:
    preparing = known(row_us=100.0, gained_us=-500.0)
    assert not preparing.worth("head", 100, 100)
    for _ in range(400):
        preparing.brought("head", 2_000.0, 2)
    assert preparing.worth("head", 100, 100)


def test_one_stall_does_not_make_preparing_dear() -> None:
    preparing = known(row_us=100.0, gained_us=1_000.0)
    preparing.prepared("head", 100, 30e6)
    assert preparing.worth("head", 300, 100)


def test_an_empty_prompt_tells_nothing_of_the_cost() -> None:
    preparing = Preparing()
    preparing.prepared("head", 0, 5_000.0)
    for _ in range(60):
        preparing.brought("head", -900.0, 1)
    assert preparing.worth("head", 100, 100)


def test_a_request_that_leaves_a_source_out_never_asks_it_and_keeps_to_that_elsewhere() -> None:
    experience = Experience()
    experience.preparing = known(row_us=170.0, gained_us=-500.0)
    budget = AdaptiveBudget(experience)
    assert not budget.prepares("head", 900, 64)
    # Where the session moved to another replica the question comes again.
    assert not budget.prepares("head", 905, 59)
    assert not budget.asked("head")
    assert budget.asked("lookup")


def test_an_adaptive_budget_learns_both_from_its_rounds() -> None:
    """A head whose offers do not hold costs five milliseconds a round: soon long prompts are spared it."""
    experience = Experience()
    for _ in range(8):
        budget = AdaptiveBudget(experience)
        if budget.prepares("head", 1_000, 64):
            budget.prepared("head", 1_000, 170_000.0)
        for _ in range(20):
            asked = budget.asked("head") and asks(budget, "head", [])
            play(budget, [ranked([0.9])] if asked else [], 0, row_us=500.0, wait_us=5_000.0)
    assert sum(AdaptiveBudget(experience).prepares("head", 1_000, 64) for _ in range(8)) == 1


def test_a_fixed_budget_prepares_whatever_it_costs() -> None:
    budget = FixedBudget()
    budget.prepared("head", 1, 1e9)
    assert budget.prepares("head", 10_000, 1)
