"""However a generation ends, its sessions are closed: deadlines, cancellation, errors."""

import asyncio

import pytest

from contracts.errors import DeadlineExceeded, FailedPrecondition, ResourceExhausted
from contracts.receipt import FinishReason
from contracts.sampling import SamplingPolicy
from tests.helpers.fakes import (
    FakeProposer,
    FakeVerifier,
    collect,
    wait_for,
)
from tests.helpers.generation import (
    ask,
    orchestrator,
    reciter,
    text_of,
)


async def test_the_deadline_ends_the_stream_with_what_is_published():
    event = asyncio.Event()
    verifier = reciter("abcdefgh")
    verifier.before.extend([None, None, wait_for(event)])
    policy = SamplingPolicy(temperature=0.0, max_tokens=40, stop_strings=("bcd",))
    request = ask(policy=policy, sources=(), deadline_ms=1_500)
    chunks, final = await collect(orchestrator(verifier).generate(request))
    assert (final.finish, final.usage.completion) == (FinishReason.DEADLINE, 2)
    assert text_of(chunks) == "ab"
    assert verifier.closed == [verifier.opened[0].session_id]


async def test_a_deadline_before_the_session_is_open_is_an_error():
    class NeverOpens(FakeVerifier):
        async def open_session(self, request):
            await asyncio.Event().wait()

    with pytest.raises(DeadlineExceeded, match="deadline_ms"):
        await collect(orchestrator(NeverOpens()).generate(ask(deadline_ms=20)))


async def test_a_cancelled_client_closes_the_session_at_every_peer():
    verifier, proposer, reached = FakeVerifier(), FakeProposer(), asyncio.Event()

    async def hang(fake, request):
        reached.set()
        await asyncio.Event().wait()

    verifier.before.extend([None, hang])
    service = orchestrator(verifier, proposers=[proposer])
    task = asyncio.create_task(collect(service.generate(ask(sources=("prompt_lookup",)))))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await service.aclose()
    assert verifier.closed == proposer.closed == [verifier.opened[0].session_id]
    assert verifier.sessions == proposer.sessions == {}


async def test_a_client_that_stops_reading_closes_the_session():
    verifier = FakeVerifier()
    service = orchestrator(verifier)
    events = service.generate(ask())
    await anext(events)
    await events.aclose()
    assert verifier.sessions == {}


async def test_an_error_closes_the_session():
    verifier = FakeVerifier()

    async def refuse(fake, request):
        raise FailedPrecondition("manifest.frontier", "no")

    verifier.before.append(refuse)
    with pytest.raises(FailedPrecondition, match=r"manifest\.frontier"):
        await collect(orchestrator(verifier).generate(ask()))
    assert verifier.sessions == {}


async def test_a_full_verifier_says_when_to_come_back():
    verifier = FakeVerifier()
    verifier.open_errors.append(ResourceExhausted("kv_tokens", "full", retry_after_ms=250))
    with pytest.raises(ResourceExhausted) as caught:
        await collect(orchestrator(verifier).generate(ask()))
    assert caught.value.retry_after_ms == 250
