"""What is kept between rounds changes no choice: to the last bit it is the plain rule's (tests/helpers/plain_choice.py)."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal, ProposalNode, SourceCost
from contracts.receipt import Closing, Receipt, VerifyTimings
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.budget.adaptive import AdaptiveBudget, _Thought
from orchestrator.budget.evidence import known_of, known_of_first
from orchestrator.budget.experience import Experience
from tests.helpers.plain_choice import plain_choice, plain_known

SEMANTICS = {
    "lookup": ProbabilitySemantics.ABSENT,
    "retrieval": ProbabilitySemantics.FREQUENCY,
    "head": ProbabilitySemantics.SCORE_ONLY,
}


@st.composite
def offers(draw: st.DrawFn, source: str) -> Proposal:
    """A tree of few tokens, so that prefixes repeat within it and among the sources."""
    semantics = SEMANTICS[source]
    scores = st.none() | (st.floats(0.0, 9.0) if semantics is ProbabilitySemantics.FREQUENCY else st.floats(-3.0, 0.5))
    nodes: list[ProposalNode] = []
    for index in range(draw(st.integers(0, 7))):
        parent = draw(st.integers(-1, index - 1))
        depth = 1 if parent < 0 else nodes[parent].depth + 1
        score = None if semantics is ProbabilitySemantics.ABSENT else draw(scores)
        nodes.append(ProposalNode(draw(st.integers(0, 2)), parent, depth, source, source, score=score))
    cost = SourceCost(match_length=draw(st.integers(0, 10)), match_count=draw(st.integers(0, 20)))
    return Proposal(
        source, tuple(nodes), semantics, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.TREE, "", cost=cost
    )


@st.composite
def rounds(draw: st.DrawFn) -> dict[str, Any]:
    """One round of one of three sessions."""
    sources = draw(st.lists(st.sampled_from(sorted(SEMANTICS)), unique=True, max_size=3))
    return {
        "session": draw(st.integers(0, 2)),
        "proposals": [draw(offers(source)) for source in sources],
        "budget": draw(st.integers(1, 12)),
        "text": draw(st.lists(st.integers(0, 2), min_size=1, max_size=4)),
        "pass_us": draw(st.floats(10_000.0, 60_000.0)),
        "together": draw(st.sampled_from([1, 1, 2, 5])),
        "wait_us": draw(st.sampled_from([100.0, 6_000.0])),
    }


def accepted_of(graph: CandidateGraph, text: list[int]) -> tuple[int, ...]:
    rows: list[int] = []
    for token in text[:-1]:
        row = graph.children.get(rows[-1] if rows else -1, {}).get(token)
        if row is None:
            break
        rows.append(row)
    return tuple(rows)


def learn(budget: AdaptiveBudget, choice: _Thought, played: dict[str, Any]) -> None:
    accepted = accepted_of(choice.graph, played["text"])
    pass_rows, together, pass_us = (len(choice.graph) + 1) * played["together"], played["together"], played["pass_us"]
    receipt = Receipt(
        "s", 0, "", "", 1, 1, tuple(played["text"]), accepted, Closing.BONUS,
        timings=VerifyTimings(queue_us=pass_us - pass_us / together, target_us=pass_us / together),
        pass_rows=pass_rows, pass_sessions=together,
    )  # fmt: skip
    ledger = RoundLedger(verify=pass_us / together, queue=pass_us - pass_us / together, other=3_000.0)
    budget.learn(choice, receipt, ledger, {one.source: played["wait_us"] for one in played["proposals"]})


@settings(max_examples=60)
@given(st.lists(rounds(), min_size=1, max_size=25))
def test_choices_and_what_is_learned_from_them_are_those_of_the_plain_rule(story: list[dict[str, Any]]) -> None:
    experience = Experience()
    budgets = [AdaptiveBudget(experience) for _ in range(3)]
    for played in story:
        budget, proposals = budgets[played["session"]], played["proposals"]
        graph = merge_by_full_prefix(proposals, budget=played["budget"])
        choice = budget.choose(graph, proposals)
        assert isinstance(choice, _Thought)
        assert known_of(graph, proposals) == choice.known == plain_known(graph, proposals)
        if len(graph) and experience.times.known:
            plain = plain_choice(graph, proposals, experience, budget._trials.snapshot())
            rows = plain.rows
            assert choice.graph.token_list == [graph.token_list[row] for row in rows]
            assert choice.graph.parent_list == [
                -1 if graph.parent_list[row] < 0 else rows.index(graph.parent_list[row]) for row in rows
            ]
            assert (choice.expected_tokens, choice.expected_us) == (plain.tokens, plain.round_us)
            assert {source: choice.gain_us(source) for source in SEMANTICS} == {
                source: plain.gains_us.get(source, 0.0) for source in SEMANTICS
            }
        learn(budget, choice, played)


@given(offers("retrieval") | offers("head") | offers("lookup"))
def test_what_is_known_of_first_candidates_is_known_whatever_others_offer(proposal: Proposal) -> None:
    first = [node for node in proposal.nodes if node.parent < 0]
    facts = known_of_first(proposal)
    assert len(facts) == len(first)
    graph = merge_by_full_prefix([proposal], budget=16)
    known = plain_known(graph, [proposal])
    # Two nodes of one prefix are one row of which both are known.
    expected = [what.general for row, parent in enumerate(graph.parent_list) if parent < 0 for what in known[row]]
    assert sorted(facts) == sorted(expected)
