"""M7.7 sections 0x07D-0x07E and 0x0C: the merge trace, its coordinates, and the list of what must be refused."""

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph, Draw, check_commit, check_graph, merge_by_full_prefix
from contracts.topology import Topology, ancestor_mask
from tests.helpers.proposals import paths_proposal, position_ids

A, B, C, D, E, F, X = range(7)
HYDRA = paths_proposal("hydra", [[A, B, C], [A, B, D], [X, B]])
REST = paths_proposal("rest", [[A, B, E], [A, F]])


def test_the_trace_keeps_history_distinct_b_rows_apart() -> None:
    graph = merge_by_full_prefix([HYDRA, REST], budget=64)
    assert graph.token_ids.tolist() == [A, B, C, D, X, B, E, F]
    assert graph.parents.tolist() == [-1, 0, 1, 1, -1, 4, 1, 0]
    assert graph.sources == (
        ("hydra", "rest"),
        ("hydra", "rest"),
        ("hydra",),
        ("hydra",),
        ("hydra",),
        ("hydra",),
        ("rest",),
        ("rest",),
    )
    assert graph.topology is Topology.TREE
    check_graph(graph, vocab_size=7, max_rows=8)


def test_four_paths_compile_into_seven_rows_with_the_whole_mask_right() -> None:
    graph = merge_by_full_prefix([paths_proposal("p", [[A, B, C], [A, B, D], [A, F], [X, B]])], budget=64)
    assert len(graph) == 7
    prefix_of = {-1: ()}
    for row, (token, parent) in enumerate(zip(graph.token_ids.tolist(), graph.parents.tolist(), strict=True)):
        prefix_of[row] = (*prefix_of[parent], token)
    mask = ancestor_mask(graph.parents)
    for u in range(7):
        for v in range(7):
            assert mask[u, v] == (prefix_of[u][: len(prefix_of[v])] == prefix_of[v])


def test_candidate_predictor_and_kv_rows_are_three_coordinates() -> None:
    # [A, B, C, D] with parents [-1, 0, 1, 1]: C and D share predictor row 1 and own rows 2 and 3.
    graph = merge_by_full_prefix([paths_proposal("p", [[A, B, C], [A, B, D]])], budget=64)
    assert graph.parents.tolist() == [-1, 0, 1, 1]
    assert position_ids(graph.parents, 10).tolist() == [10, 11, 12, 12]
    assert graph.children[1] == {C: 2, D: 3}


def test_committing_a_b_d_takes_its_rows_and_no_sibling() -> None:
    graph = merge_by_full_prefix([HYDRA, REST], budget=64)
    check_commit(graph, [0, 1, 3])
    for wrong in ([0, 1, 2, 3], [1], [0, 3], [0, 5], [4, 1], [0, 8]):
        with pytest.raises(InvalidArgument, match="selected"):
            check_commit(graph, wrong)


def graph_of(tokens: list[int], parents: list[int], rows: list[int] | None = None) -> CandidateGraph:
    drawn = range(len(tokens)) if rows is None else rows
    return CandidateGraph(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        tuple(("s",) for _ in tokens),
        tuple(Draw(parents[row] if row < len(parents) else -1, row, "s") for row in drawn),
    )


@pytest.mark.parametrize(
    ("graph", "field"),
    [
        (graph_of([1, 2], [1, 0]), "rows[0].parent"),
        (graph_of([1], [0]), "rows[0].parent"),
        (graph_of([1, 2], [-1, -2]), "rows[1].parent"),
        (graph_of([1, 1], [-1, -1]), "rows"),
        (graph_of([7], [-1]), "token_ids"),
        (graph_of([-1], [-1]), "token_ids"),
        (graph_of([1, 2, 3], [-1, 0, 1]), "token_ids"),
        (graph_of([1, 2], [-1, 0], rows=[0]), "draws"),
        (graph_of([1], [-1], rows=[0, 1]), "draws[1]"),
    ],
)
def test_the_row_validator_names_what_it_refuses(graph: CandidateGraph, field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_graph(graph, vocab_size=7, max_rows=2)
    assert field in caught.value.field
