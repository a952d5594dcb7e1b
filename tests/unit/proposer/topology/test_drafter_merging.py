from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.draft_law import law_from_probabilities
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.topology import SamplingRelation
from proposer.topology.expansion import expansions, merge_drafters
from tests.helpers.proposals import drawn_proposal, paths_proposal

LAW_A = law_from_probabilities([1, 2, 3], [0.5, 0.3, 0.2])
LAW_B = law_from_probabilities([1, 4], [0.5, 0.5])


def test_the_budget_is_dealt_before_anything_is_drawn_and_small_trees_leave_the_rest() -> None:
    shapes = expansions([(2, 2, 1), (1, 1)], nodes=16)
    assert [len(shape) for shape in shapes] == [8, 2]
    assert [len(shape) for shape in expansions([(1, 1), (3, 3)], nodes=9)] == [2, 7]
    with pytest.raises(InvalidArgument, match="no drafter"):
        expansions([], nodes=4)


def test_equal_prefixes_share_a_row_and_each_draw_keeps_its_own_law() -> None:
    first = drawn_proposal("a", [(1, -1), (2, -1), (3, 0)], {-1: LAW_A, 0: LAW_A})
    second = drawn_proposal("b", [(1, -1), (4, 0)], {-1: LAW_B, 0: LAW_B})
    graph = merge_drafters([first, second], nodes=16)
    assert graph.token_ids.tolist() == [1, 2, 3, 4]
    assert graph.parents.tolist() == [-1, -1, 0, 0]
    assert graph.sources[0] == ("a", "b")
    assert [graph.laws[draw.law] for draw in graph.draws_at[-1]] == [LAW_A, LAW_A, LAW_B]
    assert [graph.laws[draw.law] for draw in graph.draws_at[0]] == [LAW_A, LAW_B]


def test_offers_with_and_without_laws_do_not_merge() -> None:
    drawn = drawn_proposal("a", [(1, -1)], {-1: LAW_A})
    with pytest.raises(FailedPrecondition, match="laws"):
        merge_drafters([drawn, paths_proposal("lookup", [[1, 2]])], nodes=8)
    graph = merge_drafters([paths_proposal("x", [[1, 2]]), paths_proposal("y", [[1, 3]])], nodes=8)
    assert len(graph) == 3


def test_several_drafters_without_replacement_do_not_merge() -> None:
    one = drawn_proposal("a", [(1, -1), (2, -1)], {-1: LAW_A}, relation=SamplingRelation.WITHOUT_REPLACEMENT)
    assert len(merge_drafters([one], nodes=8)) == 2
    with pytest.raises(FailedPrecondition, match="independent"):
        merge_drafters([one, replace(one, source="b")], nodes=8)
