from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.capability import VerifierCapability, admit
from contracts.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from contracts.tree_shape import TreeShape
from models.backend import Backend, PrefixBackend
from models.load import load_backend
from proposer.draft_choice import RELATIONS
from proposer.draft_model import DraftModel, DraftModelSettings
from proposer.host import SourceHost
from proposer.local import LocalProposer
from proposer.topology.plan import CompleteTree, FixedTree, GrownByValue
from tests.helpers.tiny_models import tiny_checkpoint
from tests.unit.proposer.drafting import GREEDY, PROMPT, SAMPLED, VOCAB, asked, opened, target_laws, tokens_of
from tests.unit.proposer.rounds import Rounds, session_manifest


@pytest.mark.parametrize("relation", sorted(RELATIONS))
def test_the_target_as_its_own_draft_is_wholly_accepted_by_greedy_verification(
    backend: Backend, relation: SamplingRelation
) -> None:
    source = DraftModel(backend, DraftModelSettings(relation))
    rounds = opened(source)
    prefix = list(PROMPT)
    for round_id in range(2):
        proposal = asked(source, rounds.request("draft_model", prefix, node_budget=5, round_id=round_id))
        laws = target_laws(backend, GREEDY, prefix, proposal)
        assert tokens_of(proposal) == [laws.argmax(row) for row in range(-1, 4)]
        prefix += [*tokens_of(proposal), laws.argmax(4)]


def test_the_target_as_its_own_draft_is_wholly_accepted_by_rejection(backend: Backend) -> None:
    source = DraftModel(backend, DraftModelSettings(support=VOCAB))
    rounds = opened(source, SAMPLED)
    prefix = list(PROMPT)
    for round_id in range(3):
        proposal = asked(source, rounds.request("draft_model", prefix, node_budget=5, round_id=round_id))
        laws = target_laws(backend, SAMPLED, prefix, proposal)
        for node in proposal.nodes:
            assert node.q is not None
            assert laws.probability(node.parent, node.token) / node.q > 1 - 1e-3
        prefix += [*tokens_of(proposal), round_id]


def test_a_law_is_the_processed_law_cut_to_its_support_and_tokens_follow_it(backend: Backend) -> None:
    policy = replace(SAMPLED, top_p=1.0)
    source = DraftModel(backend, DraftModelSettings(support=4))
    rounds = opened(source, policy)
    counts = np.zeros(VOCAB)
    for seed in range(200):
        request = replace(
            rounds.request("draft_model", PROMPT, node_budget=1, round_id=seed), policy=replace(policy, seed=seed)
        )
        proposal = source.propose(request)
        counts[tokens_of(proposal)] += 1
    law = proposal.laws[-1]
    ids, probabilities = target_laws(backend, policy, PROMPT, replace(proposal, nodes=())).row(-1).top(4)
    assert sorted(ids.tolist()) == law.token_ids.tolist()
    expected = law.dense(VOCAB)
    np.testing.assert_allclose(expected[ids], probabilities / probabilities.sum(), atol=1e-5)
    assert np.abs(counts / 200 - expected).max() < 4 * 0.5 / 200**0.5


def test_greedy_draws_come_from_a_point_law(backend: Backend) -> None:
    source = DraftModel(backend)
    proposal = asked(source, opened(source).request("draft_model", PROMPT, node_budget=3))
    assert [node.q for node in proposal.nodes] == [1.0, 1.0, 1.0]
    assert set(proposal.laws) == {-1, 0, 1}


def test_what_is_declared_admits_the_right_verifiers_at_every_temperature(backend: Backend) -> None:
    lawful = VerifierCapability(
        "rejection",
        "exact",  # type: ignore[arg-type]
        "",
        frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        frozenset({SamplingRelation.INDEPENDENT}),
        frozenset({Topology.SEQUENCE}),
        needs_law=True,
    )
    lawless = replace(
        lawful,
        semantics=frozenset(ProbabilitySemantics),
        relations=frozenset(SamplingRelation),
        topologies=frozenset(Topology),
    )
    drawn = DraftModel(backend).describe()
    ranked = DraftModel(backend, DraftModelSettings(SamplingRelation.BEAM)).describe()
    digests = {"exact_mode": False, "tokenizer_digest": "t", "target_digest": "c"}
    for policy in (GREEDY, SAMPLED):
        admit(lawful, [drawn], policy, **digests)
        admit(lawless, [drawn, ranked], policy, **digests)
        with pytest.raises(FailedPrecondition, match="score_only"):
            admit(lawful, [ranked], policy, **digests)


def test_a_repeated_round_gets_the_same_offer_and_another_seed_another(backend: Backend) -> None:
    source = DraftModel(backend)
    rounds = opened(source, SAMPLED)
    request = rounds.request("draft_model", PROMPT, node_budget=6)
    first = asked(source, request)
    assert source.propose(request) is first
    assert tokens_of(source.propose(rounds.request("draft_model", PROMPT, node_budget=6, round_id=1))) == tokens_of(
        first
    )
    others = {
        tuple(
            tokens_of(
                source.propose(
                    replace(
                        rounds.request("draft_model", PROMPT, node_budget=6, round_id=seed),
                        policy=replace(SAMPLED, seed=seed),
                    )
                )
            )
        )
        for seed in range(20, 25)
    }
    assert len(others) > 1


def test_a_restarted_source_drafts_the_same_tokens(checkpoint: Path, backend: Backend) -> None:
    source = DraftModel(backend)
    rounds = opened(source, SAMPLED)
    prefix = list(PROMPT)
    for round_id in range(3):
        request = rounds.request("draft_model", prefix, node_budget=4, round_id=round_id)
        proposal = source.propose(request)
        prefix += [*tokens_of(proposal)[: round_id + 1], 7]
    again = DraftModel(load_backend(checkpoint, kv_budget_tokens=1024, implementation="cpu-torch"))
    again.open("s", rounds.manifest)
    assert tokens_of(again.propose(request)) == tokens_of(proposal)


@pytest.mark.parametrize(
    ("node_budget", "max_depth", "expected"), [(0, 8, 0), (8, 0, 0), (3, 8, 3), (8, 2, 2), (8, 1, 1)]
)
def test_budget_and_depth_bound_the_chain(backend: Backend, node_budget: int, max_depth: int, expected: int) -> None:
    source = DraftModel(backend)
    request = opened(source).request("draft_model", PROMPT, node_budget=node_budget, max_depth=max_depth)
    assert len(asked(source, request).nodes) == expected


def test_the_end_of_the_drafts_context_shortens_and_then_empties_the_offer(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, kv_budget_tokens=1024, implementation="cpu-torch")
    source = DraftModel(backend)
    rounds = opened(source, context_length=2048)
    long = np.random.default_rng(1).integers(0, VOCAB, 600).tolist()
    assert len(asked(source, rounds.request("draft_model", long[:510], node_budget=8)).nodes) == 3
    proposal = asked(source, rounds.request("draft_model", long[:513], node_budget=8, round_id=1))
    assert proposal.nodes == ()
    assert proposal.cost.miss


def test_an_exhausted_kv_budget_refuses_one_session_and_leaves_the_others(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, kv_budget_tokens=200, implementation="cpu-torch")
    source = DraftModel(backend)
    rounds = opened(source)
    second = Rounds(rounds.manifest, session_id="t", policy=GREEDY)
    source.open("t", rounds.manifest)
    assert source.propose(rounds.request("draft_model", PROMPT)).nodes
    with pytest.raises(ResourceExhausted):
        source.propose(second.request("draft_model", PROMPT))
    assert source.propose(rounds.request("draft_model", [*PROMPT, 1], round_id=1)).nodes
    source.close("s")
    assert source.propose(second.request("draft_model", PROMPT)).nodes


def test_a_session_that_outgrows_its_rows_gets_more(backend: Backend) -> None:
    policy = replace(GREEDY, max_tokens=1)
    source = DraftModel(backend, DraftModelSettings(max_nodes=4))
    rounds = opened(source, policy)
    source.propose(rounds.request("draft_model", PROMPT, node_budget=4))
    long = [*PROMPT, *range(60)]
    proposal = asked(source, rounds.request("draft_model", long, node_budget=4, round_id=1))
    laws = target_laws(backend, policy, long, proposal)
    assert tokens_of(proposal) == [laws.argmax(row) for row in range(-1, 3)]


def test_a_session_must_be_open_and_closing_twice_is_harmless(backend: Backend) -> None:
    source = DraftModel(backend)
    rounds = opened(source)
    request = rounds.request("draft_model", PROMPT)
    source.propose(request)
    source.close("s")
    source.close("s")
    with pytest.raises(FailedPrecondition, match="session_id"):
        source.propose(request)


def test_options_are_refused_by_name(backend: Backend) -> None:
    source = DraftModel(backend)
    with pytest.raises(InvalidArgument, match=r"options\.width"):
        source.propose(opened(source).request("draft_model", PROMPT, options={"width": 2}))


@pytest.mark.parametrize("vocab_size", [90, 110])
def test_vocabularies_padded_differently_share_their_tokens(backend: Backend, vocab_size: int) -> None:
    wide = DraftModelSettings(relation=SamplingRelation.BEAM, tree=CompleteTree((VOCAB,)), max_nodes=VOCAB)
    source = DraftModel(backend, wide)
    rounds = opened(source, vocab_size=vocab_size, node_budget=128)
    proposal = source.propose(rounds.request("draft_model", [1, 2, 3], node_budget=VOCAB, max_depth=1))
    assert sorted(tokens_of(proposal)) == list(range(min(vocab_size, VOCAB)))


def test_bans_and_minimum_length_hold_in_drafts(backend: Backend) -> None:
    free = DraftModel(backend)
    first = tokens_of(free.propose(opened(free).request("draft_model", PROMPT, node_budget=1)))[0]
    source = DraftModel(backend, eos_ids=(first,))
    rounds = opened(source, replace(GREEDY, min_tokens=1))
    assert tokens_of(source.propose(rounds.request("draft_model", PROMPT, node_budget=1)))[0] != first


@pytest.mark.parametrize(
    "settings",
    [
        {"relation": SamplingRelation.POPULATION},
        {"relation": SamplingRelation.SHARED_NOISE, "tree": GrownByValue()},
        {"tree": GrownByValue()},
        {"support": 0},
        {"support": 4097},
        {"max_nodes": 0},
        {"max_nodes": 513},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="draft_model"):
        DraftModelSettings(**settings)


def test_the_version_binds_settings_and_checkpoint(backend: Backend, tmp_path: Path) -> None:
    other = load_backend(tiny_checkpoint(tmp_path, seed=1), kv_budget_tokens=64, implementation="cpu-torch")
    variants = [
        DraftModel(backend),
        DraftModel(backend, DraftModelSettings(relation=SamplingRelation.BEAM)),
        DraftModel(backend, DraftModelSettings(tree=CompleteTree((2, 1)))),
        DraftModel(backend, DraftModelSettings(tree=FixedTree(TreeShape((-1, -1, 0, 1))))),
        DraftModel(backend, DraftModelSettings(relation=SamplingRelation.BEAM, tree=GrownByValue(2, 2))),
        DraftModel(backend, DraftModelSettings(support=32)),
        DraftModel(other),
    ]
    assert len({source.describe().version for source in variants}) == len(variants)


def test_a_draft_behind_the_host_serves_a_session(backend: Backend) -> None:
    source = DraftModel(backend)
    host = SourceHost([source])
    manifest = session_manifest(host.describe())
    host.open("s", manifest)
    rounds = Rounds(manifest)
    assert len(host.propose(rounds.request("draft_model", PROMPT, node_budget=4)).nodes) == 4
    host.close("s")


async def _drained(local: LocalProposer) -> None:
    """Returns when the drafting thread has done all that it was told so far."""
    await asyncio.wrap_future(local._worker.submit(lambda: None))


async def test_a_closed_session_gives_its_kv_back_though_nobody_drafts_again(backend: Backend) -> None:
    assert isinstance(backend, PrefixBackend)
    free = backend.usage.free_tokens
    local = LocalProposer(SourceHost([DraftModel(backend)]))
    manifest = session_manifest(await local.describe())
    rounds = Rounds(manifest)
    await local.open_session("s", manifest)
    await local.propose(rounds.request("draft_model", PROMPT, node_budget=4))
    assert backend.usage.free_tokens < free
    await local.close_session("s")
    await _drained(local)
    assert backend.usage.free_tokens == free
    local.shutdown()
    await local.close_session("s")


async def test_a_session_that_others_pushed_out_gives_its_kv_back(backend: Backend) -> None:
    assert isinstance(backend, PrefixBackend)
    free = backend.usage.free_tokens
    local = LocalProposer(SourceHost([DraftModel(backend)], max_sessions=1))
    manifest = session_manifest(await local.describe())
    await local.open_session("s", manifest)
    await local.propose(Rounds(manifest).request("draft_model", PROMPT, node_budget=4))
    await local.open_session("newer", manifest)
    await _drained(local)
    assert backend.usage.free_tokens == free
    local.shutdown()
