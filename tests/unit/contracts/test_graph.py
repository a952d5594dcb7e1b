"""Merging keeps every draw; budgets trim without looking at what was drawn."""

import numpy as np
import pytest

from contracts.draft_law import law_from_probabilities
from contracts.errors import InvalidArgument
from contracts.graph import EMPTY_GRAPH, check_graph, merge_by_full_prefix
from contracts.topology import SamplingRelation, Topology
from tests.helpers.proposals import drawn_proposal, paths_proposal

LAW = law_from_probabilities([1, 2, 3], [0.5, 0.25, 0.25])


def test_duplicate_draws_share_a_row_and_are_both_remembered_in_order() -> None:
    graph = merge_by_full_prefix([drawn_proposal("d", [(1, -1), (1, -1), (2, -1)], {-1: LAW})], budget=8)
    assert graph.token_ids.tolist() == [1, 2]
    assert [draw.row for draw in graph.draws_at[-1]] == [0, 0, 1]
    assert graph.topology is Topology.SET
    assert graph.laws == (LAW,)


def test_two_drafters_merge_with_each_its_own_law() -> None:
    other = law_from_probabilities([1, 4], [0.5, 0.5])
    graph = merge_by_full_prefix(
        [drawn_proposal("a", [(1, -1)], {-1: LAW}), drawn_proposal("b", [(1, -1)], {-1: other})], budget=8
    )
    assert len(graph) == 1
    assert graph.sources == (("a", "b"),)
    assert [graph.laws[draw.law] for draw in graph.draws] == [LAW, other]


def test_a_budget_trims_draws_with_laws_by_order_and_never_by_value() -> None:
    for first, second in ((1, 1), (1, 2), (3, 2)):
        offer = drawn_proposal("d", [(first, -1), (second, -1), (2, -1)], {-1: LAW})
        graph = merge_by_full_prefix([offer], budget=2)
        assert [int(graph.token_ids[draw.row]) for draw in graph.draws] == [first, second]


def test_a_budget_trims_law_free_offers_by_rows_and_stays_ancestor_closed() -> None:
    graph = merge_by_full_prefix(
        [paths_proposal("a", [[1, 2, 3]]), paths_proposal("b", [[1, 2, 9], [5, 6, 7]])], budget=5
    )
    assert graph.token_ids.tolist() == [1, 2, 3, 9, 5]
    assert graph.parents.tolist() == [-1, 0, 1, 1, -1]
    check_graph(graph, vocab_size=10, max_rows=5)


def test_a_row_past_the_budget_still_counts_every_source_that_offers_a_kept_row() -> None:
    graph = merge_by_full_prefix([paths_proposal("a", [[1]]), paths_proposal("b", [[2], [1]])], budget=1)
    assert graph.sources == (("a", "b"),)


def test_empty_offers_leave_no_semantics_behind() -> None:
    graph = merge_by_full_prefix([paths_proposal("a", [])], budget=4)
    assert len(graph) == 0
    assert graph.semantics == frozenset()
    assert len(EMPTY_GRAPH) == 0


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="node_budget"):
        merge_by_full_prefix([], budget=-1)


def test_relations_of_all_offers_are_collected() -> None:
    graph = merge_by_full_prefix(
        [
            drawn_proposal("d", [(1, -1)], {-1: LAW}, relation=SamplingRelation.WITHOUT_REPLACEMENT),
            paths_proposal("l", [[2]]),
        ],
        budget=4,
    )
    assert graph.relations == {SamplingRelation.WITHOUT_REPLACEMENT, SamplingRelation.DETERMINISTIC_LOOKUP}
    assert np.array_equal(graph.depths, [1, 1])
