"""The adaptive budget: what it verifies under which costs and chances, and that the text never depends on it."""

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.graph import check_graph, keep_rows, merge_by_full_prefix
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal, ProposalNode, SourceCost
from contracts.receipt import Closing, Receipt, VerifyTimings
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.budget.acceptance import Trials, evidence
from orchestrator.budget.adaptive import AdaptiveBudget, Experience
from orchestrator.budget.base import Choice
from orchestrator.budget.pass_times import PassTimes
from orchestrator.budget.pauses import SourceWorth
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import FakeProposer, FakeRetriever, FakeVerifier, babble, collect, lookup, oracle
from tests.helpers.generation import GREEDY, SAMPLED, ask, corpus, orchestrator, tokens_of

STEP_US, OUTSIDE_US = 16_000.0, 2_000.0


def chain(length: int, source: str = "lookup", match_length: int = 3) -> Proposal:
    return Proposal(
        source,
        tuple(ProposalNode(10 + i, i - 1, i + 1, source, source) for i in range(length)),
        ProbabilitySemantics.ABSENT,
        SamplingRelation.DETERMINISTIC_LOOKUP,
        Topology.SEQUENCE,
        "",
        cost=SourceCost(match_length=match_length),
    )


def fan(counts: list[int], source: str = "retrieval") -> Proposal:
    """Children of the anchor by occurrences, each with one child of as many."""
    nodes: list[ProposalNode] = []
    for index, count in enumerate(counts):
        nodes.append(ProposalNode(10 + index, -1, 1, source, source, score=float(count)))
    for index, count in enumerate(counts):
        nodes.append(ProposalNode(50 + index, index, 2, source, source, score=float(count)))
    return Proposal(
        source,
        tuple(nodes),
        ProbabilitySemantics.FREQUENCY,
        SamplingRelation.DETERMINISTIC_LOOKUP,
        Topology.TREE,
        "",
        cost=SourceCost(match_length=4, match_count=sum(counts)),
    )


def play(
    budget: AdaptiveBudget,
    proposals: list[Proposal],
    accept: int,
    *,
    row_us: float,
    sessions: int = 1,
    wait_us: float = 500.0,
) -> Choice:
    """One round whose first `accept` rows hold, on a target that takes 16 ms and `row_us` a row."""
    choice = budget.choose(merge_by_full_prefix(proposals, budget=64), proposals, wait_us)
    rows = len(choice.graph)
    accepted = tuple(range(min(accept, rows)))
    pass_rows = (rows + 1) * sessions
    target_us = STEP_US + row_us * pass_rows
    receipt = Receipt(
        "s", 0, "", "", 1, 1, (1,) * (len(accepted) + 1), accepted, Closing.BONUS,
        timings=VerifyTimings(target_us=target_us / sessions), pass_rows=pass_rows, pass_sessions=sessions,
    )  # fmt: skip
    names = {p.source for p in proposals}
    ledger = RoundLedger(
        verify=target_us,
        other=OUTSIDE_US + wait_us,
        proposed_by=dict.fromkeys(names, rows),
        accepted_by=dict.fromkeys(names, len(accepted)),
    )
    budget.learn(choice, receipt, ledger, dict.fromkeys(names, wait_us))
    return choice


def test_what_always_holds_is_verified_whole_where_rows_are_cheap() -> None:
    budget = AdaptiveBudget(Experience())
    for _ in range(40):
        choice = play(budget, [chain(12)], 12, row_us=100.0)
    assert len(choice.graph) == 12
    assert choice.expected_tokens > 10


def test_what_never_holds_is_soon_not_verified_and_then_rarely_asked() -> None:
    budget = AdaptiveBudget(Experience())
    asked = 0
    for _ in range(200):
        if budget.asked("lookup"):
            asked += 1
            play(budget, [chain(8)], 0, row_us=1_500.0)
        else:
            play(budget, [], 0, row_us=1_500.0)
    assert len(budget.choose(merge_by_full_prefix([chain(8)], budget=64), [chain(8)], 0.0).graph) <= 1
    assert asked < 40


def test_dear_rows_shorten_a_chain_that_mostly_holds() -> None:
    lengths = []
    for row_us in (100.0, 4_000.0):
        budget = AdaptiveBudget(Experience())
        for index in range(120):
            choice = play(budget, [chain(12)], 12 if index % 2 else 2, row_us=row_us)
        lengths.append(len(choice.graph))
    assert lengths[0] > lengths[1]


def test_sessions_that_share_a_pass_make_rows_dearer() -> None:
    lengths = []
    for sessions in (1, 16):
        budget = AdaptiveBudget(Experience())
        for index in range(120):
            choice = play(budget, [chain(12)], 12 if index % 2 else 2, row_us=400.0, sessions=sessions)
        lengths.append(len(choice.graph))
    assert lengths[0] > lengths[1]


def test_rare_branches_are_left_out_and_ancestors_kept() -> None:
    budget = AdaptiveBudget(Experience())
    play(budget, [], 0, row_us=2_500.0)
    proposal = fan([96, 2, 2])
    graph = merge_by_full_prefix([proposal], budget=64)
    choice = budget.choose(graph, [proposal], 0.0)
    assert choice.graph.token_ids.tolist() == [10, 50]
    assert choice.graph.parents.tolist() == [-1, 0]
    assert choice.offered == 6
    check_graph(choice.graph, vocab_size=100, max_rows=64)


def test_nothing_is_dropped_before_a_pass_was_timed() -> None:
    proposal = chain(8)
    graph = merge_by_full_prefix([proposal], budget=64)
    assert AdaptiveBudget(Experience()).choose(graph, [proposal], 0.0).graph is graph


def test_a_session_starts_with_what_earlier_ones_learned() -> None:
    experience = Experience()
    first = AdaptiveBudget(experience)
    for _ in range(60):
        play(first, [chain(8)], 0, row_us=1_500.0)
    proposal = chain(8)
    graph = merge_by_full_prefix([proposal], budget=64)
    assert len(AdaptiveBudget(experience).choose(graph, [proposal], 0.0).graph) <= 2


def test_text_that_begins_to_repeat_is_drafted_again() -> None:
    budget = AdaptiveBudget(Experience())
    for _ in range(150):
        play(budget, [chain(8)] if budget.asked("lookup") else [], 0, row_us=1_500.0)
    for _ in range(400):
        choice = play(budget, [chain(8)] if budget.asked("lookup") else [], 8, row_us=1_500.0)
    assert len(choice.graph) == 8


def test_choices_do_not_oscillate_on_steady_text() -> None:
    budget = AdaptiveBudget(Experience())
    sizes = [len(play(budget, [chain(8)], 3, row_us=1_000.0).graph) for _ in range(300)]
    assert len(set(sizes[100:])) == 1


def test_a_source_out_of_favour_is_asked_ever_more_rarely_and_comes_back() -> None:
    worth = SourceWorth()
    asked = []
    for number in range(120):
        if worth.wanted(number):
            asked.append(number)
            worth.judge(number, -1_000.0, 300.0)
    gaps = np.diff(asked)
    assert (gaps[:11] == 1).all()
    assert gaps[-3:].tolist() == sorted(gaps[-3:].tolist())
    assert gaps.max() <= 33
    number = asked[-1] + gaps.max()
    for _ in range(8):
        while not worth.wanted(number):
            number += 1
        worth.judge(number, 20_000.0, 300.0)
    assert worth.wanted(number + 1)


def test_one_bad_round_pauses_nothing() -> None:
    worth = SourceWorth()
    for number in range(50):
        worth.judge(number, 5_000.0, 300.0)
    worth.judge(50, -3_000.0, 300.0)
    assert worth.wanted(51)


def test_pass_times_find_the_line() -> None:
    times = PassTimes()
    for rows in (1, 5, 2, 9, 1, 3) * 20:
        times.add(rows, 1, 12_000.0 + 1_700.0 * rows, 2_000.0)
    base, row = times.line()
    assert base == pytest.approx(12_000.0)
    assert row == pytest.approx(1_700.0)
    assert times.outside_us == pytest.approx(2_000.0)


def test_pass_times_follow_a_change_of_load() -> None:
    times = PassTimes()
    for rows in (1, 4) * 200:
        times.add(rows, 1, 10_000.0 + 100.0 * rows, 0.0)
    for rows in (8, 32) * 200:
        times.add(rows, 8, 10_000.0 + 1_000.0 * rows, 0.0)
    assert times.line()[1] == pytest.approx(1_000.0, rel=0.05)
    assert times.sessions == pytest.approx(8.0, rel=0.01)


def test_passes_of_one_size_give_a_cautious_slope() -> None:
    times = PassTimes()
    for _ in range(10):
        times.add(1, 1, 11_000.0, 0.0)
    base, row = times.line()
    assert base + row == pytest.approx(11_000.0)
    assert row > 0


def test_trials_of_a_session_outweigh_what_is_shared() -> None:
    shared = Trials()
    what = evidence("lookup", 3, 1.0, 1)
    for _ in range(100):
        shared.add(what, accepted=True)
    session = Trials(shared)
    before = session.rate(what)
    for _ in range(50):
        session.add(what, accepted=False)
    assert before > 0.9
    assert session.rate(what) < 0.2
    assert 0.0 < Trials().rate(evidence("other", 9, 1.0, 7)) < 1.0


def test_rows_are_never_kept_without_their_ancestors_nor_dropped_from_laws() -> None:
    graph = merge_by_full_prefix([chain(4)], budget=64)
    with pytest.raises(InvalidArgument) as refused:
        keep_rows(graph, [0, 2])
    assert refused.value.field == "rows"
    assert keep_rows(graph, [0, 1]).draws == graph.draws[:2]


@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_the_text_does_not_depend_on_the_budget(policy) -> None:
    def generate(budget: str):
        proposer = FakeProposer({"prompt_lookup": lookup, "oracle": oracle(babble)})
        retriever = FakeRetriever({"book": corpus()})
        settings = OrchestratorSettings(budget=budget)
        return orchestrator(FakeVerifier(), proposers=[proposer], retrievers=[retriever], settings=settings).generate

    sources = ("prompt_lookup", "oracle", "retrieval")
    fixed, _ = await collect(generate("fixed")(ask(policy=policy, sources=sources)))
    adaptive, _ = await collect(generate("adaptive")(ask(policy=policy, sources=sources)))
    assert tokens_of(adaptive) == tokens_of(fixed)


def ranked(probabilities: list[float]) -> Proposal:
    """Children of the anchor as a head offers them, with the probabilities of its own law."""
    nodes = tuple(
        ProposalNode(10 + index, -1, 1, "head", "head", score=float(np.log(probability)))
        for index, probability in enumerate(probabilities)
    )
    return Proposal("head", nodes, ProbabilitySemantics.SCORE_ONLY, SamplingRelation.BEAM, Topology.TREE, "")


def test_a_drafters_own_probabilities_choose_its_rows_from_the_start() -> None:
    budget = AdaptiveBudget(Experience())
    play(budget, [], 0, row_us=3_000.0)
    sure = play(budget, [ranked([0.9, 0.06])], 1, row_us=3_000.0)
    assert sure.graph.token_ids.tolist() == [10]
    assert len(play(budget, [ranked([0.06, 0.05])], 0, row_us=3_000.0).graph) == 0


def test_an_overconfident_law_is_found_out() -> None:
    budget = AdaptiveBudget(Experience())
    play(budget, [], 0, row_us=3_000.0)
    verified = [len(play(budget, [ranked([0.9])], 0, row_us=3_000.0).graph) for _ in range(40)]
    assert verified[0] == 1
    assert sum(verified[20:]) <= 2


def test_a_source_that_did_not_pay_in_earlier_sessions_is_paused_sooner() -> None:
    def rounds_until_paused(experience: Experience) -> int:
        budget = AdaptiveBudget(experience)
        for number in range(60):
            if not budget.asked("head"):
                return number
            play(budget, [ranked([0.5])], 0, row_us=1_000.0, wait_us=9_000.0)
        return 60

    experience = Experience()
    counts = [rounds_until_paused(experience) for _ in range(8)]
    assert counts[0] == 12
    assert counts[-1] == 1


def test_a_source_that_paid_in_earlier_sessions_is_not_paused_by_one_bad_round() -> None:
    experience = Experience()
    for _ in range(4):
        budget = AdaptiveBudget(experience)
        for _ in range(20):
            play(budget, [ranked([0.9])], 1, row_us=1_000.0, wait_us=3_000.0)
    budget = AdaptiveBudget(experience)
    play(budget, [ranked([0.9])], 0, row_us=1_000.0, wait_us=3_000.0)
    assert budget.asked("head")
