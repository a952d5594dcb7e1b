"""The retriever port's contract, on the fake, in process and over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound, PermissionDenied
from contracts.ports import RetrieverPort
from contracts.proposal import MAX_NODES
from contracts.retrieval import MAX_BATCH, PublishedOutput, RetrievalQuery
from protos.draftproof.v1.retriever_pb2_grpc import add_RetrieverServiceServicer_to_server
from retriever.library import Library
from retriever.memory_store import MemoryStore
from retriever.publish import activate, publish
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.retriever import Retriever
from retriever.segment_format import build_segment, segment_digest
from retriever.trie import MAX_NODE_BUDGET, QueryLimits
from services.clients.retriever import RetrieverClient
from services.link.server import LinkServer
from services.retriever_service.port import LocalRetriever
from services.retriever_service.servicer import SERVICE, RetrieveLink, RetrieverServicer
from tests.contract.serving import served
from tests.helpers.fakes import VOCAB, FakeRetriever, FakeTokenizer

CORPUS = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 6, 70]


def local_retriever(directory: Path) -> LocalRetriever:
    data = build_segment([np.array(CORPUS, dtype=np.int64)])
    manifest = ReleaseManifest("corpus", "CC0", "", FakeTokenizer.digest, "none", VOCAB, 16, 16, "here", "toy")
    entry = SegmentEntry(segment_digest(data), len(data), len(CORPUS))
    store = MemoryStore()
    release_id = publish(store, Release(manifest, (entry,)), {entry.digest: data})
    activate(store, "toy", release_id)
    library = Library(store, directory)
    library.poll()
    return LocalRetriever(Retriever(library))


@pytest.fixture(params=["fake", "local", "grpc", "grpc over the fake", "link"])
async def port(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RetrieverPort]:
    fake = "fake" in request.param
    behind: RetrieverPort = FakeRetriever({"toy": CORPUS}) if fake else local_retriever(tmp_path)
    if request.param in ("fake", "local"):
        yield behind
        return
    servicer = RetrieverServicer(behind)
    link = tmp_path / "s.sock" if request.param == "link" else None
    async with (
        LinkServer(link, lambda: RetrieveLink(behind)),
        served(SERVICE, lambda server: add_RetrieverServiceServicer_to_server(servicer, server)) as endpoint,
    ):
        client = RetrieverClient(endpoint, link=link)
        yield client
        await client.close()


async def query_for(port: RetrieverPort, suffix: list[int], **changes: int | str) -> RetrievalQuery:
    (index,) = await port.describe()
    query = RetrievalQuery("toy", index.release, np.array(suffix, dtype=np.int64), 8, 4, max_match=8)
    return replace(query, **changes)  # type: ignore[arg-type]


async def test_describe(port: RetrieverPort) -> None:
    (index,) = await port.describe()
    assert (index.index, index.tokenizer_digest, index.vocab_size) == ("toy", FakeTokenizer.digest, VOCAB)
    assert (index.max_match, index.max_depth, index.tokens) == (16, 16, len(CORPUS))
    assert index.release


async def test_the_longest_match_and_its_continuations(port: RetrieverPort) -> None:
    found = await port.retrieve(await query_for(port, [9, 1, 2], max_depth=1))
    assert (found.match_length, found.match_count, found.miss) == (2, 3, False)
    assert dict(zip(found.tokens.tolist(), found.counts.tolist(), strict=True)) == {3: 2, 6: 1}
    assert found.parents.tolist() == [-1, -1]
    assert found.depths.tolist() == [1, 1]
    assert found.tokens.dtype == found.parents.dtype == found.depths.dtype == found.counts.dtype == np.int64


async def test_a_trie_has_parents_before_children(port: RetrieverPort) -> None:
    found = await port.retrieve(await query_for(port, [1, 2]))
    for row, parent in enumerate(found.parents.tolist()):
        assert -1 <= parent < row
        assert found.depths[row] == (1 if parent < 0 else found.depths[parent] + 1)


async def test_the_budget_cuts_and_says_so(port: RetrieverPort) -> None:
    found = await port.retrieve(await query_for(port, [1, 2], node_budget=1))
    assert found.tokens.tolist() == [3]
    assert found.truncated


async def test_a_miss_is_empty(port: RetrieverPort) -> None:
    found = await port.retrieve(await query_for(port, [99]))
    assert (found.match_length, found.miss, len(found.tokens)) == (0, True, 0)


async def test_refusals_do_not_end_the_port(port: RetrieverPort) -> None:
    with pytest.raises(NotFound) as unknown:
        await port.retrieve(await query_for(port, [1], index="other"))
    assert unknown.value.field == "index"
    with pytest.raises(FailedPrecondition):
        await port.retrieve(await query_for(port, [1], release="f" * 64))
    assert not (await port.retrieve(await query_for(port, [1, 2]))).miss


async def test_many_at_once(port: RetrieverPort) -> None:
    queries = [await query_for(port, [1, 2], max_depth=1 + i % 4) for i in range(32)]
    for query, found in zip(queries, await asyncio.gather(*map(port.retrieve, queries)), strict=True):
        assert found.match_length == 2
        assert found.depths.max() <= query.max_depth


async def test_a_batch_is_its_queries_answered_in_order(port: RetrieverPort) -> None:
    query = await query_for(port, [7, 7])
    suffixes = [np.array(suffix, np.int64) for suffix in ([1, 2], [99], [9, 1, 2], [4], [1])]
    answers = await port.retrieve_batch(query, suffixes)
    for suffix, answer in zip(suffixes, answers, strict=True):
        assert answer.same_as(await port.retrieve(replace(query, suffix=suffix)))
    assert [answer.match_length for answer in answers] == [2, 0, 2, 1, 1]
    assert list(await port.retrieve_batch(query, [])) == []
    idle = await port.retrieve_batch(replace(query, node_budget=0), suffixes)
    assert [answer.nodes for answer in idle] == [0] * 5


async def test_a_batch_is_refused_as_a_whole(port: RetrieverPort) -> None:
    query = await query_for(port, [1])
    one = np.array([1], np.int64)
    with pytest.raises(InvalidArgument) as many:
        await port.retrieve_batch(query, [one] * (MAX_BATCH + 1))
    assert many.value.field == "suffixes"
    with pytest.raises(NotFound):
        await port.retrieve_batch(replace(query, index="other"), [one])
    assert len(await port.retrieve_batch(query, [one] * MAX_BATCH)) == MAX_BATCH


async def test_more_nodes_than_an_answer_carries_are_refused_before_room_is_made_for_them(tmp_path: Path) -> None:
    port = local_retriever(tmp_path)
    async with served(
        SERVICE, lambda server: add_RetrieverServiceServicer_to_server(RetrieverServicer(port), server)
    ) as endpoint:
        client = RetrieverClient(endpoint)
        for behind in (port, client):
            query = await query_for(behind, [1, 2], node_budget=MAX_NODES)
            assert not (await behind.retrieve(query)).miss
            for budget in (MAX_NODES + 1, 2**32 - 1):
                with pytest.raises(InvalidArgument) as refused:
                    await behind.retrieve(replace(query, node_budget=budget))
                assert refused.value.field == "node_budget"
        await client.close()
    with pytest.raises(InvalidArgument, match="node_budget"):
        QueryLimits(node_budget=MAX_NODE_BUDGET + 1)


async def test_an_index_is_described_and_answered_only_for_those_who_may_see_it(tmp_path: Path) -> None:
    store = MemoryStore()
    for name, tenants in (("open", ()), ("secret", ("alice",))):
        data = build_segment([np.array(CORPUS, dtype=np.int64)])
        manifest = ReleaseManifest(
            name, "CC0", "", FakeTokenizer.digest, "none", VOCAB, 16, 16, "here", "toy", tenants=tenants
        )
        entry = SegmentEntry(segment_digest(data), len(data), len(CORPUS))
        release = Release(manifest, (entry,))
        publish(store, release, {entry.digest: data})
        activate(store, name, release.release_id)
    library = Library(store, tmp_path)
    library.poll()
    servicer = RetrieverServicer(LocalRetriever(Retriever(library)))
    async with served(SERVICE, lambda server: add_RetrieverServiceServicer_to_server(servicer, server)) as endpoint:
        client = RetrieverClient(endpoint)
        seen = {tenant: {i.index: i.release for i in await client.describe(tenant)} for tenant in ("", "alice", "bob")}
        assert {tenant: sorted(names) for tenant, names in seen.items()} == {
            "": ["open"],
            "alice": ["open", "secret"],
            "bob": ["open"],
        }
        query = RetrievalQuery("secret", seen["alice"]["secret"], np.array([1, 2]), 8, 4, max_match=8, tenant="alice")
        assert not (await client.retrieve(query)).miss
        with pytest.raises(NotFound, match="index"):
            await client.retrieve(replace(query, tenant="bob"))
        await client.close()


async def test_nothing_is_recorded_without_a_policy(port: RetrieverPort) -> None:
    with pytest.raises(PermissionDenied, match="live"):
        await port.record(PublishedOutput("toy", "", "entry", np.array([1, 2])))


async def test_the_answer_says_what_it_was_made_from(tmp_path: Path) -> None:
    port = local_retriever(tmp_path)
    query = await query_for(port, [1, 2])
    found = await port.retrieve(query)
    assert (found.release, found.live_generation, found.live_gone) == (query.release, 0, False)
    gone = await port.retrieve(replace(query, live_generation=5))
    assert (gone.release, gone.live_generation, gone.live_gone, gone.miss) == (query.release, 5, True, True)
