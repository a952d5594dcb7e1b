from __future__ import annotations

from dataclasses import replace

import numpy as np

from contracts.drawing import DraftCoins, draw_independent
from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation, Topology
from models.backend import Backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.topology.plan import CompleteTree
from tests.unit.proposer.drafting import PROMPT, SAMPLED, VOCAB, asked, opened, target_laws, tokens_of


def test_a_ranked_tree_has_the_likeliest_children_and_path_scores(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(relation=SamplingRelation.BEAM, tree=CompleteTree((3, 2, 1))))
    assert source.describe().topology is Topology.TREE
    proposal = asked(source, opened(source, SAMPLED).request("draft_model", PROMPT, node_budget=16, max_depth=3))
    untruncated = SamplingPolicy(temperature=1.0)
    laws = target_laws(backend, untruncated, PROMPT, proposal)
    assert [node.depth for node in proposal.nodes] == [1] * 3 + [2] * 6 + [3] * 6
    scores = [0.0] * len(proposal.nodes)
    for index, node in enumerate(proposal.nodes):
        siblings = [other.token for other in proposal.nodes if other.parent == node.parent]
        assert siblings == laws.row(node.parent).top(len(siblings))[0].tolist()
        scores[index] = (scores[node.parent] if node.parent >= 0 else 0.0) + np.log(
            laws.probability(node.parent, node.token)
        )
    np.testing.assert_allclose([node.score for node in proposal.nodes], scores, atol=1e-3)
    assert proposal.laws == {}


def test_a_drawn_tree_keeps_duplicates_and_grows_each_distinct_row_once(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(tree=CompleteTree((4, 2))))
    rounds = opened(source, replace(SAMPLED, temperature=0.3))
    duplicates = 0
    for round_id in range(8):
        prefix = [*PROMPT, round_id]
        proposal = asked(source, rounds.request("draft_model", prefix, node_budget=12, max_depth=2, round_id=round_id))
        top = [node.token for node in proposal.nodes if node.depth == 1]
        duplicates += len(top) - len(set(top))
        assert len(top) == 4
        grown = [index for index in proposal.laws if index >= 0]
        assert [top.index(top[index]) for index in grown] == grown
        assert len(proposal.nodes) == 4 + 2 * len(set(top))
        laws = target_laws(backend, replace(SAMPLED, temperature=0.3), prefix, proposal)
        for parent, law in proposal.laws.items():
            np.testing.assert_allclose(law.dense(VOCAB), laws.row(parent).dense(), atol=1e-3)
    assert duplicates


def test_a_budget_cuts_a_tree_in_draw_order(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(tree=CompleteTree((2, 2))))
    rounds = opened(source, SAMPLED)
    whole = asked(source, rounds.request("draft_model", PROMPT, node_budget=6, max_depth=2))
    cut = asked(source, rounds.request("draft_model", PROMPT, node_budget=3, max_depth=2))
    assert [(node.token, node.parent) for node in cut.nodes] == [(node.token, node.parent) for node in whole.nodes[:3]]


def test_coins_are_numbered_by_the_plan_whatever_was_drawn(backend: Backend) -> None:
    policy = replace(SAMPLED, temperature=0.3)
    source = DraftModel(backend, DraftModelSettings(tree=CompleteTree((4, 2))))
    rounds = opened(source, policy)
    coins = DraftCoins(policy.seed, len(PROMPT), "draft_model")
    proposal = asked(source, rounds.request("draft_model", PROMPT, node_budget=12, max_depth=2))
    top = tokens_of(proposal)[:4]
    for parent, law in proposal.laws.items():
        first, count = (0, 4) if parent < 0 else (4 + 2 * parent, 2)
        drawn = [node.token for node in proposal.nodes if node.parent == parent]
        assert drawn == list(draw_independent(law, count, coins, first_draw=first))
    assert len(set(top)) < 4


def test_a_tree_without_replacement_has_distinct_siblings_and_their_law(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.WITHOUT_REPLACEMENT, tree=CompleteTree((4, 2))))
    proposal = asked(source, opened(source, SAMPLED).request("draft_model", PROMPT, node_budget=12, max_depth=2))
    assert len(proposal.nodes) == 12
    assert len({(node.parent, node.token) for node in proposal.nodes}) == 12
    assert set(proposal.laws) == {-1, 0, 1, 2, 3}


def test_under_shared_noise_the_target_as_its_own_draft_drafts_the_targets_samples(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.SHARED_NOISE, support=VOCAB))
    rounds = opened(source, SAMPLED)
    proposal = asked(source, rounds.request("draft_model", PROMPT, node_budget=6))
    laws = target_laws(backend, SAMPLED, PROMPT, proposal)
    chooser = CoinChooser(SAMPLED.seed, len(PROMPT))
    samples = [laws.sample(row, len(PROMPT) + row + 1, chooser) for row in range(-1, 5)]
    assert tokens_of(proposal) == samples
