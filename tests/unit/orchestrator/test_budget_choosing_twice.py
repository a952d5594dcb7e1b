"""A round may choose provisionally and again: the last choice is what a single one would have been."""

from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.proposal import Proposal
from orchestrator.budget.adaptive import AdaptiveBudget, _Thought
from orchestrator.budget.experience import Experience
from tests.unit.orchestrator.test_orchestrator_budget import chain, fan, play


def prepared() -> AdaptiveBudget:
    """A budget that has seen a few rounds, with a dear source `head`."""
    experience = Experience()
    for _ in range(3):
        experience.add_worth("head", 9_000.0, 2_000.0)
    budget = AdaptiveBudget(experience)
    for accept in (0, 3, 1, 8, 2):
        play(budget, [chain(6), fan([9, 4, 1])], accept, row_us=900.0)
    return budget


def chosen(budget: AdaptiveBudget, proposals: list[Proposal]) -> tuple[object, ...]:
    graph = merge_by_full_prefix(proposals, budget=16)
    choice = budget.choose(graph, proposals)
    assert isinstance(choice, _Thought)
    return (
        told(choice.graph),
        told(choice.merged),
        choice.offered,
        choice.expected_tokens,
        choice.expected_us,
        choice.rows_us,
        choice.idle_us,
        choice.sessions,
        choice.known,
        choice.strengths,
        [choice.gain_us(source) for source in ("lookup", "retrieval", "head")],
    )


def told(graph: CandidateGraph) -> tuple[object, ...]:
    return (graph.token_list, graph.parent_list, graph.sources, graph.draws, graph.semantics, graph.relations)


def test_a_provisional_choice_leaves_the_final_one_as_it_would_have_been() -> None:
    at_once, late = chain(4), fan([7, 2])
    once, twice = prepared(), prepared()
    for budget in (once, twice):
        assert budget.asked("head")
        budget.worth_asking("head", [at_once])
    provisional = chosen(twice, [at_once])
    assert provisional[9] == {"head": 2} == chosen(once, [at_once, late])[9]
    assert chosen(twice, [at_once, late]) == chosen(prepared_and_asked(at_once), [at_once, late])


def prepared_and_asked(offer: Proposal) -> AdaptiveBudget:
    budget = prepared()
    budget.asked("head")
    budget.worth_asking("head", [offer])
    return budget


def test_choosing_again_changes_nothing_that_is_learned() -> None:
    once, twice = prepared(), prepared()
    for _ in range(6):
        merged = merge_by_full_prefix([chain(5)], budget=16)
        twice.choose(merged, [chain(5)])
        one, other = (play(budget, [chain(5), fan([5, 5])], 2, row_us=700.0) for budget in (once, twice))
        assert (told(one.graph), one.expected_tokens, one.expected_us) == (
            told(other.graph),
            other.expected_tokens,
            other.expected_us,
        )
    assert once._trials.snapshot() == twice._trials.snapshot()


def test_how_strong_other_offers_were_is_forgotten_when_the_next_round_begins() -> None:
    budget = prepared_and_asked(chain(4))
    assert chosen(budget, [chain(4)])[9] == {"head": 2}
    held = budget.choose(merge_by_full_prefix([chain(4)], budget=16), [chain(4)])
    budget.asked("head")
    assert chosen(budget, [chain(4)])[9] == {}
    assert isinstance(held, _Thought)
    assert held.strengths == {"head": 2}
