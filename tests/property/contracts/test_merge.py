"""Merging random offers always yields rows a verification pass can trust."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.graph import check_graph, merge_by_full_prefix
from contracts.topology import path_to
from tests.helpers.proposals import paths_proposal

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=6)


@given(st.lists(PATHS, max_size=3), st.integers(0, 12))
def test_rows_are_unique_full_prefixes_within_budget_and_cover_the_offers(
    offers: list[list[list[int]]], budget: int
) -> None:
    graph = merge_by_full_prefix([paths_proposal(f"s{i}", paths) for i, paths in enumerate(offers)], budget=budget)
    check_graph(graph, vocab_size=4, max_rows=budget)
    prefixes = [tuple(int(graph.token_ids[r]) for r in path_to(graph.parents, row)) for row in range(len(graph))]
    offered = {tuple(path[:d]) for paths in offers for path in paths for d in range(1, len(path) + 1)}
    assert len(set(prefixes)) == len(prefixes)
    assert set(prefixes) <= offered
    if len(offered) <= budget:
        assert set(prefixes) == offered


@given(PATHS)
def test_merging_an_offer_with_itself_changes_rows_not_at_all(paths: list[list[int]]) -> None:
    once = merge_by_full_prefix([paths_proposal("a", paths)], budget=100)
    twice = merge_by_full_prefix([paths_proposal("a", paths), paths_proposal("b", paths)], budget=100)
    assert once.token_ids.tolist() == twice.token_ids.tolist()
    assert once.parents.tolist() == twice.parents.tolist()
    assert all(names == ("a", "b") for names in twice.sources)
