"""The front's link to its engine process: answers, refusals, cancellation, death and rebirth."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from contracts.errors import NotFound, Unavailable
from services.link.frames import Kind
from services.verifier_service.engine_link import EngineSupervisor


@dataclass
class States:
    """What the supervisor told, in order, with an event a change."""

    seen: list[bool] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def told(self, ready: bool) -> None:
        async with self.changed:
            self.seen.append(ready)
            self.changed.notify_all()

    async def until(self, *expected: bool) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: self.seen[: len(expected)] == list(expected))


@pytest.fixture
async def states() -> States:
    return States()


@pytest.fixture
async def engine(states: States) -> AsyncIterator[EngineSupervisor]:
    supervisor = EngineSupervisor({}, states.told, module="tests.unit.services.fake_engine")
    with pytest.raises(Unavailable):
        await supervisor.ask(Kind.DESCRIBE, b"too early")
    async with supervisor:
        await states.until(True)
        yield supervisor


async def test_answers_find_their_questions(engine: EngineSupervisor) -> None:
    payloads = [bytes([number]) * (number * 1000) for number in range(1, 60)]
    answers = await asyncio.gather(*(engine.ask(Kind.VERIFY, payload) for payload in payloads))
    assert answers == payloads


async def test_refusals_are_typed(engine: EngineSupervisor) -> None:
    with pytest.raises(NotFound) as refused:
        await engine.ask(Kind.VERIFY, b"error")
    assert refused.value.field == "session_id"


async def test_a_question_given_up_leaves_the_link_whole(engine: EngineSupervisor) -> None:
    waiting = asyncio.ensure_future(engine.ask(Kind.VERIFY, b"wait"))
    assert await engine.ask(Kind.VERIFY, b"other") == b"other"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert await engine.ask(Kind.VERIFY, b"still here") == b"still here"


async def test_death_fails_what_waits_and_a_new_process_serves(engine: EngineSupervisor, states: States) -> None:
    first = engine.pid
    waiting = asyncio.ensure_future(engine.ask(Kind.VERIFY, b"wait"))
    with pytest.raises(Unavailable) as died:
        await engine.ask(Kind.VERIFY, b"die")
    assert died.value.field == "engine"
    with pytest.raises(Unavailable):
        await waiting
    await states.until(True, False, True)
    assert engine.pid != first
    assert await engine.ask(Kind.VERIFY, b"again") == b"again"


async def test_leaving_ends_the_process(states: States) -> None:
    async with EngineSupervisor({}, states.told, module="tests.unit.services.fake_engine") as supervisor:
        await states.until(True)
        pid = supervisor.pid
    assert states.seen == [True, False]
    assert not os.path.exists(f"/proc/{pid}")
