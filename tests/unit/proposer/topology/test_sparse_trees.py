"""Medusa's sparse tree as a plan: the search's own nodes, whatever the round's budget and depth."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.calibration import CalibrationUse
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.manifest import TargetIdentity
from contracts.tree_shape import TreeShape, shape_from_paths
from proposer.topology.acceptance import expected_tokens
from proposer.topology.calibrated import rates, sparse_plan_of
from proposer.topology.cartesian import cartesian
from proposer.topology.medusa_search import sparse_search
from proposer.topology.plan import SparseTree
from tests.unit.proposer.topology.calibrations import GREEDY, TARGET, calibration

TABLE = np.array([[0.6, 0.2, 0.1], [0.5, 0.3, 0.05], [0.4, 0.1, 0.1]])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("nodes", [1, 4, 9, 20])
def test_a_rounds_shape_is_the_search_within_its_budget_and_depth(nodes: int, depth: int) -> None:
    plan = SparseTree(TABLE, 16)
    shape = plan.shape(nodes, depth)
    assert shape == shape_from_paths(sparse_search(TABLE[:depth], min(nodes, 16)))
    assert len(shape) <= min(nodes, 16)
    assert shape.max_depth <= depth
    # No complete tree of as many nodes earns more.
    for widths in ((1, 1, 1), (2, 2, 2), (3, 1, 1), (3, 3, 3)):
        rival = cartesian(widths, nodes=len(shape), depth=depth)
        assert len(rival) > len(shape) or expected_tokens(rival, TABLE) <= expected_tokens(shape, TABLE) + 1e-12


def test_without_budget_or_depth_there_is_nothing() -> None:
    plan = SparseTree(TABLE, 16)
    assert plan.shape(0, 3) == plan.shape(5, 0) == plan.shape(-1, -1) == TreeShape()


def test_a_calibrations_counts_make_it_and_say_where_it_holds() -> None:
    made = calibration()
    plan = sparse_plan_of(CalibrationUse(made), nodes=5)
    assert plan.shape(8, 8) == shape_from_paths(sparse_search(rates(made.trials, made.hits), 5))
    assert plan.label == f"calibration:{made.hash}"
    assert plan.to_json()["calibration"] == plan.label
    other = TargetIdentity("other", "d" * 64, "t" * 64, 97, 512, "float32", "cpu", "test")
    plan.check(TARGET, GREEDY, "greedy")
    with pytest.raises(FailedPrecondition):
        plan.check(other, GREEDY, "greedy")
    with pytest.raises(FailedPrecondition):
        plan.check_source("", "independent")
    sparse_plan_of(CalibrationUse(made, forced=True)).check(other, GREEDY, "greedy")


def test_what_are_no_accuracies_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="accuracies"):
        SparseTree(np.array([[0.9, 0.2]]), 4)
    with pytest.raises(InvalidArgument, match="nodes"):
        SparseTree(TABLE, 0)
