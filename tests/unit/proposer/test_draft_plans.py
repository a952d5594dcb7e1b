"""The draft model under planned shapes, calibrated plans and EAGLE-2's growth by value."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.calibration import CalibrationUse
from contracts.drawing import DraftCoins, draw_without_replacement
from contracts.errors import FailedPrecondition
from contracts.manifest import TargetIdentity
from contracts.proposal import Proposal
from contracts.sampling import SamplingPolicy
from contracts.topology import SamplingRelation, Topology
from contracts.tree_shape import TreeShape, shape_from_paths
from models.backend import Backend
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.topology.calibrated import plan_of
from proposer.topology.plan import FixedTree, GrownByValue
from tests.unit.proposer.drafting import PROMPT, SAMPLED, VOCAB, asked, opened, target_laws
from tests.unit.proposer.topology.calibrations import calibration

SHAPE = shape_from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0)])


def parents_of(proposal: Proposal) -> tuple[int, ...]:
    return tuple(node.parent for node in proposal.nodes)


def test_a_ranked_offer_has_the_planned_shape(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, FixedTree(SHAPE)))
    proposal = asked(source, opened(source, SAMPLED).request("draft_model", PROMPT))
    assert parents_of(proposal) == SHAPE.parents
    laws = target_laws(backend, SamplingPolicy(temperature=1.0), PROMPT, proposal)
    for node, (token, parent) in enumerate((node.token, node.parent) for node in proposal.nodes):
        assert token == laws.row(parent).top(SHAPE.ranks[node] + 1)[0][-1]


def test_a_drawn_offer_has_the_planned_shape_and_coins_numbered_by_it(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.WITHOUT_REPLACEMENT, FixedTree(SHAPE)))
    proposal = asked(source, opened(source, SAMPLED).request("draft_model", PROMPT))
    assert parents_of(proposal) == SHAPE.parents
    coins = DraftCoins(SAMPLED.seed, len(PROMPT), "draft_model")
    for parent, law in proposal.laws.items():
        drawn = [node.token for node in proposal.nodes if node.parent == parent]
        expected = draw_without_replacement(
            law, SHAPE.children(parent), coins, first_draw=SHAPE.first_child(parent), vocab_size=VOCAB
        )
        assert drawn == list(expected)


@pytest.mark.parametrize(("nodes", "depth", "expected"), [(4, 8, 4), (8, 1, 3), (6, 2, 6), (8, 8, 7)])
def test_a_smaller_round_gets_a_prefix_of_the_draws(backend: Backend, nodes: int, depth: int, expected: int) -> None:
    def offer(**limits: int) -> Proposal:
        # A source of its own each time: what an earlier round left in the cache changes the last bits of a law.
        source = DraftModel(backend, DraftModelSettings(SamplingRelation.WITHOUT_REPLACEMENT, FixedTree(SHAPE)))
        return asked(source, opened(source, SAMPLED).request("draft_model", PROMPT, **limits))

    whole, cut = offer(), offer(node_budget=nodes, max_depth=depth)
    assert [(node.token, node.parent) for node in cut.nodes] == [
        (node.token, node.parent) for node in whole.nodes[:expected]
    ]


def test_an_empty_shape_is_an_empty_offer(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, FixedTree(TreeShape())))
    assert asked(source, opened(source).request("draft_model", PROMPT)).nodes == ()


def test_the_declared_topology_is_the_plans(backend: Backend) -> None:
    declared = [
        DraftModel(backend, DraftModelSettings(tree=FixedTree(shape))).describe().topology
        for shape in (TreeShape((-1, 0)), TreeShape((-1, -1)), SHAPE)
    ]
    assert declared == [Topology.SEQUENCE, Topology.SET, Topology.TREE]


def made_for(source: DraftModel, policy: SamplingPolicy) -> TargetIdentity:
    return opened(source, policy).manifest.target


def test_a_calibrated_plan_serves_the_sessions_it_holds_for_and_says_so_in_the_manifest(backend: Backend) -> None:
    greedy = SamplingPolicy(temperature=0.0)
    use = CalibrationUse(
        calibration(target=made_for(DraftModel(backend), greedy), drafter=backend.info.checkpoint_digest)
    )
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(use)))
    rounds = opened(source, greedy)
    proposal = asked(source, rounds.request("draft_model", PROMPT))
    assert parents_of(proposal) == plan_of(use).shape(8, 8).parents
    assert f"+calibration:{use.calibration.hash}".encode() in rounds.manifest.canonical


def test_a_calibrated_plan_refuses_other_sessions_unless_forced(backend: Backend) -> None:
    greedy = SamplingPolicy(temperature=0.0)
    target = made_for(DraftModel(backend), greedy)
    elsewhere = calibration(target=replace(target, hardware="another"), drafter=backend.info.checkpoint_digest)
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(CalibrationUse(elsewhere))))
    with pytest.raises(FailedPrecondition, match=r"calibration\.target\.hardware"):
        source.propose(opened(source, greedy).request("draft_model", PROMPT))
    forced = CalibrationUse(elsewhere, forced=True)
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(forced)))
    rounds = opened(source, greedy)
    assert asked(source, rounds.request("draft_model", PROMPT)).nodes
    assert b"+forced-calibration:" in rounds.manifest.canonical


def test_growth_by_value_keeps_the_most_valuable_of_all_it_grew(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, GrownByValue(top_k=3, depth=4)))
    rounds = opened(source, SAMPLED)
    whole = asked(source, rounds.request("draft_model", PROMPT, node_budget=64))
    assert len(whole.nodes) == 3 + 9 * 3
    laws = target_laws(backend, SamplingPolicy(temperature=1.0), PROMPT, whole)
    for node in whole.nodes:
        siblings = [other.token for other in whole.nodes if other.parent == node.parent]
        assert siblings == laws.row(node.parent).top(3)[0].tolist()
        above = whole.nodes[node.parent].score if node.parent >= 0 else 0.0
        assert node.score == pytest.approx(above + np.log(laws.probability(node.parent, node.token)), abs=1e-3)
    cut = asked(source, rounds.request("draft_model", PROMPT, node_budget=7))
    scores = sorted((node.score for node in whole.nodes), reverse=True)
    assert sorted((node.score for node in cut.nodes), reverse=True) == pytest.approx(scores[:7], abs=1e-4)


def test_growth_by_value_follows_the_prefix_over_rounds(backend: Backend) -> None:
    settings = DraftModelSettings(SamplingRelation.BEAM, GrownByValue(top_k=2, depth=5))
    source = DraftModel(backend, settings)
    rounds = opened(source)
    prefix = list(PROMPT)
    for round_id in range(3):
        proposal = asked(source, rounds.request("draft_model", prefix, node_budget=6, round_id=round_id))
        fresh = DraftModel(backend, settings)
        again = opened(fresh).request("draft_model", prefix, node_budget=6, round_id=round_id)
        assert [(n.token, n.parent) for n in fresh.propose(again).nodes] == [
            (n.token, n.parent) for n in proposal.nodes
        ]
        fresh.close("s")
        path = [proposal.nodes[0].token, *(n.token for n in proposal.nodes if n.parent == 0)][: round_id + 1]
        prefix += [*path, 7]


def test_growth_by_value_keeps_budget_and_depth(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, GrownByValue(top_k=4, depth=6)))
    rounds = opened(source)
    for nodes, depth in [(1, 1), (5, 2), (64, 3), (3, 8)]:
        proposal = asked(source, rounds.request("draft_model", PROMPT, node_budget=nodes, max_depth=depth))
        assert 0 < len(proposal.nodes) <= nodes
        assert max(node.depth for node in proposal.nodes) <= depth


def test_a_tree_calibrated_on_another_draft_or_relation_is_refused_when_the_source_is_built(backend: Backend) -> None:
    foreign = CalibrationUse(calibration(drafter="d" * 64))
    with pytest.raises(FailedPrecondition, match=r"calibration\.drafter"):
        DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(foreign)))
    own = CalibrationUse(calibration(drafter=backend.info.checkpoint_digest))
    with pytest.raises(FailedPrecondition, match=r"calibration\.relation"):
        DraftModel(backend, DraftModelSettings(SamplingRelation.INDEPENDENT, plan_of(own)))
    DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(own)))
    DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM, plan_of(replace(foreign, forced=True))))
