"""Merging random offers always yields rows a verification pass can trust."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.draft_law import law_from_probabilities
from contracts.graph import CandidateGraph, Draw, check_graph, keep_rows, merge_by_full_prefix
from contracts.proposal import Proposal, ProposalNode
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology, path_to
from tests.helpers.plain_choice import plain_merge
from tests.helpers.proposals import drawn_proposal, paths_proposal

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


@st.composite
def offers(draw: st.DrawFn, *, laws: bool) -> list[Proposal]:
    """Trees of few tokens, so that prefixes repeat within each and among them."""
    made: list[Proposal] = []
    for number in range(draw(st.integers(0, 3))):
        parents = [draw(st.integers(-1, index - 1)) for index in range(draw(st.integers(0, 6)))]
        pairs = [(draw(st.integers(0, 2)), parent) for parent in parents]
        if laws:
            given_laws = {parent: law_from_probabilities([0, 1, 2], [0.5, 0.25, 0.25]) for parent in parents}
            made.append(drawn_proposal(f"s{number}", pairs, given_laws))
            continue
        nodes: list[ProposalNode] = []
        for token, parent in pairs:
            depth = 1 if parent < 0 else nodes[parent].depth + 1
            nodes.append(ProposalNode(token, parent, depth, f"s{number}", "x"))
        semantics = draw(st.sampled_from([ProbabilitySemantics.ABSENT, ProbabilitySemantics.FREQUENCY]))
        relation = SamplingRelation.DETERMINISTIC_LOOKUP
        made.append(Proposal(f"s{number}", tuple(nodes), semantics, relation, Topology.TREE, "r"))
    return made


@given(offers(laws=False) | offers(laws=True), st.integers(0, 12))
def test_offers_merge_as_the_plain_rule_says(proposals: list[Proposal], budget: int) -> None:
    graph = merge_by_full_prefix(proposals, budget=budget)
    rows, draws, laws = plain_merge(proposals, budget)
    assert list(zip(graph.token_list, graph.parent_list, graph.sources, strict=True)) == rows
    assert list(graph.draws) == draws
    assert list(graph.laws) == laws
    assert graph.semantics == {proposal.semantics for proposal in proposals if proposal.nodes}
    assert graph.relations == {proposal.relation for proposal in proposals if proposal.nodes}
    assert (graph.token_ids.tolist(), graph.parents.tolist()) == (graph.token_list, graph.parent_list)


@given(offers(laws=False), st.data())
def test_kept_rows_are_the_graph_of_those_rows_with_the_draws_that_led_to_them(
    proposals: list[Proposal], data: st.DataObject
) -> None:
    graph = merge_by_full_prefix(proposals, budget=12)
    some = data.draw(st.sets(st.integers(0, len(graph) - 1))) if len(graph) else set()
    rows = sorted({row for one in some for row in path_to(graph.parents, one)})
    new = {-1: -1, **{row: index for index, row in enumerate(rows)}}
    assert keep_rows(graph, rows) == CandidateGraph(
        [graph.token_list[row] for row in rows],
        [new[graph.parent_list[row]] for row in rows],
        tuple(graph.sources[row] for row in rows),
        tuple(Draw(new[d.parent], new[d.row], d.source) for d in graph.draws if d.row in new),
        (),
        graph.semantics,
        graph.relations,
    )
