"""Three retriever processes that hold a third of a release each answer as one retriever that holds it whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pytest

from contracts.errors import Unavailable
from contracts.retrieval import PublishedOutput, RetrievalQuery
from retriever.redis_store import RedisStore
from services.clients.retriever import RetrieverClient
from services.clients.retriever_groups import GroupedRetriever, open_retriever
from services.redis_embedded import embedded_redis
from tests.contract.processes import ServiceProcess
from tests.unit.retriever.corpora import put_up

GROUPS = "abc"
POLICIES = '{"py": {"tenants": ["t"]}}'


@dataclass
class Processes:
    store: RedisStore
    groups: list[ServiceProcess]
    whole: ServiceProcess


@dataclass
class Clients:
    merged: GroupedRetriever
    whole: RetrieverClient


def segments(seed: int) -> list[list[list[int]]]:
    generator = np.random.default_rng(seed)
    return [[generator.integers(0, 4, 80).tolist() for _ in range(2)] for _ in range(9)]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    directory = tmp_path_factory.mktemp("groups")
    with ExitStack() as stack:
        redis = stack.enter_context(embedded_redis(directory / "redis"))
        store = RedisStore(redis.url)
        stack.callback(store.close)
        put_up(store, "py", *segments(1))

        def retriever(name: str, **settings: str) -> ServiceProcess:
            process = ServiceProcess(
                "retriever",
                directory / f"{name}.log",
                redis_url=redis.url,
                cache_dir=directory / name,
                live_policies=POLICIES,
                **settings,
            )
            process.start(wait=False)
            stack.callback(process.__exit__, None, None, None)
            return process

        started = [retriever(name, retriever_groups=",".join(GROUPS), retriever_group=name) for name in GROUPS]
        whole = retriever("whole")
        for process in (*started, whole):
            process.wait_healthy()
        yield Processes(store, started, whole)


@pytest.fixture
async def clients(processes: Processes) -> AsyncIterator[Clients]:
    merged = open_retriever(",".join(process.endpoint for process in processes.groups))
    assert isinstance(merged, GroupedRetriever)
    whole = RetrieverClient(processes.whole.endpoint)
    yield Clients(merged, whole)
    await merged.close()
    await whole.close()


async def described(clients: Clients, release: str, generation: int | None = None) -> int:
    """The live generation for tenant t, once all four processes describe this release, and this generation if given."""
    async with asyncio.timeout(60):
        while True:
            (merged,), (whole,) = await clients.merged.describe("t"), await clients.whole.describe("t")
            if merged == whole and merged.release == release and generation in (None, merged.live_generation):
                return merged.live_generation
            await asyncio.sleep(0.02)


async def same_answers(clients: Clients, release: str, generation: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for turn in range(40):
        query = RetrievalQuery(
            "py",
            release,
            generator.integers(0, 5, int(generator.integers(1, 9))).astype(np.int64),
            node_budget=int(generator.integers(1, 40)),
            max_depth=int(generator.integers(1, 9)),
            min_match=1 + turn % 3,
            max_match=8,
            tenant="t",
            live_generation=generation,
        )
        merged, whole = await clients.merged.retrieve(query), await clients.whole.retrieve(query)
        assert merged.same_as(whole), query
        assert not merged.live_gone


async def test_groups_answer_as_one_through_live_outputs_and_a_new_release(
    processes: Processes, clients: Clients
) -> None:
    release = processes.store.aliases()["py"].release_id
    assert await described(clients, release) == 0
    await same_answers(clients, release, 0, seed=1)

    generation = await clients.merged.record(PublishedOutput("py", "t", "r1", np.array([0, 1, 2, 3, 3, 3, 0, 1])))
    generation = await described(clients, release, generation)
    await same_answers(clients, release, generation, seed=2)

    new = put_up(processes.store, "py", *segments(2))
    await described(clients, new, generation)
    await same_answers(clients, new, generation, seed=3)
    # The release before it is still answered, by all groups.
    await same_answers(clients, release, 0, seed=4)


async def test_without_one_group_there_is_no_answer_and_with_it_again_there_is(
    processes: Processes, clients: Clients
) -> None:
    release = processes.store.aliases()["py"].release_id
    generation = await described(clients, release)
    query = RetrievalQuery("py", release, np.array([1, 2]), 16, 4, tenant="t", live_generation=generation)
    processes.groups[1].kill()
    with pytest.raises(Unavailable):
        await clients.merged.retrieve(query)
    processes.groups[1].start()
    async with asyncio.timeout(60):
        while True:
            try:
                merged = await clients.merged.retrieve(query)
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    assert merged.same_as(await clients.whole.retrieve(query))
    assert not merged.live_gone
