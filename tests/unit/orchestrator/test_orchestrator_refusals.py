"""Bad input is refused by name; what is merely absent is recorded."""

import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    VOCAB,
    FakeProposer,
    FakeRetriever,
    FakeVerifier,
    collect,
)
from tests.helpers.generation import (
    ask,
    corpus,
    orchestrator,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"text": ""}, InvalidArgument, "text"),
        ({"prompt_ids": ()}, InvalidArgument, "prompt_ids"),
        ({"messages": ()}, InvalidArgument, "messages"),
        ({"messages": ({"role": "user"},)}, InvalidArgument, "messages[0].content"),
        ({"text": "x", "prompt_ids": (1,)}, InvalidArgument, "prompt"),
        ({"prompt_ids": (1, VOCAB)}, InvalidArgument, "prompt_ids[1]"),
        ({"text": "x" * 5000}, InvalidArgument, "text"),
        ({"sources": ("nobody",)}, InvalidArgument, "sources"),
        ({"sources": ("retrieval",)}, InvalidArgument, "sources"),
        ({"sources": ("prompt_lookup", "prompt_lookup")}, InvalidArgument, "sources[1]"),
        ({"sources": (), "indexes": {"retrieval": "x"}}, InvalidArgument, "indexes.retrieval"),
        ({"policy": SamplingPolicy(temperature=NAN)}, InvalidArgument, "sampling.temperature"),
        ({"node_budget": -1}, InvalidArgument, "node_budget"),
        ({"node_budget": 65}, InvalidArgument, "node_budget"),
        ({"max_depth": 0}, InvalidArgument, "max_depth"),
        ({"deadline_ms": 0}, InvalidArgument, "deadline_ms"),
        ({"budget": "generous"}, InvalidArgument, "budget"),
        ({"strict": True}, FailedPrecondition, "strict"),
        ({"verifier": "oracle"}, InvalidArgument, "verifier"),
        ({"verifier": "membership"}, FailedPrecondition, "sampling.temperature"),
        ({"verifier": "typical"}, FailedPrecondition, "exactness"),
        ({"verifier": "rejection"}, FailedPrecondition, "sources.semantics"),
        ({"expected_manifest_hash": "0" * 64}, FailedPrecondition, "expected_manifest_hash"),
    ],
)
async def test_bad_input_is_refused_by_name_before_a_session_opens(fields, error, field):
    verifier = FakeVerifier()
    service = orchestrator(verifier)
    with pytest.raises(error) as caught:
        await collect(service.generate(ask(**fields)))
    assert caught.value.field == field
    assert "open_session" not in verifier.calls
    _, final = await collect(service.generate(ask()))
    assert final.usage.completion == 40


async def test_the_expected_manifest_hash_runs_where_it_matches():
    service = orchestrator(FakeVerifier())
    _, first = await collect(service.generate(ask()))
    _, again = await collect(service.generate(ask(expected_manifest_hash=first.certificate.manifest_hash)))
    assert again.certificate.manifest_hash == first.certificate.manifest_hash


async def test_a_heuristic_verifier_runs_where_exactness_is_waived():
    _, final = await collect(orchestrator(FakeVerifier()).generate(ask(verifier="typical", exact_mode=False)))
    assert final.certificate.exactness == "heuristic"


async def test_options_reach_their_source_and_bad_ones_are_refused_by_name():
    class Picky(FakeProposer):
        async def propose(self, request):
            if "depht" in request.options:
                raise InvalidArgument("options.depht", "unknown")
            return await super().propose(request)

    proposer = Picky()
    service = orchestrator(FakeVerifier(), proposers=[proposer])
    await collect(service.generate(ask(sources=("prompt_lookup",), options={"prompt_lookup": {"min_match": 2}})))
    assert {tuple(asked.options.items()) for asked in proposer.asked} == {(("min_match", 2),)}
    with pytest.raises(InvalidArgument) as caught:
        await collect(service.generate(ask(sources=("prompt_lookup",), options={"prompt_lookup": {"depht": 2}})))
    assert caught.value.field == "options.prompt_lookup.depht"


async def test_an_index_is_chosen_by_request_or_by_name():
    retriever = FakeRetriever({"book": corpus(), "code": corpus()})
    service = orchestrator(FakeVerifier(), retrievers=[retriever])
    await collect(service.generate(ask(sources=("retrieval",), indexes={"retrieval": "code"})))
    assert {query.index for query in retriever.asked} == {"code"}
    retriever.asked.clear()
    _, final = await collect(service.generate(ask(sources=("retrieval:book", "retrieval:code"))))
    assert {query.index for query in retriever.asked} == {"book", "code"}
    assert set(final.certificate.proposed_by) == {"retrieval:book", "retrieval:code"}
    with pytest.raises(InvalidArgument, match="several indexes"):
        await collect(service.generate(ask(sources=("retrieval",))))
    with pytest.raises(InvalidArgument, match="unknown index"):
        await collect(service.generate(ask(sources=("retrieval",), indexes={"retrieval": "film"})))


async def test_default_sources_that_nobody_serves_are_recorded_as_absent():
    _, final = await collect(orchestrator(FakeVerifier()).generate(ask()))
    assert final.certificate.absent == {"retrieval": "no service offers it"}


async def test_options_are_sealed_in_the_manifest():
    options = {"prompt_lookup": {"max_ngram": 2}}
    _, final = await collect(orchestrator(FakeVerifier()).generate(ask(sources=("prompt_lookup",), options=options)))
    assert b'"options":{"prompt_lookup.max_ngram":2}' in final.certificate.manifest


async def test_a_verifier_that_never_answered_is_an_error():
    verifier = FakeVerifier()
    verifier.down = True
    with pytest.raises(Unavailable):
        await collect(orchestrator(verifier).generate(ask()))


async def test_a_verifier_exchanged_since_it_was_described_is_described_again():
    verifier = FakeVerifier()
    service = orchestrator(verifier, settings=OrchestratorSettings(describe_ttl_ms=3_600_000.0))
    await collect(service.generate(ask()))
    verifier.target = FakeVerifier(hardware="other").target
    _, final = await collect(service.generate(ask()))
    assert b'"hardware":"other"' in final.certificate.manifest
    assert final.certificate.parents == ()
