from __future__ import annotations

import numpy as np
import pytest

from contracts.calibration import CalibrationUse
from contracts.errors import InvalidArgument
from contracts.tree_shape import TreeShape, chain
from proposer.topology.acceptance import expected_tokens, reach, selected_from_conditional, selected_table
from proposer.topology.cartesian import cartesian
from proposer.topology.eagle2 import DynamicTree
from proposer.topology.hardware import RoundCosts, TargetCurve, choose
from proposer.topology.medusa_search import sparse_search
from proposer.topology.plan import CalibratedTree, CompleteTree, FixedTree
from proposer.topology.sequoia import expected_by_size
from tests.oracle.topology.medusa_buffers import candidate_slots
from tests.unit.proposer.topology.calibrations import calibration

CURVE = TargetCurve((1, 2, 4, 8), (10.0, 10.5, 11.0, 14.0))


def test_a_cartesian_tree_has_the_sum_of_the_products_of_its_widths() -> None:
    shape = cartesian((3, 2, 2), nodes=64)
    assert len(shape) == 3 + 6 + 12
    assert np.bincount(shape.depths).tolist() == [0, 3, 6, 12]


def test_the_last_width_holds_for_deeper_levels_and_the_budget_cuts_breadth_first() -> None:
    assert cartesian((2, 1), nodes=7, depth=4).parents == (-1, -1, 0, 1, 2, 3, 4)
    assert cartesian((1,), nodes=3, depth=9) == chain(3)
    assert cartesian((2,), nodes=0) == TreeShape()


def test_conditional_rates_become_selected_probabilities_by_the_chain_rule() -> None:
    np.testing.assert_allclose(selected_from_conditional([0.5, 0.5, 1.0]), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(selected_from_conditional([[1.0, 0.5], [0.0, 0.5]]), [[1.0, 0.0], [0.0, 0.5]])


@pytest.mark.parametrize("bad", [[0.6, 0.5], [-0.1], [1.1], [float("nan")], []])
def test_what_is_no_acceptance_table_is_refused(bad: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="acceptance"):
        selected_table(bad)


def test_reach_is_the_product_along_the_path_and_unmeasured_ranks_earn_nothing() -> None:
    table = selected_table([[0.5, 0.25], [0.4, 0.1]])
    shape = TreeShape((-1, -1, -1, 0, 1, 3))
    np.testing.assert_allclose(reach(shape, table), [0.5, 0.25, 0.0, 0.2, 0.1, 0.08])
    assert expected_tokens(shape, table) == pytest.approx(2.13)


def test_a_table_by_depth_prefers_width_where_the_deep_levels_fail() -> None:
    by_depth = [[0.5, 0.4], [0.05, 0.05]]
    plan = CalibratedTree(selected_table(by_depth), RoundCosts(CURVE), 2, 2)
    assert plan.shape(2, 2) == TreeShape((-1, -1))


def test_the_curve_is_linear_between_points_and_silent_beyond() -> None:
    assert CURVE.at(3) == pytest.approx(10.75)
    for rows in (0, 9):
        with pytest.raises(InvalidArgument, match="outside the measured"):
            CURVE.at(rows)
    for rows, us in [((2, 3), (1.0, 1.0)), ((1, 1), (1.0, 1.0)), ((1,), (0.0,)), ((1, 2), (1.0,))]:
        with pytest.raises(InvalidArgument, match="target_curve"):
            TargetCurve(rows, us)


def test_where_drafting_does_not_pay_nothing_is_drafted() -> None:
    costs = RoundCosts(CURVE, draft_us=20.0)
    choice = choose(expected_by_size([0.5, 0.2], 8, 4), costs)
    assert (choice.nodes, choice.depth, choice.expected, choice.speedup) == (1, 0, 1.0, 1.0)
    plan = CalibratedTree(selected_table([0.5, 0.2]), costs, 7, 4)
    assert plan.shape(7, 4) == TreeShape()


def test_dear_drafting_makes_the_tree_shallow() -> None:
    deep = choose(expected_by_size([0.6, 0.2], 8, 6), RoundCosts(CURVE, draft_us=0.1))
    shallow = choose(expected_by_size([0.6, 0.2], 8, 6), RoundCosts(CURVE, draft_us=3.0))
    assert shallow.depth < deep.depth
    assert deep.speedup > shallow.speedup > 1.0


def test_of_equally_good_sizes_the_smallest_is_chosen() -> None:
    flat = RoundCosts(TargetCurve((1, 8), (10.0, 10.0)))
    assert choose(expected_by_size([0.5, 0.0], 8, 2), flat).nodes == 3


def test_a_plan_gives_each_budget_its_own_best_tree_and_not_a_cut_one() -> None:
    plan = CalibratedTree(selected_table([0.7, 0.2]), RoundCosts(TargetCurve((1, 16), (10.0, 10.1))), 15, 6)
    assert plan.shape(4, 6) == chain(4)
    assert plan.shape(15, 6).within(4) != chain(4)


def test_plans_name_what_shapes_them() -> None:
    curve = TargetCurve((1, 8), (10.0, 12.0))
    plans = [
        CompleteTree((2, 1)),
        CompleteTree((2,)),
        FixedTree(chain(3)),
        CalibratedTree(selected_table([0.5]), RoundCosts(curve), 4, 4),
        CalibratedTree(selected_table([0.5]), RoundCosts(curve, draft_us=1.0), 4, 4),
        CalibratedTree(selected_table([0.5]), RoundCosts(curve), 4, 4, calibration=CalibrationUse(calibration())),
    ]
    named = [repr(plan.to_json()) for plan in plans]
    assert len(set(named)) == len(plans)


def test_a_plan_larger_than_what_was_measured_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="measured rows"):
        CalibratedTree(selected_table([0.5]), RoundCosts(CURVE), 8, 4)


def test_of_equal_gains_the_first_found_wins() -> None:
    assert sparse_search([[0.5, 0.5], [0.5, 0.5]], 4) == ((0,), (1,), (0, 0), (1, 0))


def test_slots_beyond_the_heads_candidates_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="top_k"):
        candidate_slots(TreeShape((-1, -1, -1)), 2)


def test_a_tree_grown_from_equal_values_keeps_the_older() -> None:
    tree = DynamicTree(2)
    tree.add(-1, [5, 6], [0.0, 0.0])
    for node in tree.frontier():
        tree.add(node, [7, 8], [0.0, -1.0])
    assert tree.rerank(3).tokens == (5, 6, 7)
    with pytest.raises(InvalidArgument, match="log_probs"):
        tree.add(0, [1], [0.1])
