"""Groups of retrievers over gRPC answer as one big retriever does, whatever is asked and wherever segments lie."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import FailedPrecondition, InvalidArgument, NotFound
from contracts.ports import RetrieverPort
from contracts.retrieval import MAX_BATCH, PublishedOutput, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from protos.draftproof.v1.retriever_pb2_grpc import add_RetrieverServiceServicer_to_server
from retriever.library import Library
from retriever.live import LiveLibrary, LivePolicy
from retriever.memory_store import MemoryStore
from retriever.placement import Share
from retriever.retriever import Retriever
from services.clients.retriever import RetrieverClient
from services.clients.retriever_groups import GroupedRetriever, open_retriever
from services.retriever_service.port import LocalRetriever
from services.retriever_service.servicer import SERVICE, RetrieverServicer
from services.wire.retriever_parts import decode_part, decode_reply
from tests.contract.serving import served
from tests.unit.retriever.corpora import put_up

GROUPS = ("a", "b", "c")
POLICY = {"py": LivePolicy(frozenset({"t"}), 2**32)}


def segments(seed: int, alphabet: int = 4) -> list[list[list[int]]]:
    """Nine segments of two documents each, over few tokens, so that tries are deep and ties are many."""
    generator = np.random.default_rng(seed)
    return [[generator.integers(0, alphabet, 60).tolist() for _ in range(2)] for _ in range(9)]


def retriever(store: MemoryStore, directory: Path, share: Share) -> Retriever:
    library = Library(store, directory, share=share, local_name=f"serving-{share.group}")
    library.poll()
    live = LiveLibrary(store, POLICY, library.tokenizers)
    live.poll()
    return Retriever(library, live)


class Cluster:
    """One store, one whole retriever, three groups served over gRPC, and the merging client over them."""

    def __init__(self, store: MemoryStore, whole: Retriever, groups: list[Retriever], client: GroupedRetriever) -> None:
        self.store, self.whole, self.groups, self.client = store, whole, groups, client

    def poll(self) -> None:
        for each in (self.whole, *self.groups):
            each.library.poll()
            assert each.live is not None
            each.live.poll()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    store = MemoryStore()
    put_up(store, "py", *segments(1))
    whole = retriever(store, tmp_path / "whole", Share())
    groups = [retriever(store, tmp_path / name, Share(name, GROUPS)) for name in GROUPS]
    async with AsyncExitStack() as stack:
        endpoints = []
        for group in groups:
            port = LocalRetriever(group)
            servicer = RetrieverServicer(port, port)
            endpoints.append(
                await stack.enter_async_context(
                    served(SERVICE, lambda server, s=servicer: add_RetrieverServiceServicer_to_server(s, server))
                )
            )
        client = open_retriever(", ".join(endpoints))
        assert isinstance(client, GroupedRetriever)
        stack.push_async_callback(client.close)
        yield Cluster(store, whole, groups, client)


async def both(cluster: Cluster, query: RetrievalQuery) -> None:
    port: RetrieverPort = LocalRetriever(cluster.whole)
    one, merged = await port.retrieve(query), await cluster.client.retrieve(query)
    assert merged.same_as(one), (query, one, merged)
    assert (merged.release, merged.live_generation) == (query.release, query.live_generation)


async def test_merged_groups_equal_one_big_retriever(cluster: Cluster) -> None:
    (index,) = await cluster.client.describe()
    (whole,) = await LocalRetriever(cluster.whole).describe()
    assert index == whole
    sizes = [len(group.library.current("py").held) for group in cluster.groups]
    assert sum(sizes) == 9
    assert sum(size > 0 for size in sizes) > 1
    generator = np.random.default_rng(7)
    for turn in range(60):
        suffix = generator.integers(0, 5, int(generator.integers(0, 9))).astype(np.int64)
        query = RetrievalQuery(
            "py",
            index.release,
            suffix,
            node_budget=int(generator.integers(0, 40)),
            max_depth=int(generator.integers(1, 9)),
            min_match=1 + turn % 3,
            max_match=8,
        )
        await both(cluster, query)


async def test_a_batch_over_groups_is_its_queries_answered_in_order(cluster: Cluster) -> None:
    (index,) = await cluster.client.describe()
    query = RetrievalQuery("py", index.release, np.array([], np.int64), 8, 4, max_match=8)
    suffixes = [np.array(suffix, np.int64) for suffix in ([0, 1], [3, 3], [4])]
    for suffix, found in zip(suffixes, await cluster.client.retrieve_batch(query, suffixes), strict=True):
        assert found.same_as(await cluster.client.retrieve(replace(query, suffix=suffix)))
    with pytest.raises(InvalidArgument, match="suffixes"):
        await cluster.client.retrieve_batch(query, suffixes * MAX_BATCH)


async def test_live_outputs_count_once_over_groups(cluster: Cluster) -> None:
    output = PublishedOutput("py", "t", "request-1", np.array([0, 1, 2, 3, 3, 3, 3, 0]))
    generation = await cluster.client.record(output)
    assert await cluster.client.record(output) == generation
    cluster.poll()
    (index,) = await cluster.client.describe("t")
    assert (index.live_generation, index.records) == (generation, True)
    query = RetrievalQuery("py", index.release, np.array([3, 3, 3]), 32, 6, tenant="t", live_generation=generation)
    await both(cluster, query)
    stranger = (await cluster.client.describe("other"))[0]
    assert (stranger.live_generation, stranger.records) == (0, False)


async def test_a_live_generation_that_its_group_lost_is_a_miss_of_the_whole(cluster: Cluster) -> None:
    (index,) = await cluster.client.describe("t")
    query = RetrievalQuery("py", index.release, np.array([1]), 8, 2, tenant="t", live_generation=99)
    found = await cluster.client.retrieve(query)
    assert (found.live_gone, found.miss) == (True, True)
    await both(cluster, query)


async def test_a_replica_that_lags_reads_on_before_it_calls_a_generation_gone(cluster: Cluster) -> None:
    generation = await cluster.client.record(PublishedOutput("py", "t", "r", np.array([0, 1, 2])))
    release = cluster.whole.library.current("py").release_id
    query = RetrievalQuery("py", release, np.array([0, 1]), 8, 2, tenant="t", live_generation=generation)
    await both(cluster, query)
    assert not (await cluster.client.retrieve(query)).live_gone


async def test_while_groups_swap_one_by_one_the_release_that_all_have_is_named(cluster: Cluster) -> None:
    (before,) = await cluster.client.describe()
    new = put_up(cluster.store, "py", *segments(2))
    cluster.groups[0].library.poll()
    cluster.whole.library.poll()
    (during,) = await cluster.client.describe()
    assert during.release == before.release
    await both(cluster, RetrievalQuery("py", before.release, np.array([1, 2]), 16, 4))
    cluster.poll()
    (after,) = await cluster.client.describe()
    assert after.release == new
    await both(cluster, RetrievalQuery("py", new, np.array([1, 2]), 16, 4))
    with pytest.raises(FailedPrecondition, match="release_id"):
        await cluster.client.retrieve(RetrievalQuery("py", "f" * 64, np.array([1]), 16, 4))


async def test_a_group_alone_refuses_to_answer_for_the_whole(cluster: Cluster) -> None:
    release = cluster.whole.library.current("py").release_id
    with pytest.raises(FailedPrecondition, match="holds a part"):
        await LocalRetriever(cluster.groups[0]).retrieve(RetrievalQuery("py", release, np.array([1]), 8, 2))


async def test_missing_and_doubled_groups_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *segments(1))

    class Part(LocalRetriever):
        async def close(self) -> None:
            return None

    a, b = (Part(retriever(store, tmp_path / name, Share(name, GROUPS))) for name in "ab")
    whole = Part(retriever(store, tmp_path / "whole", Share()))
    for ports in ((a, b), (a, a, b), (a, whole)):
        with pytest.raises(FailedPrecondition, match="retriever_endpoint"):
            await GroupedRetriever(ports).describe()
    with pytest.raises(InvalidArgument, match="retriever_group"):
        Share("d", GROUPS)
    with pytest.raises(InvalidArgument, match="retriever_endpoint"):
        open_retriever(" , ")


async def test_refusals_cross_the_wire_and_do_not_end_the_stream(cluster: Cluster) -> None:
    release = cluster.whole.library.current("py").release_id
    with pytest.raises(NotFound, match="index"):
        await cluster.client.retrieve(RetrievalQuery("other", release, np.array([1]), 8, 2))
    with pytest.raises(InvalidArgument, match="max_continuation"):
        await cluster.client.retrieve(RetrievalQuery("py", release, np.array([1]), 8, 17))
    with pytest.raises(InvalidArgument, match="max_suffix"):
        await cluster.client.retrieve(RetrievalQuery("py", release, np.array([1]), 8, 2, max_match=33))
    await both(cluster, RetrievalQuery("py", release, np.array([1]), 8, 2))


async def test_parts_are_not_served_by_a_retriever_that_answers_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    put_up(store, "py", *segments(1))
    servicer = RetrieverServicer(LocalRetriever(retriever(store, tmp_path, Share())))
    async with served(SERVICE, lambda server: add_RetrieverServiceServicer_to_server(servicer, server)) as endpoint:
        client = RetrieverClient(endpoint)
        with pytest.raises(FailedPrecondition, match="answers alone"):
            await GroupedRetriever([client]).retrieve(RetrievalQuery("py", "r", np.array([1]), 8, 2))
        await client.close()


def test_malformed_parts_are_refused_by_field() -> None:
    from contracts.errors import DataLoss

    with pytest.raises(InvalidArgument, match="question"):
        decode_part(pb.PartRequest(index="py"))
    with pytest.raises(DataLoss, match="outcome"):
        decode_reply(pb.PartResponse())


async def test_counts_of_nodes_out_of_order_are_refused(cluster: Cluster) -> None:
    from retriever.corpus import Corpus
    from retriever.merging import AboveQuestion, CountQuestion

    corpus = Corpus("py", cluster.whole.library.current("py").release_id)
    port = LocalRetriever(cluster.groups[0])

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    for parents, depths in ((ints(0, -1), ints(1, 1)), (ints(-1, 0), ints(1, 1)), (ints(-2, 0), ints(1, 2))):
        with pytest.raises(InvalidArgument, match=r"count\.parents"):
            await port.part(corpus, CountQuestion(ints(1), ints(1, 2), parents, depths))
    with pytest.raises(InvalidArgument, match="above"):
        await port.part(corpus, AboveQuestion(ints(1), 2, 0, 10))
