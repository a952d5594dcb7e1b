"""The parts of the adaptive budget: times by rows, counted chances, what the text shows of offers, pauses."""

import math
import random

import numpy as np
import pytest

from contracts.graph import EMPTY_GRAPH, merge_by_full_prefix
from contracts.proposal import Proposal, ProposalNode, SourceCost
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.budget.acceptance import Trials
from orchestrator.budget.evidence import ALONE, AMONG_OTHERS, SHARED, evidence, known_of
from orchestrator.budget.experience import Experience
from orchestrator.budget.hindsight import Hindsight
from orchestrator.budget.pass_times import PassTimes
from orchestrator.budget.pauses import SourceWorth
from orchestrator.budget.running import Running


def offer(source: str, tokens: list[int], parents: list[int], counts: list[int] | None = None) -> Proposal:
    nodes: list[ProposalNode] = []
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        depth = 1 if parent < 0 else nodes[parent].depth + 1
        score = None if counts is None else float(counts[index])
        nodes.append(ProposalNode(token, parent, depth, source, source, score=score))
    return Proposal(
        source,
        tuple(nodes),
        ProbabilitySemantics.ABSENT if counts is None else ProbabilitySemantics.FREQUENCY,
        SamplingRelation.DETERMINISTIC_LOOKUP,
        Topology.TREE,
        "",
        cost=SourceCost(match_length=3, match_count=10),
    )


def stepped(rows: int) -> float:
    """A target whose kernels take six rows at a time."""
    return 12_000.0 + 4_000.0 * math.ceil(rows / 6)


def test_pass_times_find_the_steps() -> None:
    times = PassTimes()
    for rows in (1, 5, 6, 7, 2, 9, 12, 13, 1, 3, 4, 8) * 40:
        times.add(rows, stepped(rows))
    for rows in (1, 6, 7, 12, 13):
        assert times.us(rows) == pytest.approx(stepped(rows), rel=0.03)


def test_pass_times_extrapolate_by_the_line() -> None:
    times = PassTimes()
    for rows in (1, 5, 2, 9, 1, 3) * 20:
        times.add(rows, 12_000.0 + 1_700.0 * rows)
    assert times.us(16) == pytest.approx(12_000.0 + 1_700.0 * 16, rel=0.03)
    assert times.us(600) == pytest.approx(12_000.0 + 1_700.0 * 600, rel=0.05)


def test_pass_times_keep_their_shape_through_slow_spells_and_stalls() -> None:
    coins = random.Random(5)
    times = PassTimes()
    slow = 1.0
    for number in range(1_200):
        if number % 50 == 0:
            slow = coins.choice([1.0, 1.6])
        rows = coins.choice([1, 1, 1, 2, 3, 3, 5, 9])
        stall = 50.0 if number % 97 == 0 else coins.choice([1.0] * 15 + [3.0])
        times.add(rows, (12_000.0 + 1_500.0 * rows) * slow * stall * math.exp(coins.gauss(0.0, 0.08)))
    for rows in (3, 5, 9):
        assert times.us(rows) / times.us(1) == pytest.approx((12_000.0 + 1_500.0 * rows) / 13_500.0, rel=0.1)


def test_pass_times_follow_a_change_of_load_at_all_sizes() -> None:
    times = PassTimes()
    for rows in (1, 4, 8) * 100:
        times.add(rows, 10_000.0 + 500.0 * rows)
    for _ in range(60):
        times.add(4, 2.0 * (10_000.0 + 500.0 * 4))
    assert times.us(4) == pytest.approx(24_000.0, rel=0.02)
    assert times.us(8) == pytest.approx(28_000.0, rel=0.15)


def test_pass_times_never_fall_with_rows() -> None:
    times = PassTimes()
    for rows, pass_us in ((1, 20_000.0), (4, 15_000.0), (8, 14_000.0), (40, 16_000.0)) * 20:
        times.add(rows, pass_us)
    curve = [times.us(rows) for rows in range(1, 600)]
    assert (np.diff(curve) >= -1e-6).all()


def test_passes_of_one_size_give_a_cautious_slope() -> None:
    times = PassTimes()
    assert times.us(1) == 0.0
    for _ in range(10):
        times.add(1, 11_000.0)
    assert times.us(1) == pytest.approx(11_000.0)
    assert 11_000.0 < times.us(2) < 12_000.0


def test_a_running_mean_follows_changes_and_not_stalls() -> None:
    mean = Running(1_000.0)
    assert not mean.known
    mean.add(4_000.0)
    mean.add(30e6)
    assert mean.value == pytest.approx(4_250.0)
    for _ in range(60):
        mean.add(8_000.0)
    assert mean.value == pytest.approx(8_000.0, rel=0.01)


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


def test_what_was_never_seen_in_some_company_goes_by_what_was_seen_in_any() -> None:
    shared = Trials()
    for _ in range(100):
        shared.add(evidence("lookup", 3, 1.0, 1, ALONE), accepted=False)
    assert shared.rate(evidence("lookup", 3, 1.0, 1, SHARED)) < 0.15
    assert shared.rate(evidence("lookup", 9, 1.0, 1, SHARED)) > 0.5


def test_evidence_says_what_others_offered_at_the_same_place() -> None:
    proposals = [offer("lookup", [1, 2], [-1, 0]), offer("retrieval", [1, 3, 4], [-1, -1, 0], [6, 3, 5])]
    graph = merge_by_full_prefix(proposals, budget=16)
    known = {
        (int(graph.token_ids[row]), what.source): what
        for row, facts in enumerate(known_of(graph, proposals))
        for what in facts
    }
    assert {key: what.company for key, what in known.items()} == {
        (1, "lookup"): SHARED,
        (1, "retrieval"): SHARED,
        (2, "lookup"): AMONG_OTHERS,
        (3, "retrieval"): AMONG_OTHERS,
        (4, "retrieval"): AMONG_OTHERS,
    }
    assert known[1, "retrieval"] == evidence("retrieval", 3, 6 / 11, 1, SHARED)
    assert known[4, "retrieval"] == evidence("retrieval", 3, 5 / 7, 2, AMONG_OTHERS)


def test_the_text_tries_every_offer_once_and_as_far_as_it_follows() -> None:
    trials = Trials()
    hindsight = Hindsight(trials)
    first = offer("lookup", [1, 2, 3, 4], [-1, 0, 1, 2])
    graph = merge_by_full_prefix([first], budget=16)
    hindsight.offered(graph, known_of(graph, [first]))
    hindsight.published([1])
    second = offer("retrieval", [2, 8, 9], [-1, -1, 1], [5, 5, 5])
    graph = merge_by_full_prefix([second], budget=16)
    hindsight.offered(graph, known_of(graph, [second]))
    hindsight.published([2, 7, 7])
    hindsight.offered(EMPTY_GRAPH, [])
    hindsight.published([3, 4])
    counts = {(what.source, what.depth): count for what, count in trials.snapshot().items() if what.company == ALONE}
    assert counts == {
        ("lookup", 1): (1.0, 1.0),
        ("lookup", 2): (1.0, 1.0),
        ("lookup", 3): (1.0, 0.0),
        ("retrieval", 1): (2.0, 1.0),
    }


def test_a_source_out_of_favour_is_asked_ever_more_rarely_and_comes_back() -> None:
    worth = SourceWorth()
    asked = []
    for number in range(120):
        if worth.next_round_asks():
            asked.append(number)
            worth.judge(-1_000.0, 300.0)
    gaps = np.diff(asked)
    assert (gaps[:11] == 1).all()
    assert gaps[-3:].tolist() == sorted(gaps[-3:].tolist())
    assert gaps.max() <= 33
    for _ in range(8):
        while not worth.next_round_asks():
            pass
        worth.judge(20_000.0, 300.0)
    assert worth.next_round_asks()


def test_one_bad_round_pauses_nothing() -> None:
    worth = SourceWorth()
    for _ in range(50):
        worth.judge(5_000.0, 300.0)
    worth.judge(-3_000.0, 300.0)
    assert worth.next_round_asks()


def test_a_session_that_begins_with_a_pause_asks_after_four_rounds() -> None:
    worth = SourceWorth(-1_000.0, paused=True)
    assert [worth.next_round_asks() for _ in range(6)] == [False] * 4 + [True] * 2


def test_of_the_sessions_after_a_loss_one_in_eight_asks_from_the_start() -> None:
    experience = Experience()
    assert not experience.pauses_from_the_start("head", 0, 300.0)
    for _ in range(48):
        experience.add_worth("head", 5_000.0, -1_000.0)
    assert [experience.pauses_from_the_start("head", 0, 300.0) for _ in range(16)] == ([True] * 7 + [False]) * 2
    assert not experience.pauses_from_the_start("head", 1, 300.0)
    assert not experience.pauses_from_the_start("head", 0, 2_000.0)
