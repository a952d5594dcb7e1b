from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from contracts.errors import NotFound, Unavailable
from contracts.ports import VerifierPort
from tests.unit.verifier.rig import Client, Rig, chain
from verifier.local import LocalVerifier
from verifier.worker import Worker


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
async def port(rig: Rig) -> AsyncIterator[VerifierPort]:
    async with LocalVerifier(Worker(rig.engine)) as local:
        yield local


async def test_a_session_lives_through_the_port(rig: Rig, port: VerifierPort) -> None:
    opening = rig.opening()
    assert (await port.open_session(opening)).prefix_len == 3
    client = Client(rig.engine, opening, opening.prompt.tolist())
    receipt = client.absorb(await port.verify(client.request(chain(4))))
    assert receipt.tokens == (4, 5)
    assert await port.get_receipt("s", 0) == receipt
    assert (await port.describe()).kv_tokens_free < rig.scripted.kv_tokens
    await port.close_session("s")
    with pytest.raises(NotFound):
        await port.verify(client.request())


async def test_sessions_run_side_by_side(rig: Rig, port: VerifierPort) -> None:
    async def generate(session_id: str) -> list[int]:
        opening = rig.opening(session_id=session_id)
        await port.open_session(opening)
        client = Client(rig.engine, opening, opening.prompt.tolist())
        while not client.finish:
            client.absorb(await port.verify(client.request()))
        return client.published

    texts = await asyncio.gather(*(generate(f"s{index}") for index in range(5)))
    assert all(text == texts[0] for text in texts)


async def test_a_cancelled_call_takes_its_queued_job_back(rig: Rig, port: VerifierPort) -> None:
    opening = rig.opening()
    await port.open_session(opening)
    client = Client(rig.engine, opening, opening.prompt.tolist())
    other = rig.opening(session_id="other")
    await port.open_session(other)
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert leave.wait(30)

    rig.scripted.during_forward = hold
    running = asyncio.create_task(port.verify(client.request()))
    await asyncio.to_thread(entered.wait, 30)
    queued = asyncio.create_task(port.verify(Client(rig.engine, other, [1, 2, 3]).request()))
    # One turn of the loop, in which the task submits its job.
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    leave.set()
    assert (await running).tokens == (4,)
    with pytest.raises(NotFound):
        await port.get_receipt("other", 0)


async def test_a_left_port_refuses_calls(rig: Rig) -> None:
    async with LocalVerifier(Worker(rig.engine)) as local:
        await local.describe()
    with pytest.raises(Unavailable):
        await local.describe()
