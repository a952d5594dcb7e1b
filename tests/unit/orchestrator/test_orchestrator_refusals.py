"""Bad input is refused by name; what is merely absent is recorded."""

import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, Unavailable
from contracts.options import SourceOption
from contracts.sampling import SamplingPolicy
from orchestrator.settings import OrchestratorSettings
from tests.helpers.fakes import (
    EOS,
    VOCAB,
    FakeProposer,
    FakeRetriever,
    FakeVerifier,
    collect,
)
from tests.helpers.generation import (
    PROMPT,
    ask,
    corpus,
    orchestrator,
)

NAN = float("nan")
USER = {"role": "user", "content": "x"}


def tabled() -> FakeProposer:
    proposer = FakeProposer()
    proposer.options["prompt_lookup"] = (
        SourceOption("shortest", 1, 8, 2),
        SourceOption("longest", 1, 8, 8, not_below="shortest"),
    )
    return proposer


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"text": ""}, InvalidArgument, "text"),
        ({"prompt_ids": ()}, InvalidArgument, "prompt_ids"),
        ({"messages": ()}, InvalidArgument, "messages"),
        ({"messages": ({"role": "user"},)}, InvalidArgument, "messages[0].content"),
        ({"messages": ({"role": "banana", "content": "x"},)}, InvalidArgument, "messages[0].role"),
        ({"messages": (USER, {"role": "", "content": "x"})}, InvalidArgument, "messages[1].role"),
        ({"messages": (USER, {"role": "user", "content": "\ud800"})}, InvalidArgument, "messages[1].content"),
        ({"text": "a\ud800"}, InvalidArgument, "text"),
        ({"text": "x", "prompt_ids": (1,)}, InvalidArgument, "prompt"),
        ({"prompt_ids": (1, VOCAB)}, InvalidArgument, "prompt_ids[1]"),
        ({"text": "x" * 5000}, InvalidArgument, "text"),
        ({"sources": ("nobody",)}, InvalidArgument, "sources"),
        ({"sources": ("retrieval",)}, InvalidArgument, "sources"),
        ({"sources": ("prompt_lookup", "prompt_lookup")}, InvalidArgument, "sources[1]"),
        ({"sources": ("retrieval:",)}, InvalidArgument, "sources[0]"),
        ({"sources": (), "indexes": {"retrieval": "x"}}, InvalidArgument, "indexes.retrieval"),
        ({"indexes": {"film": "x"}}, InvalidArgument, "indexes.film"),
        ({"indexes": {"prompt_lookup": "x"}}, InvalidArgument, "indexes.prompt_lookup"),
        ({"indexes": {"retrieval": ""}}, InvalidArgument, "indexes.retrieval"),
        ({"sources": ("retrieval:a",), "indexes": {"retrieval:a": "b"}}, InvalidArgument, "indexes.retrieval:a"),
        ({"options": {"film": {"x": 1}}}, InvalidArgument, "options.film"),
        ({"options": {"prompt_lookup": {"depht": 1}}}, InvalidArgument, "options.prompt_lookup.depht"),
        ({"sources": ("nobody",), "speculation": False}, InvalidArgument, "sources"),
        ({"sources": ("nobody",), "node_budget": 0}, InvalidArgument, "sources"),
        ({"options": {"film": {"x": 1}}, "speculation": False}, InvalidArgument, "options.film"),
        (
            {"options": {"prompt_lookup": {"x": 1}}, "node_budget": 0},
            InvalidArgument,
            "options.prompt_lookup.x",
        ),
        ({"policy": SamplingPolicy(temperature=0, raw_logprobs=True)}, InvalidArgument, "sampling.raw_logprobs"),
        (
            {"policy": SamplingPolicy(allowed_ids=(3, EOS), stop_ids=(3,), min_tokens=2)},
            InvalidArgument,
            "sampling.min_tokens",
        ),
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


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"depht": 2}, "depht"),
        ({"longest": 9}, "longest"),
        ({"longest": 0}, "longest"),
        ({"longest": 1}, "longest"),
        ({"longest": 3, "shortest": 4}, "longest"),
    ],
)
async def test_bad_options_are_refused_by_their_source_s_table_before_a_session_opens(options, field):
    verifier = FakeVerifier()
    with pytest.raises(InvalidArgument) as caught:
        await collect(orchestrator(verifier, proposers=[tabled()]).generate(ask(options={"prompt_lookup": options})))
    assert caught.value.field == f"options.prompt_lookup.{field}"
    assert "open_session" not in verifier.calls


async def test_options_reach_their_source():
    proposer = tabled()
    service = orchestrator(FakeVerifier(), proposers=[proposer])
    await collect(service.generate(ask(options={"prompt_lookup": {"longest": 4, "shortest": 4}})))
    assert {tuple(asked.options.items()) for asked in proposer.asked} == {(("longest", 4), ("shortest", 4))}


async def test_a_source_may_still_refuse_an_option_that_its_table_admits():
    proposer = tabled()
    proposer.script.append(InvalidArgument("options.longest", "not with this text"))
    service = orchestrator(FakeVerifier(), proposers=[proposer])
    with pytest.raises(InvalidArgument) as caught:
        await collect(service.generate(ask(options={"prompt_lookup": {"longest": 4}})))
    assert caught.value.field == "options.prompt_lookup.longest"


async def test_retrieval_s_options_change_what_an_index_is_asked_and_may_offer():
    retriever = FakeRetriever({"book": corpus()})
    service = orchestrator(FakeVerifier(), proposers=[], retrievers=[retriever])
    prompt = "#" + PROMPT[-3:]
    free, _ = await collect(service.generate(ask(text=prompt)))
    retriever.asked.clear()
    bound, _ = await collect(
        service.generate(ask(text=prompt, options={"retrieval": {"min_match": 3, "spec_factor": 1}}))
    )
    assert {query.min_match for query in retriever.asked} == {3}
    assert (bound[0].round.candidates, free[0].round.candidates) == (3, 24)
    for name, value in (("min_match", 17), ("spec_factor", 65), ("max_suffx", 1)):
        with pytest.raises(InvalidArgument) as caught:
            await collect(service.generate(ask(options={"retrieval": {name: value}})))
        assert caught.value.field == f"options.retrieval.{name}"


async def test_with_two_indexes_and_no_default_the_certificate_says_why_retrieval_is_absent():
    service = orchestrator(FakeVerifier(), retrievers=[FakeRetriever({"book": corpus(), "code": corpus()})])
    _, final = await collect(service.generate(ask()))
    assert final.certificate.absent == {
        "retrieval": "several indexes are served, and none of them is the default: book, code"
    }


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


async def test_two_names_of_one_index_are_refused():
    retriever = FakeRetriever({"book": corpus(), "code": corpus()})
    service = orchestrator(FakeVerifier(), retrievers=[retriever])
    twice = ("retrieval", "retrieval:code")
    with pytest.raises(InvalidArgument, match=r"sources: 'retrieval' and 'retrieval:code' are both index 'code'"):
        await collect(service.generate(ask(sources=twice, indexes={"retrieval": "code"})))
    assert not retriever.asked
    await collect(service.generate(ask(sources=twice, indexes={"retrieval": "book"})))
    assert {query.index for query in retriever.asked} == {"book", "code"}


async def test_default_sources_that_nobody_serves_are_recorded_as_absent():
    _, final = await collect(orchestrator(FakeVerifier()).generate(ask()))
    assert final.certificate.absent == {"retrieval": "no service offers it"}


async def test_options_are_sealed_in_the_manifest():
    options = {"prompt_lookup": {"longest": 2}}
    service = orchestrator(FakeVerifier(), proposers=[tabled()])
    _, final = await collect(service.generate(ask(sources=("prompt_lookup",), options=options)))
    assert b'"options":{"prompt_lookup.longest":2}' in final.certificate.manifest


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
