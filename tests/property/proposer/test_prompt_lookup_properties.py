from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contracts.graph import check_graph, merge_by_full_prefix
from contracts.proposal import check_proposal
from proposer.prompt_lookup import PromptLookup, PromptLookupSettings
from tests.unit.proposer.rounds import Rounds, session_manifest

PREFIXES = st.integers(1, 5).flatmap(lambda top: st.lists(st.integers(0, top), min_size=1, max_size=50))
SETTINGS = st.builds(
    PromptLookupSettings,
    rule=st.sampled_from(["latest", "earliest", "one_edit"]),
    continuation=st.sampled_from(["full_length", "clipped"]),
    min_ngram=st.integers(1, 2),
    max_ngram=st.integers(2, 5),
    branches=st.integers(1, 5),
)


@given(PREFIXES, SETTINGS, st.integers(0, 20), st.integers(0, 12))
def test_every_path_is_copied_from_behind_an_occurrence_of_the_suffix(
    prefix: list[int], settings: PromptLookupSettings, node_budget: int, max_depth: int
) -> None:
    source = PromptLookup(settings)
    rounds = Rounds(session_manifest([source.describe()]))
    request = rounds.request("prompt_lookup", prefix, node_budget=node_budget, max_depth=max_depth)
    proposal = source.propose(request)
    check_proposal(proposal, vocab_size=97, round_hash=request.manifest.hash, max_nodes=node_budget)
    graph = merge_by_full_prefix([proposal], budget=node_budget)
    check_graph(graph, vocab_size=97, max_rows=node_budget)
    assert len(graph) == len(proposal.nodes)
    assert source.propose(request).nodes == proposal.nodes
    assert proposal.cost.miss == (not proposal.nodes)
    paths: list[list[int]] = []
    for node in proposal.nodes:
        path = [*(paths[node.parent] if node.parent >= 0 else []), node.token]
        paths.append(path)
        assert len(path) <= max_depth
        pattern = prefix[len(prefix) - settings.min_ngram :] + path
        assert any(prefix[i : i + len(pattern)] == pattern for i in range(len(prefix)))


@given(PREFIXES, SETTINGS, st.integers(1, 20))
def test_branches_keep_the_best_single_continuation_first(
    prefix: list[int], settings: PromptLookupSettings, budget: int
) -> None:
    one = PromptLookup(PromptLookupSettings(**{**settings.__dict__, "branches": 1}))
    many = PromptLookup(settings)
    rounds = Rounds(session_manifest([one.describe()]))
    request = rounds.request("prompt_lookup", prefix, node_budget=budget, max_depth=budget)
    single, tree = one.propose(request).nodes, many.propose(request).nodes
    assert bool(single) == bool(tree)
    assert len(tree) >= min(len(single), 1)
    if single:
        assert tree[0].token == single[0].token
