"""A head as a source: what it declares, what it offers, and what it does when rows are late, lost or gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, Unavailable
from contracts.graph import check_graph, merge_by_full_prefix
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal, SourceCost, check_proposal
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from proposer.heads.families import LoadedHead
from proposer.heads.head import ROUND_ROWS
from proposer.heads.source import QUICK_US, HeadSettings, HeadSource
from proposer.topology.plan import CompleteTree, GrownByValue
from tests.unit.proposer.heads.tiny_heads import FAMILIES, TAPS, VOCAB, VOCABULARY, Rows, head, manifest_of, prefix_of
from tests.unit.proposer.rounds import Rounds, session_manifest

GREEDY = SamplingPolicy(temperature=0.0, max_tokens=64)
SAMPLED = SamplingPolicy(temperature=0.8, top_p=0.9, seed=11, max_tokens=64)


class Verifier:
    """Hands out the rows of whatever prefix a request carries."""

    def __init__(self) -> None:
        self.gone = False
        self.here = 1 << 30
        self.asked: list[tuple[int, int]] = []

    def states(self, request: ProposeRequest) -> Rows:
        rows = Rows(request.prefix)
        rows.gone, rows.asked = self.gone, self.asked
        return rows

    def so_far(self, request: ProposeRequest) -> tuple[Rows, int]:
        return self.states(request), min(self.here, len(request.prefix) - 1)


def opened(
    family: str, settings: HeadSettings | None = None, policy: SamplingPolicy = GREEDY
) -> tuple[HeadSource, Rounds, Verifier]:
    verifier = Verifier()
    source = HeadSource(LoadedHead(head(family)[1], manifest_of(family)), verifier, settings)
    rounds = Rounds(session_manifest([source.describe()], vocab_size=VOCAB, policy=policy), policy=policy)
    source.open("s", rounds.manifest)
    return source, rounds, verifier


def offer(source: HeadSource, request: ProposeRequest) -> Proposal:
    proposal = source.propose(request)
    check_proposal(proposal, vocab_size=VOCAB, round_hash=request.manifest.hash, max_nodes=request.node_budget)
    check_graph(merge_by_full_prefix([proposal], budget=request.node_budget), vocab_size=VOCAB, max_rows=64)
    return proposal


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("relation", "tree"),
    [
        (SamplingRelation.BEAM, CompleteTree((1,))),
        (SamplingRelation.BEAM, CompleteTree((3, 2, 1))),
        (SamplingRelation.BEAM, GrownByValue(3, 3)),
        (SamplingRelation.INDEPENDENT, CompleteTree((2, 2))),
        (SamplingRelation.WITHOUT_REPLACEMENT, CompleteTree((3, 2))),
        (SamplingRelation.SHARED_NOISE, CompleteTree((2, 1))),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_every_family_offers_well_formed_proposals_of_its_relation(family, relation, tree, policy) -> None:
    source, rounds, _ = opened(family, HeadSettings(relation=relation, tree=tree), policy)
    here = source.describe()
    with_law = relation in (SamplingRelation.INDEPENDENT, SamplingRelation.WITHOUT_REPLACEMENT)
    assert (here.semantics is ProbabilitySemantics.NORMALIZED_CONDITIONAL) == with_law
    prefix = prefix_of(11)
    for round_id in range(3):
        request = rounds.request("head", prefix, node_budget=8, max_depth=4, round_id=round_id)
        proposal = offer(source, request)
        assert proposal.nodes
        assert bool(proposal.laws) == with_law
        assert {node.token for node in proposal.nodes} <= set(VOCABULARY.ids.tolist()) or (
            relation == SamplingRelation.WITHOUT_REPLACEMENT
        )
        assert source.propose(request) is proposal
        prefix = np.concatenate([prefix, [proposal.nodes[0].token, 5]])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lost_session_drafts_what_an_unbroken_one_drafts(family: str) -> None:
    unbroken, rounds, _ = opened(family)
    restarted, _, verifier = opened(family)
    prefix = prefix_of(11)
    offer(unbroken, rounds.request("head", prefix))
    grown = np.concatenate([prefix, [4, 9, 33]])
    request = rounds.request("head", grown, round_id=1)
    left, right = offer(unbroken, request), offer(restarted, request)
    assert [node.token for node in left.nodes] == [node.token for node in right.nodes]
    assert verifier.asked


def test_rows_that_cannot_be_had_fail_the_offer_and_not_the_session() -> None:
    source, rounds, verifier = opened("eagle")
    verifier.gone = True
    request = rounds.request("head", prefix_of(9))
    with pytest.raises(Unavailable):
        source.propose(request)
    verifier.gone = False
    assert offer(source, request).nodes


def test_offers_end_where_the_head_the_context_and_the_budget_end() -> None:
    source, rounds, _ = opened("medusa")
    assert max(node.depth for node in offer(source, rounds.request("head", prefix_of(9), max_depth=8)).nodes) == 3
    assert len(offer(source, rounds.request("head", prefix_of(9), node_budget=2, round_id=1)).nodes) == 2
    assert not offer(source, rounds.request("head", prefix_of(9), node_budget=0, round_id=2)).nodes
    assert not offer(source, rounds.request("head", prefix_of(1), round_id=3)).nodes
    source, rounds, _ = opened("eagle", HeadSettings(context=12))
    assert len(offer(source, rounds.request("head", prefix_of(10))).nodes) == 2
    assert not offer(source, rounds.request("head", prefix_of(12), round_id=1)).nodes


def test_a_growing_session_gets_a_larger_slot() -> None:
    source, rounds, _ = opened("eagle", HeadSettings(max_nodes=4), SamplingPolicy(temperature=0.0, max_tokens=1))
    for round_id, length in enumerate((10, 30, 90)):
        assert offer(source, rounds.request("head", prefix_of(length), round_id=round_id)).nodes


def test_unknown_sessions_options_and_settings_are_refused() -> None:
    source, rounds, _ = opened("eagle")
    source.close("s")
    with pytest.raises(FailedPrecondition, match="not open"):
        source.propose(rounds.request("head", prefix_of(9)))
    source.open("s", rounds.manifest)
    with pytest.raises(InvalidArgument, match="options"):
        source.propose(rounds.request("head", prefix_of(9), options={"width": 3}))
    for wrong in ({"relation": SamplingRelation.DETERMINISTIC_LOOKUP}, {"support": 0}, {"max_nodes": 0}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            HeadSettings(**wrong)
    with pytest.raises(InvalidArgument, match="beam"):
        HeadSettings(relation=SamplingRelation.INDEPENDENT, tree=GrownByValue(2, 2))


def test_the_description_binds_target_tokenizer_and_weights() -> None:
    here = opened("eagle")[0].describe()
    assert (here.target_digest, here.tokenizer_digest) == ("t" * 64, "k" * 64)
    assert here.topology is Topology.SEQUENCE
    other = HeadSource(
        LoadedHead(head("eagle")[1], manifest_of("eagle", weights_sha256="w" * 64)), Verifier()
    ).describe()
    assert other.version != here.version


def test_bans_are_respected_in_drafts() -> None:
    source, rounds, _ = opened("eagle")
    first = offer(source, rounds.request("head", prefix_of(9))).nodes[0].token
    policy = SamplingPolicy(temperature=0.0, banned_ids=(first,), max_tokens=64)
    source, rounds, _ = opened("eagle", policy=policy)
    assert first not in {node.token for node in offer(source, rounds.request("head", prefix_of(9))).nodes}


def test_the_head_declares_its_taps_itself() -> None:
    assert opened("eagle3")[0].describe().taps == TAPS["eagle3"]
    assert opened("medusa")[0].describe().taps == ("final_norm",)


def test_a_request_for_nothing_runs_the_head_over_the_rows_that_are_there() -> None:
    source, rounds, verifier = opened("eagle3", HeadSettings(tree=GrownByValue(3, 3)))
    fresh, _, _ = opened("eagle3", HeadSettings(tree=GrownByValue(3, 3)))
    prefix = prefix_of(40)
    verifier.here = 25
    assert not offer(source, rounds.request("head", prefix, node_budget=0)).nodes
    verifier.here = 39
    assert not offer(source, rounds.request("head", prefix, node_budget=0)).nodes
    assert verifier.asked == [(0, 25), (25, 39)]
    offered = offer(source, rounds.request("head", prefix))
    # The round itself runs the last row only.
    assert verifier.asked[2:] == [(38, 39)]
    assert _close(offered, offer(fresh, rounds.request("head", prefix)))


@pytest.mark.parametrize(
    "policy", [GREEDY, SamplingPolicy(temperature=0.0, logit_bias={3: 0.0}, max_tokens=64)], ids=str
)
@pytest.mark.parametrize("width", [1, 3])
def test_compiled_growth_is_growth_over_laws(width: int, policy: SamplingPolicy) -> None:
    """A policy that edits logits, be it by nothing, takes the way over laws: both ways offer the same tree."""
    settings = HeadSettings(tree=GrownByValue(width, 4), max_nodes=9)
    compiled, rounds, _ = opened("eagle3", settings)
    laws, edited, _ = opened("eagle3", settings, policy)
    prefix = prefix_of(11)
    for round_id in range(4):
        one = offer(compiled, rounds.request("head", prefix, node_budget=9, max_depth=6, round_id=round_id))
        other = offer(laws, edited.request("head", prefix, node_budget=9, max_depth=6, round_id=round_id))
        assert len(one.nodes) == (4 if width == 1 else 9)
        assert _close(one, other)
        prefix = np.concatenate([prefix, prefix_of(1 + 9 * round_id, seed=round_id)])


def test_nothing_below_the_floor_is_offered_and_all_above_it_is() -> None:
    prefix = prefix_of(11)
    every, rounds, _ = opened("eagle3", HeadSettings(tree=GrownByValue(3, 4), max_nodes=40))
    likely, others, _ = opened("eagle3", HeadSettings(tree=GrownByValue(3, 4), max_nodes=40, floor=0.06))
    wanted = offer(every, rounds.request("head", prefix, node_budget=40)).nodes
    found = offer(likely, others.request("head", prefix, node_budget=40)).nodes
    assert 0 < len(found) < len(wanted)
    assert [n.token for n in found] == [n.token for n in wanted if np.exp(n.score) >= 0.06]
    with pytest.raises(InvalidArgument, match="floor"):
        HeadSettings(floor=1.0)


@pytest.mark.parametrize("policy", [GREEDY, SamplingPolicy(temperature=0.0, logit_bias={3: 0.25})])
def test_only_nodes_above_the_parents_floor_have_children_and_those_have_all_of_them(policy: SamplingPolicy) -> None:
    # A request that edits logits is drafted for over laws.
    prefix, tree = prefix_of(11), GrownByValue(3, 4)
    every, rounds, _ = opened("eagle3", HeadSettings(tree=tree, max_nodes=40, floor=0.005), policy)
    cut, others, _ = opened("eagle3", HeadSettings(tree=tree, max_nodes=40, floor=0.005, parent_floor=0.06), policy)
    whole = offer(every, rounds.request("head", prefix, node_budget=40)).nodes
    found = offer(cut, others.request("head", prefix, node_budget=40)).nodes
    wanted = [n for n in whole if n.parent < 0 or np.exp(whole[n.parent].score) >= 0.06]
    assert 3 < len(found) < len(whole)
    assert [(n.token, n.depth) for n in found] == [(n.token, n.depth) for n in wanted]
    assert every.describe().version != cut.describe().version
    with pytest.raises(InvalidArgument, match="parent_floor"):
        HeadSettings(parent_floor=-0.1)


def test_quick_is_a_compiled_growth_over_few_rows_whose_last_one_was() -> None:
    source, rounds, _ = opened("eagle3", HeadSettings(tree=GrownByValue(3, 3)))
    prefix = prefix_of(40)

    def asked(length: int, round_id: int, **changes: object) -> ProposeRequest:
        return rounds.request("head", prefix[:length], round_id=round_id, **changes)  # type: ignore[arg-type]

    assert not source.is_quick(asked(11, 0))
    first = offer(source, asked(11, 0))
    session = source._sessions["s"]
    for took_us, quick in ((QUICK_US, True), (QUICK_US + 1, False), (0.0, True)):
        session.last = (None, replace(first, cost=SourceCost(compute_us=took_us)))
        assert source.is_quick(asked(14, 1)) == quick
    assert source.is_quick(asked(11 + ROUND_ROWS - 1, 1))
    assert not source.is_quick(asked(11 + ROUND_ROWS, 1))
    assert not source.is_quick(asked(14, 1, node_budget=0))
    edited = SamplingPolicy(temperature=0.0, logit_bias={3: 0.0}, max_tokens=64)
    assert not source.is_quick(replace(asked(14, 1), policy=edited))
    source.close("s")
    assert not source.is_quick(asked(14, 1))


@pytest.mark.parametrize(("family", "tree"), [("medusa", GrownByValue(3, 3)), ("eagle3", CompleteTree((2, 2)))])
def test_what_is_grown_over_laws_is_never_quick(family: str, tree: CompleteTree | GrownByValue) -> None:
    source, rounds, _ = opened(family, HeadSettings(tree=tree))
    first = offer(source, rounds.request("head", prefix_of(11)))
    source._sessions["s"].last = (None, replace(first, cost=SourceCost()))
    assert not source.is_quick(rounds.request("head", prefix_of(13), round_id=1))


def _close(one: Proposal, other: Proposal) -> bool:
    shape = [[(node.token, node.parent, node.depth) for node in proposal.nodes] for proposal in (one, other)]
    scores = [[node.score for node in proposal.nodes] for proposal in (one, other)]
    return shape[0] == shape[1] and np.allclose(*scores, atol=1e-5)
