from __future__ import annotations

import numpy as np
import pytest

from contracts.calibration import CalibrationUse
from contracts.draft_law import law_from_probabilities
from contracts.errors import FailedPrecondition
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.manifest import TargetIdentity
from contracts.proposal import Proposal
from contracts.sampling import SamplingPolicy
from proposer.topology.acceptance import selected_table
from proposer.topology.calibrated import AcceptanceTally, comb, costs_of, plan_of, rates
from tests.helpers.proposals import drawn_proposal, paths_proposal
from tests.unit.proposer.topology.calibrations import GREEDY, TARGET, calibration

ELSEWHERE = TargetIdentity("other", "d" * 64, "t" * 64, 97, 512, "float32", "cpu", "test")


def test_a_comb_tries_every_rank_below_the_first_child_of_each_level() -> None:
    shape = comb(3, 2)
    assert shape.paths == ((0,), (1,), (2,), (0, 0), (0, 1), (0, 2))


def graph_of(*proposals: Proposal) -> CandidateGraph:
    return merge_by_full_prefix(proposals, budget=64)


OFFER = paths_proposal("p", [[1, 4], [1, 5], [2], [3]])


def test_a_round_counts_the_offered_ranks_of_every_reached_parent() -> None:
    graph = graph_of(OFFER)
    assert graph.token_ids.tolist() == [1, 4, 5, 2, 3]
    tally = AcceptanceTally(depths=2, ranks=2)
    tally.add(graph, [0, 2], source="p")
    tally.add(graph, [4], source="p")
    tally.add(graph, [], source="p")
    assert tally.counts == (((3, 3), (1, 1)), ((1, 0), (0, 1)))


def test_where_generation_ended_the_next_choice_is_unknown() -> None:
    tally = AcceptanceTally(depths=2, ranks=2)
    tally.add(graph_of(OFFER), [0], source="p", ended=True)
    assert tally.counts == (((1, 1), (0, 0)), ((1, 0), (0, 0)))


def test_a_drawn_repeat_counts_for_its_first_draw() -> None:
    law = law_from_probabilities([7, 8], [0.5, 0.5])
    graph = graph_of(drawn_proposal("p", [(7, -1), (7, -1), (8, -1)], {-1: law}))
    tally = AcceptanceTally(depths=1, ranks=3)
    tally.add(graph, [1], source="p")
    assert tally.counts == (((1, 1, 0),), ((0, 1, 0),))


def test_another_sources_path_is_not_counted() -> None:
    graph = graph_of(paths_proposal("q", [[9, 9]]), OFFER)
    tally = AcceptanceTally(depths=2, ranks=3)
    tally.add(graph, [0, 1], source="p")
    assert tally.counts == (((1, 1, 1), (0, 0, 0)), ((0, 0, 0), (0, 0, 0)))


def test_pooled_rates_are_the_counts_and_rates_by_depth_lean_on_them() -> None:
    trials, hits = ((100, 100), (4, 4)), ((50, 10), (4, 0))
    pooled = rates(trials, hits, by_depth=False)
    np.testing.assert_allclose(pooled, [[54 / 104, 10 / 104]])
    by_depth = rates(trials, hits)
    assert pooled[0, 0] < by_depth[1, 0] < 1.0
    selected_table(by_depth)


def test_rows_that_repeats_push_over_one_are_scaled() -> None:
    table = rates(((10, 2),), ((10, 2),), by_depth=False)
    np.testing.assert_allclose(table, [[0.5, 0.5]])


def test_a_plan_takes_its_costs_and_limits_from_the_calibration() -> None:
    plan = plan_of(CalibrationUse(calibration()))
    assert (plan.nodes, plan.depth) == (7, 2)
    costs = costs_of(calibration())
    assert costs.round_us(1, 0) == pytest.approx(10.2)
    assert costs.round_us(4, 2) == pytest.approx(11.0 + 0.2 + 0.1 + 2 * 0.5)
    assert 0 < len(plan.shape(7, 2)) <= 7
    assert plan.label == f"calibration:{calibration().hash}"


def test_a_plan_is_refused_where_its_calibration_does_not_hold() -> None:
    plan = plan_of(CalibrationUse(calibration()))
    plan.check(TARGET, GREEDY)
    with pytest.raises(FailedPrecondition, match="checkpoint_digest"):
        plan.check(ELSEWHERE, GREEDY)
    with pytest.raises(FailedPrecondition, match="temperatures"):
        plan.check(TARGET, SamplingPolicy())
    plan_of(CalibrationUse(calibration(), forced=True)).check(ELSEWHERE, GREEDY)
