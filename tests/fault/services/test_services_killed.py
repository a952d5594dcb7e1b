"""Services killed in the middle of a generation: the text stays, and a restarted peer is used without other restarts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from contracts.errors import Unavailable
from contracts.sampling import SamplingPolicy
from orchestrator.events import Chunk, Final
from orchestrator.request import GenerateRequest
from services.clients.generate import GenerateClient
from services.clients.verifier import VerifierClient
from tests.contract.processes import ServiceProcess, children_of
from tests.contract.scenario import Driver
from tests.contract.tiny_stack import TinyStack
from tests.helpers.fakes import collect

POLICY = SamplingPolicy(temperature=0.0, max_tokens=60, ignore_eos=True)
REQUEST = GenerateRequest(
    text="The quick brown fox. The quick brown", policy=POLICY, sources=("prompt_lookup", "retrieval")
)
WITHIN_S = 60


@pytest.fixture
async def client(stack: TinyStack) -> AsyncIterator[GenerateClient]:
    client = GenerateClient(stack.orchestrator.endpoint)
    yield client
    await client.close()


async def generate(
    client: GenerateClient, request: GenerateRequest, after_round: int = -1, do: Callable[[], object] = lambda: None
) -> tuple[list[int], str, Final]:
    """Runs the request; `do` happens once, in the middle."""
    ids: list[int] = []
    text, rounds = "", 0
    async for event in client.generate(request):
        if isinstance(event, Final):
            return ids, text, event
        ids.extend(event.token_ids)
        text += event.text
        rounds += 1
        if rounds == after_round:
            await asyncio.to_thread(do)
    raise AssertionError("no certificate")


async def until_used(client: GenerateClient, source: str) -> None:
    """Asks again until the source offers candidates; the fixture's deadline ends a hopeless wait."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            _, _, final = await generate(client, replace(REQUEST, policy=replace(POLICY, max_tokens=8)))
            if final.certificate.ledger.proposed_by.get(source) and source not in final.certificate.failures:
                return


@pytest.mark.parametrize("seed", [None, 5], ids=["greedy", "sampled"])
@pytest.mark.parametrize("source", ["prompt_lookup", "retrieval"])
async def test_a_killed_source_changes_no_token_and_comes_back(
    stack: TinyStack, client: GenerateClient, source: str, seed: int | None
) -> None:
    policy = POLICY if seed is None else replace(POLICY, temperature=0.9, seed=seed)
    request = replace(REQUEST, policy=policy)
    process: ServiceProcess = stack.proposer if source == "prompt_lookup" else stack.retriever
    others = [other.pid for other in stack.processes if other is not process]
    await until_used(client, source)
    expected = await generate(client, replace(request, speculation=False))
    killed = await generate(client, request, after_round=2, do=process.kill)
    assert killed[:2] == expected[:2]
    # While it is gone requests are served all the same.
    assert (await generate(client, request))[:2] == expected[:2]
    await asyncio.to_thread(process.start)
    await until_used(client, source)
    assert (await generate(client, request))[:2] == expected[:2]
    assert [other.pid for other in stack.processes if other is not process] == others


async def test_a_killed_engine_is_replaced_and_nothing_is_lost_or_doubled(
    stack: TinyStack, client: GenerateClient
) -> None:
    expected = await generate(client, REQUEST)
    (engine,) = children_of(stack.verifier.pid)

    def kill_engine() -> None:
        os.kill(engine, signal.SIGKILL)

    # Loading a new engine may outlast the orchestrator's patience: then the error is typed. Else nothing shows.
    (outcome,) = await asyncio.gather(generate(client, REQUEST, after_round=2, do=kill_engine), return_exceptions=True)
    if isinstance(outcome, BaseException):
        assert isinstance(outcome, Unavailable)
    else:
        assert outcome[:2] == expected[:2]
        assert outcome[2].certificate.sessions > 1
    await asyncio.to_thread(stack.verifier.wait_healthy)
    (replaced,) = children_of(stack.verifier.pid)
    assert replaced != engine
    assert (await generate(client, REQUEST))[:2] == expected[:2]


async def test_a_killed_verifier_is_picked_up_again(stack: TinyStack, client: GenerateClient) -> None:
    expected = await generate(client, REQUEST)
    orchestrator = stack.orchestrator.pid
    stack.verifier.kill()
    with pytest.raises(Unavailable):
        await generate(client, REQUEST)
    await asyncio.to_thread(stack.verifier.start)
    assert (await generate(client, REQUEST))[:2] == expected[:2]
    assert stack.orchestrator.pid == orchestrator


async def test_a_lost_reply_is_settled_by_its_receipt(stack: TinyStack) -> None:
    client = VerifierClient(stack.verifier.endpoint)
    driver = await Driver.open(client, "lost-reply", [80, 81, 82])
    request = driver.request()
    receipt = await client.verify(request)
    await client.close()
    # A second client stands for the orchestrator after its connection broke with the reply on the way.
    client = VerifierClient(stack.verifier.endpoint)
    assert await client.get_receipt("lost-reply", 0) == receipt
    assert await client.verify(request) == receipt
    await client.close_session("lost-reply")
    await client.close()


async def test_many_at_once_while_the_retriever_dies(stack: TinyStack, client: GenerateClient) -> None:
    await until_used(client, "retrieval")
    expected = (await generate(client, REQUEST))[0]

    async def one() -> list[int]:
        chunks, _ = await collect(client.generate(REQUEST))
        return [token for chunk in chunks if isinstance(chunk, Chunk) for token in chunk.token_ids]

    running = [asyncio.create_task(one()) for _ in range(6)]
    await asyncio.to_thread(stack.retriever.kill)
    assert await asyncio.gather(*running) == [expected] * 6
    await asyncio.to_thread(stack.retriever.start)


async def test_sigterm_is_a_clean_stop(stack: TinyStack) -> None:
    """Last in this module: it stops what the others used."""
    for process in reversed(stack.processes):
        engine = list(children_of(process.pid))
        assert await asyncio.to_thread(process.stop) == 0
        assert not any(os.path.exists(f"/proc/{pid}") for pid in engine)
