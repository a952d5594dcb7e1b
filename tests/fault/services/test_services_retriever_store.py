"""A real retriever process whose Redis goes away: it serves, says so, restarts without it, and picks it up again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from contracts.retrieval import PublishedOutput, RetrievalQuery
from retriever.redis_store import RedisStore
from services.clients.retriever import RetrieverClient
from services.redis_embedded import EmbeddedRedis
from services.retriever_service.process import STORE_HEALTH
from tests.contract.processes import ServiceProcess
from tests.unit.retriever.corpora import TRACE, put_up

POLICIES = '{"py": {"tenants": ["a"]}}'
Status = health_pb2.HealthCheckResponse.ServingStatus


async def store_is(endpoint: str, wanted: Status.ValueType) -> None:
    """Watches the store's health until it is as wanted."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        request = health_pb2.HealthCheckRequest(service=STORE_HEALTH)
        watching = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60, wait_for_ready=True)
        async for answer in watching:
            if answer.status == wanted:
                watching.cancel()
                return
        raise AssertionError("the health stream ended")


async def matches(client: RetrieverClient, release: str, generation: int = 0) -> int:
    query = RetrievalQuery("py", release, np.array([4, 5, 6]), 8, 4, tenant="a", live_generation=generation)
    found = await client.retrieve(query)
    assert not found.live_gone
    return found.match_count


async def live_generation(client: RetrieverClient) -> int:
    (index,) = await client.describe("a")
    return index.live_generation


async def test_serves_without_its_store_restarts_without_it_and_reconnects(tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path / "redis")
    store = RedisStore(redis.url, retries=0)
    process = ServiceProcess(
        "retriever", tmp_path / "log", redis_url=redis.url, cache_dir=tmp_path / "cache", live_policies=POLICIES
    )
    try:
        release = put_up(store, "py", [TRACE])
        with process:
            client = RetrieverClient(process.endpoint)
            generation = await client.record(PublishedOutput("py", "a", "r1", np.array([4, 5, 6, 77])))
            assert await matches(client, release, generation) == 3
            assert await matches(client, release) == 2

            # A restart replays the stream: the same generation, the same answer.
            await client.close()
            process.kill()
            process.start()
            client = RetrieverClient(process.endpoint)
            assert await live_generation(client) == generation
            assert await matches(client, release, generation) == 3

            redis.stop()
            await store_is(process.endpoint, Status.NOT_SERVING)
            assert await matches(client, release, generation) == 3

            # A restart while Redis is down serves what this disk holds; live outputs are not on it.
            await client.close()
            process.kill()
            process.start()
            await store_is(process.endpoint, Status.NOT_SERVING)
            client = RetrieverClient(process.endpoint)
            assert await matches(client, release) == 2
            assert await live_generation(client) == 0
            assert "serving from this disk" in process.log.read_text()

            redis.restart()
            await store_is(process.endpoint, Status.SERVING)
            new = put_up(store, "py", [[4, 5, 6, 1]])
            async with asyncio.timeout(60):
                while (await client.describe())[0].release != new:
                    await asyncio.sleep(0.02)
            assert await matches(client, new) == 1
            assert await matches(client, release) == 2
            await client.close()
    finally:
        store.close()
        redis.stop()
