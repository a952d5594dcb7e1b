"""Four services, a second retriever and a second orchestrator, each a process: published outputs become drafts elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import redis

from contracts.frontier import Frontier
from contracts.manifest import RoundManifest, SourcePlan
from contracts.sampling import SamplingPolicy
from orchestrator.events import Chunk, Final
from orchestrator.request import GenerateRequest
from retriever.redis_store import RedisStore
from services.clients.generate import GenerateClient
from services.clients.retriever import RetrieverClient
from tests.contract.processes import ServiceProcess
from tests.contract.tiny_stack import INDEX, tiny_stack

PROMPT = tuple(range(40, 60))
NODES, DEPTH, TOKENS = 8, 4, 48
REQUEST = GenerateRequest(
    prompt_ids=PROMPT,
    policy=SamplingPolicy(temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
    sources=("retrieval",),
    node_budget=NODES,
    max_depth=DEPTH,
    tenant="alice",
)
POLICIES = f'{{"{INDEX}": {{"tenants": ["alice"]}}}}'


@dataclass
class Services:
    """The stack's own orchestrator and retriever, and the second of each, which know each other alone."""

    orchestrators: tuple[str, str]
    retrievers: tuple[ServiceProcess, ServiceProcess]
    redis_url: str


@pytest.fixture(scope="module")
def services(tiny_checkpoint_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    directory = tmp_path_factory.mktemp("stack")
    settings = {"live_policies": POLICIES, "budget": "fixed"}
    with ExitStack() as stack:
        first = stack.enter_context(tiny_stack(tiny_checkpoint_directory, directory, **settings))
        common = {
            **settings,
            "model": tiny_checkpoint_directory,
            "redis_url": first.redis_url,
            "cache_dir": directory / "second",
            "inline_sources": "",
            "verifier_endpoint": first.verifier.endpoint,
            "proposer_endpoint": first.proposer.endpoint,
        }
        retriever = ServiceProcess("retriever", directory / "retriever-2.log", **common)
        orchestrator = ServiceProcess(
            "orchestrator", directory / "orchestrator-2.log", **common, retriever_endpoint=retriever.endpoint
        )
        for process in (retriever, orchestrator):
            process.start(wait=False)
            stack.callback(process.__exit__, None, None, None)
        for process in (retriever, orchestrator):
            process.wait_healthy()
        yield Services(
            (first.orchestrator.endpoint, orchestrator.endpoint), (first.retriever, retriever), first.redis_url
        )


async def generate(endpoint: str, request: GenerateRequest = REQUEST) -> tuple[list[Chunk], Final]:
    client = GenerateClient(endpoint)
    try:
        *chunks, final = [event async for event in client.generate(request)]
    finally:
        await client.close()
    assert isinstance(final, Final)
    return [chunk for chunk in chunks if isinstance(chunk, Chunk)], final


async def generation_at(retriever: ServiceProcess, after: int = 0) -> int:
    """The live generation for alice, once the retriever has one, and another than this."""
    client = RetrieverClient(retriever.endpoint)
    try:
        async with asyncio.timeout(60):
            while True:
                (index,) = await client.describe("alice")
                if index.live_generation not in (0, after):
                    return index.live_generation
                await asyncio.sleep(0.02)
    finally:
        await client.close()


def generations(redis_url: str) -> set[int]:
    """Every generation that the one live stream has had."""
    with redis.Redis.from_url(redis_url) as admin:
        (key,) = admin.scan_iter("*:live:*")
    namespace, _, scope = key.decode().split(":", 2)
    store = RedisStore(redis_url, namespace=namespace)
    try:
        return {entry.point.generation for entry in store.read_live(scope, 0, 1_000)}
    finally:
        store.close()


def tokens_of(chunks: list[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def first_round_hash(chunks: list[Chunk], final: Final, generation: int) -> str:
    """What the first round's manifest must hash to, if it named this live generation."""
    info = chunks[0].round
    assert info is not None
    return RoundManifest(
        manifest_hash=final.certificate.manifest_hash,
        session_id=info.session_id,
        round_id=0,
        prefix_len=len(PROMPT),
        frontier=Frontier(PROMPT).digest,
        target_generation=0,
        plan=(SourcePlan("retrieval", NODES, DEPTH),),
        source_generations={"retrieval": generation},
        live_generation=generation,
    ).hash


async def test_what_one_request_published_others_draft_from_elsewhere_and_after_a_restart(services: Services) -> None:
    here, elsewhere = services.orchestrators
    chunks, final = await generate(here)
    written = tokens_of(chunks)
    assert len(written) == TOKENS
    assert chunks[0].round is not None
    assert chunks[0].round.round_hash == first_round_hash(chunks, final, 0)
    alone = final.usage.accepted

    # The other retriever has it from the stream, and the other orchestrator drafts from that one.
    generation = await generation_at(services.retrievers[1])
    chunks, final = await generate(elsewhere)
    assert tokens_of(chunks) == written
    assert final.usage.accepted > alone + TOKENS // 3
    assert final.certificate.ledger.accepted_by["retrieval"] == final.usage.accepted
    assert chunks[0].round is not None
    assert chunks[0].round.round_hash == first_round_hash(chunks, final, generation)
    assert chunks[0].round.round_hash != first_round_hash(chunks, final, 0)
    recorded = await generation_at(services.retrievers[1], generation)

    # A tenant outside the policy sees none of it.
    chunks, final = await generate(elsewhere, replace(REQUEST, tenant="bob"))
    assert tokens_of(chunks) == written
    assert final.usage.accepted == alone
    assert chunks[0].round is not None
    assert chunks[0].round.round_hash == first_round_hash(chunks, final, 0)

    # A retriever that starts anew replays the stream: the same generation, drafted from again.
    services.retrievers[1].kill()
    services.retrievers[1].start()
    assert await generation_at(services.retrievers[1]) == recorded
    async with asyncio.timeout(60):
        while True:
            chunks, final = await generate(elsewhere)
            assert tokens_of(chunks) == written
            # Until the orchestrator has its connection back it goes on without drafts.
            if final.usage.accepted > alone + TOKENS // 3:
                break
    assert chunks[0].round is not None
    assert any(
        chunks[0].round.round_hash == first_round_hash(chunks, final, named)
        for named in generations(services.redis_url)
    )


async def test_the_release_is_what_the_manifest_names(services: Services) -> None:
    _, final = await generate(services.orchestrators[0])
    store = RedisStore(services.redis_url)
    try:
        assert store.aliases()[INDEX].release_id in final.certificate.manifest.decode()
    finally:
        store.close()
