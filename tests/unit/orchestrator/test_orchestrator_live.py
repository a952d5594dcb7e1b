"""Indexes as tenants see them, live generations in round manifests, and outputs on their way back to live indexes."""

import asyncio
import json

import numpy as np
import pytest

from contracts.errors import InvalidArgument, Unavailable
from tests.helpers.fakes import FakeRetriever, FakeVerifier, collect
from tests.helpers.generation import ask, corpus, orchestrator, tokens_of


async def test_an_index_is_bound_only_for_tenants_that_see_it():
    retriever = FakeRetriever({"open": corpus(), "secret": corpus()})
    retriever.visible_to = {"secret": ("alice",)}
    generate = orchestrator(FakeVerifier(), retrievers=[retriever]).generate
    for tenant, index in (("alice", "secret"), ("alice", "open"), ("bob", "open")):
        name = f"retrieval:{index}"
        asked = len(retriever.asked)
        _, final = await collect(generate(ask(sources=(name,), tenant=tenant)))
        assert name.encode() in final.certificate.manifest
        assert {query.tenant for query in retriever.asked[asked:]} == {tenant}
    for tenant in ("bob", ""):
        with pytest.raises(InvalidArgument, match="unknown source"):
            await collect(generate(ask(sources=("retrieval:secret",), tenant=tenant)))


async def test_the_round_manifest_names_the_live_generation_that_was_asked():
    verifier, retriever = FakeVerifier(), FakeRetriever({"book": corpus()})
    retriever.live = 41
    await collect(orchestrator(verifier, retrievers=[retriever]).generate(ask(sources=("retrieval",))))
    assert {query.live_generation for query in retriever.asked} == {41}
    named = [r.manifest.live_generation for r in verifier.verified if r.manifest.plan]
    assert set(named) == {41}


async def test_the_manifest_seals_whose_and_which_index_the_live_generation_belongs_to():
    retriever = FakeRetriever({"book": corpus()})
    retriever.live = 41
    generate = orchestrator(FakeVerifier(), retrievers=[retriever]).generate
    _, final = await collect(generate(ask(sources=("retrieval",), tenant="alice")))
    manifest = json.loads(final.certificate.manifest)
    assert (manifest["indexes"], manifest["tenant"]) == ({"retrieval": "book"}, "alice")
    assert manifest["releases"] == {"retrieval": retriever.release}


async def test_an_answer_from_another_release_than_the_bound_one_is_a_failure_of_the_source():
    retriever = FakeRetriever({"book": corpus()})
    retriever.answers_from = "release-0"
    _, final = await collect(orchestrator(FakeVerifier(), retrievers=[retriever]).generate(ask(sources=("retrieval",))))
    assert final.usage.completion == 40
    assert final.usage.proposed == 0
    assert "retrieval.release: answered from 'release-0'" in final.certificate.failures["retrieval"]


async def test_a_live_generation_that_is_gone_costs_one_miss_and_the_text_stays():
    verifier, retriever = FakeVerifier(), FakeRetriever({"book": corpus()})
    plain, _ = await collect(orchestrator(FakeVerifier()).generate(ask(sources=())))
    retriever.live, retriever.live_gone = 41, True
    chunks, final = await collect(orchestrator(verifier, retrievers=[retriever]).generate(ask(sources=("retrieval",))))
    assert tokens_of(chunks) == tokens_of(plain)
    assert [query.live_generation for query in retriever.asked][:3] == [41, 0, 0]
    assert [r.manifest.live_generation for r in verifier.verified][:3] == [41, 0, 0]
    assert final.certificate.accepted_by["retrieval"] > 0


async def test_finished_outputs_go_to_the_index_that_records_them_and_to_no_other():
    retriever = FakeRetriever({"book": corpus()})
    retriever.recording = frozenset({"alice"})
    serving = orchestrator(FakeVerifier(), retrievers=[retriever])
    outputs = {}
    for tenant in ("alice", "bob"):
        chunks, _ = await collect(serving.generate(ask(sources=("retrieval",), tenant=tenant)))
        outputs[tenant] = tokens_of(chunks)
        await collect(serving.generate(ask(sources=("prompt_lookup",), tenant=tenant)))
    await serving.aclose()
    (recorded,) = retriever.recorded
    assert (recorded.index, recorded.tenant) == ("book", "alice")
    np.testing.assert_array_equal(recorded.tokens, outputs["alice"])
    assert recorded.entry


async def test_a_retriever_that_fails_or_hangs_while_recording_holds_nobody_up():
    class Failing(FakeRetriever):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            self.reached, self.hang = asyncio.Event(), asyncio.Event()

        async def record(self, output):
            self.reached.set()
            if output.tenant == "hanging":
                await self.hang.wait()
            raise Unavailable("store", "gone")

    retriever = Failing({"book": corpus()})
    retriever.recording = frozenset({"failing", "hanging"})
    serving = orchestrator(FakeVerifier(), retrievers=[retriever])
    for tenant in ("failing", "hanging"):
        retriever.reached.clear()
        _, final = await collect(serving.generate(ask(sources=("retrieval",), tenant=tenant)))
        assert final.usage.completion > 0
        await retriever.reached.wait()
    retriever.hang.set()
    await serving.aclose()
