"""The adaptive budget: what it verifies under which costs and chances, and that the text never depends on it."""

from collections.abc import Sequence

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.graph import check_graph, keep_rows, merge_by_full_prefix
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal, ProposalNode, SourceCost
from contracts.receipt import Closing, Receipt, VerifyTimings
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.base import Choice
from orchestrator.budget.evidence import evidence
from orchestrator.budget.experience import Experience
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import FakeProposer, FakeRetriever, FakeVerifier, babble, collect, lookup, oracle
from tests.helpers.generation import GREEDY, SAMPLED, ask, corpus, orchestrator, tokens_of

STEP_US, OUTSIDE_US = 16_000.0, 2_000.0


def chain(length: int, source: str = "lookup", match_length: int = 3) -> Proposal:
    """More of a text that repeats one token."""
    return Proposal(
        source,
        tuple(ProposalNode(7, i - 1, i + 1, source, source) for i in range(length)),
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


def asks(budget: AdaptiveBudget, source: str, offers: Sequence[Proposal] = ()) -> bool:
    """Whether the next round asks it."""
    return budget.asked(source) and (not budget.dear(source) or budget.worth_asking(source, offers))


def play(
    budget: AdaptiveBudget,
    proposals: list[Proposal],
    accept: int,
    *,
    row_us: float,
    sessions: int = 1,
    wait_us: float = 500.0,
    stall_us: float = 0.0,
) -> Choice:
    """One round in which the first `accept` rows come true, on a target that takes 16 ms and `row_us` a row."""
    graph = merge_by_full_prefix(proposals, budget=64)
    choice = budget.choose(graph, proposals)
    rows = len(choice.graph)
    accepted = tuple(range(min(accept, rows)))
    text = (*graph.token_ids[: min(accept, len(graph))].tolist(), 99)
    pass_rows = (rows + 1) * sessions
    pass_us = STEP_US + row_us * pass_rows + stall_us
    share_us = pass_us / sessions
    receipt = Receipt(
        "s", 0, "", "", 1, 1, text[: len(accepted) + 1], accepted, Closing.BONUS,
        timings=VerifyTimings(queue_us=pass_us - share_us, target_us=share_us),
        pass_rows=pass_rows, pass_sessions=sessions,
    )  # fmt: skip
    names = {p.source for p in proposals}
    ledger = RoundLedger(
        verify=share_us,
        queue=pass_us - share_us,
        other=OUTSIDE_US + wait_us + stall_us,
        committed=len(accepted) + 1,
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
    asked: list[int] = []
    for number in range(200):
        if budget.asked("lookup"):
            asked.append(number)
            play(budget, [chain(8)], 0, row_us=1_500.0)
        else:
            play(budget, [], 0, row_us=1_500.0)
    assert len(budget.choose(merge_by_full_prefix([chain(8)], budget=64), [chain(8)]).graph) <= 1
    assert sum(number >= 100 for number in asked) < 12


def test_dear_rows_shorten_a_chain_that_mostly_holds() -> None:
    lengths = []
    for row_us in (100.0, 8_000.0):
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
    choice = budget.choose(graph, [proposal])
    assert choice.graph.token_ids.tolist() == [10, 50]
    assert choice.graph.parents.tolist() == [-1, 0]
    assert choice.offered == 6
    check_graph(choice.graph, vocab_size=100, max_rows=64)


def test_nothing_is_dropped_before_a_pass_was_timed() -> None:
    proposal = chain(8)
    graph = merge_by_full_prefix([proposal], budget=64)
    assert AdaptiveBudget(Experience()).choose(graph, [proposal]).graph is graph


def test_a_session_starts_with_what_earlier_ones_learned() -> None:
    experience = Experience()
    first = AdaptiveBudget(experience)
    for _ in range(60):
        play(first, [chain(8)], 0, row_us=1_500.0)
    proposal = chain(8)
    graph = merge_by_full_prefix([proposal], budget=64)
    assert len(AdaptiveBudget(experience).choose(graph, [proposal]).graph) <= 2


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
            if not asks(budget, "head"):
                return number
            play(budget, [ranked([0.5])], 0, row_us=1_000.0, wait_us=9_000.0)
        return 60

    experience = Experience()
    counts = [rounds_until_paused(experience) for _ in range(8)]
    assert counts[0] == 12
    # A dear source: every session asks once, and what its text then shows counts.
    assert counts[-1] == 1


def test_a_source_that_paid_in_earlier_sessions_is_not_paused_by_one_bad_round() -> None:
    experience = Experience()
    for _ in range(4):
        budget = AdaptiveBudget(experience)
        for _ in range(20):
            play(budget, [ranked([0.9])], 1, row_us=1_000.0, wait_us=3_000.0)
    budget = AdaptiveBudget(experience)
    play(budget, [ranked([0.9])], 0, row_us=1_000.0, wait_us=3_000.0)
    assert asks(budget, "head")


def test_what_was_not_verified_is_learned_from_all_the_same() -> None:
    """Rows so dear that none is verified at first: the text itself shows that the chain would have held."""
    experience = Experience()
    budget = AdaptiveBudget(experience)
    for _ in range(80):
        play(budget, [chain(8, match_length=1)], 0, row_us=4_000.0)
    assert len(play(budget, [chain(8, match_length=1)], 8, row_us=4_000.0).graph) == 0
    sizes = [len(play(budget, [chain(8, match_length=1)], 8, row_us=4_000.0).graph) for _ in range(60)]
    assert sizes[-1] == 8


def test_stalls_do_not_change_what_is_verified() -> None:
    """Now and then the process or the target stands still for seconds, as where a machine is shared."""

    def sizes(stall_us: float) -> list[int]:
        budget = AdaptiveBudget(Experience())
        return [
            len(play(budget, [chain(8)], 3, row_us=1_000.0, stall_us=stall_us if number % 50 == 49 else 0.0).graph)
            for number in range(300)
        ]

    calm, disturbed = sizes(0.0), sizes(30e6)
    assert calm[100:] == disturbed[100:]


def test_rows_within_a_tile_are_used() -> None:
    """Passes of up to six rows take the same time: then as many are verified, and no more where they seldom hold."""

    def size(tile: int) -> int:
        experience = Experience()
        for rows in range(1, 17):
            receipt = Receipt("s", 0, "", "", 1, 1, (99,), (), Closing.BONUS, pass_rows=rows, pass_sessions=1)
            for _ in range(40):
                pass_us = 13_000.0 if rows <= tile else 13_000.0 + 4_000.0 * (rows - tile)
                experience.add_round(receipt, pass_us=pass_us, idle_us=3_000.0)
        for _ in range(40):
            experience.trials.add(evidence("lookup", 3, 1.0, 1), accepted=True)
        for depth in (2, 3, 4):
            for number in range(400):
                experience.trials.add(evidence("lookup", 3, 1.0, depth), accepted=number % 2 == 0)
        graph = merge_by_full_prefix([chain(12)], budget=64)
        return len(AdaptiveBudget(experience).choose(graph, [chain(12)]).graph)

    assert size(6) == 5
    assert size(4) == 3


def test_a_session_that_waits_for_others_passes_counts_no_idle_target() -> None:
    """Where the target is busy all the time, what a round does meanwhile costs it nothing, and rows count in full."""
    busy, alone = Experience(), Experience()
    for experience, waited_us in ((busy, 30_000.0), (alone, 0.0)):
        budget = AdaptiveBudget(experience)
        proposal = chain(4)
        choice = budget.choose(merge_by_full_prefix([proposal], budget=64), [proposal])
        timings = VerifyTimings(queue_us=waited_us, target_us=15_000.0)
        receipt = Receipt(
            "s", 0, "", "", 1, 1, (99,), (), Closing.BONUS, timings=timings, pass_rows=5, pass_sessions=1
        )  # fmt: skip
        budget.learn(choice, receipt, RoundLedger(verify=15_000.0, queue=waited_us, wire=4_000.0), {})
    assert busy.idle_us.value == 0.0
    assert alone.idle_us.value == pytest.approx(4_000.0)
