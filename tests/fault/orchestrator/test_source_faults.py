"""A source that fails, is late or lies costs its candidates and nothing else."""

import asyncio
from dataclasses import replace

import pytest

from contracts.errors import DraftproofError, Internal, ResourceExhausted, Unavailable
from contracts.proposal import ProposalNode
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    VOCAB,
    FakeProposer,
    FakeRetriever,
    FakeTokenizer,
    FakeVerifier,
    babble,
    collect,
    oracle,
)

GREEDY = SamplingPolicy(temperature=0.0, max_tokens=60)
# The sources under test never answer late by accident: only an event that is never set is late.
SETTINGS = OrchestratorSettings(propose_deadline_ms=60_000.0)
SHORT = OrchestratorSettings(propose_deadline_ms=300.0, law_deadline_ms=300.0)


def request(**fields) -> GenerateRequest:
    return GenerateRequest(**{"text": "abab", "policy": GREEDY, "max_depth": 2, "sources": ("oracle",), **fields})


def proposer(**fields) -> FakeProposer:
    return FakeProposer({"oracle": oracle(babble), "other": oracle(babble)}, **fields)


def service(source, *, retrievers=(), settings=SETTINGS) -> Orchestrator:
    return Orchestrator(FakeVerifier(), [source], list(retrievers), FakeTokenizer(), settings)


async def plain_tokens() -> list[int]:
    chunks, _ = await collect(service(proposer()).generate(request(sources=())))
    return [token for chunk in chunks for token in chunk.token_ids]


def another_round(proposal):
    return replace(proposal, round_hash="0" * 64)


def token_out_of_range(proposal):
    return replace(proposal, nodes=(proposal.nodes[0]._replace(token=VOCAB), *proposal.nodes[1:]))


def forward_parent(proposal):
    return replace(proposal, nodes=(proposal.nodes[0]._replace(parent=1), *proposal.nodes[1:]))


def too_many(proposal):
    nodes = [ProposalNode(97, i - 1, i + 1, "oracle", "fake") for i in range(40)]
    return replace(proposal, nodes=tuple(nodes))


def someone_else(proposal):
    return replace(proposal, source="other")


def other_semantics(proposal):
    return replace(proposal, semantics=ProbabilitySemantics.SCORE_ONLY)


def a_bug(proposal):
    raise ZeroDivisionError("division by zero")


FAULTS = [
    Unavailable("proposer", "gone"),
    ResourceExhausted("slots", "none left"),
    Internal("cache", "broken"),
    another_round,
    token_out_of_range,
    forward_parent,
    too_many,
    someone_else,
    other_semantics,
    a_bug,
]


def name_of(fault) -> str:
    return type(fault).__name__ if isinstance(fault, DraftproofError) else fault.__name__


@pytest.mark.parametrize("fault", FAULTS, ids=name_of)
async def test_a_failing_or_malformed_source_changes_neither_outcome_nor_text(fault):
    source = proposer()
    source.script.extend([None, fault])
    chunks, final = await collect(service(source).generate(request()))
    assert [token for chunk in chunks for token in chunk.token_ids] == await plain_tokens()
    assert final.finish is FinishReason.LENGTH
    assert final.certificate.ledger.failed_by == {"oracle": 1}
    assert list(final.certificate.failures) == ["oracle"]
    assert list(chunks[1].round.ledger.failures) == ["oracle"]
    assert chunks[1].round.candidates == 0


async def test_a_late_answer_is_recorded_and_never_merged_into_a_later_round():
    source, never = proposer(), asyncio.Event()
    source.script.extend([None, never])
    chunks, final = await collect(service(source, settings=SHORT).generate(request()))
    assert [token for chunk in chunks for token in chunk.token_ids] == await plain_tokens()
    assert chunks[1].round.ledger.failures["oracle"] == "late: no answer within 300 ms"
    assert chunks[1].round.candidates == 0
    assert final.usage.accepted > 0


async def test_a_late_source_does_not_hold_back_the_others():
    source = proposer()
    source.script.extend([asyncio.Event()])
    chunks, _ = await collect(service(source, settings=SHORT).generate(request(sources=("oracle", "other"))))
    assert chunks[0].round.ledger.proposed_by == {"other": 2}


async def test_a_source_that_keeps_failing_is_asked_ever_more_rarely_and_comes_back():
    source = proposer()
    source.script.extend([Unavailable("proposer", "gone")] * 3)
    chunks, _ = await collect(service(source).generate(request()))
    ledgers = [chunk.round.ledger for chunk in chunks]
    failed = [i for i, ledger in enumerate(ledgers) if ledger.failures]
    asked = [i for i, ledger in enumerate(ledgers) if ledger.failures or ledger.candidates]
    assert failed == [0, 2, 5]
    assert asked[:5] == [0, 2, 5, 10, 11]


async def test_a_restarted_proposer_gets_its_session_opened_again_in_the_same_round():
    source = proposer()
    forgotten = []

    def forget(proposal):
        forgotten.append(len(source.asked))
        source.sessions.clear()
        return proposal

    source.script.extend([None, forget])
    chunks, final = await collect(service(source).generate(request()))
    assert forgotten == [2]
    assert source.calls.count("open_session") == 2
    assert final.certificate.failures == {}
    assert all(chunk.round.candidates for chunk in chunks[:-1])


async def test_a_proposer_that_was_never_seen_is_absent_and_one_seen_before_stays_bound():
    source = proposer()
    source.down = True
    orchestrator = service(source, settings=replace(SETTINGS, describe_ttl_ms=0.0, describe_stale_ms=0.0))
    _, never_seen = await collect(orchestrator.generate(request()))
    assert never_seen.certificate.absent == {"oracle": "its service has not answered yet"}
    source.down = False
    _, seen = await collect(orchestrator.generate(request()))
    source.down = True
    _, down = await collect(orchestrator.generate(request()))
    assert seen.certificate.manifest_hash == down.certificate.manifest_hash != never_seen.certificate.manifest_hash
    assert down.certificate.failures["oracle"].startswith("UNAVAILABLE")
    assert never_seen.usage.completion == seen.usage.completion == down.usage.completion == 60


async def test_a_proposer_killed_in_mid_generation_and_restarted_is_used_again():
    source = proposer()
    orchestrator = service(source)
    tokens, candidates = [], []
    async for event in orchestrator.generate(request()):
        if hasattr(event, "token_ids"):
            tokens += event.token_ids
            candidates.append(event.round.candidates)
        if len(candidates) == 2:
            source.down = True
            source.sessions.clear()
        if len(candidates) == 8:
            source.down = False
    assert tokens == await plain_tokens()
    # Two rounds are on their way when a chunk comes: it failed in rounds 4, 6 and 9, and is asked next in 14.
    assert candidates[:15] == [2, 2, 2, 2, *[0] * 10, 2]


async def test_a_retriever_of_another_release_is_a_recorded_failure():
    corpus = list(b"abab")
    for _ in range(100):
        corpus.append(int(babble(corpus).argmax()))
    retriever = FakeRetriever({"book": corpus})
    orchestrator = service(proposer(), retrievers=[retriever])
    tokens, ledgers = [], []
    async for event in orchestrator.generate(request(sources=("retrieval",))):
        if hasattr(event, "token_ids"):
            tokens += event.token_ids
            ledgers.append(event.round.ledger)
            retriever.release = "release-2"
        else:
            final = event
    assert tokens == await plain_tokens()
    assert ledgers[0].accepted_by == {"retrieval": 2}
    assert final.certificate.failures["retrieval"].startswith("FAILED_PRECONDITION")
    _, after = await collect(orchestrator.generate(request(sources=("retrieval",))))
    assert after.certificate.failures == {}
    assert b'"retrieval":"release-2"' in after.certificate.manifest


@pytest.mark.parametrize("fault", [asyncio.Event(), Unavailable("proposer", "gone"), token_out_of_range])
async def test_under_a_verifier_with_laws_a_source_that_fails_is_out_for_the_request(fault):
    source = proposer(with_laws=("oracle",))
    source.script.extend([None, fault])
    orchestrator = service(source, settings=SHORT if isinstance(fault, asyncio.Event) else SETTINGS)
    chunks, final = await collect(orchestrator.generate(request(verifier="rejection")))
    assert [chunk.round.candidates for chunk in chunks[:5]] == [2, 0, 0, 0, 0]
    assert final.certificate.ledger.failed_by == {"oracle": 1}
    assert final.usage.completion == 60
