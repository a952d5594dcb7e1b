"""orchestrator/begun.py: begun where it is made, ended where it is awaited, by one task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from orchestrator.begun import Begun

_NAME: ContextVar[str] = ContextVar("name", default="outside")


async def test_the_first_part_runs_where_it_is_made_and_the_rest_where_it_is_awaited() -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def ask() -> int:
        heard.append("asked")
        found = await answer
        await asyncio.sleep(0)
        heard.append("answered")
        return found

    begun = Begun(ask())
    assert heard == ["asked"]
    answer.set_result(7)
    await asyncio.sleep(0)
    assert (heard, begun.ended) == (["asked"], False)
    assert await begun == 7
    assert heard == ["asked", "answered"]


async def test_what_needs_no_wait_has_ended_when_it_is_made() -> None:
    async def ask() -> int:
        return 7

    begun = Begun(ask())
    assert begun.ended
    assert (begun.result(), await begun) == (7, 7)


async def test_a_timeout_that_it_began_itself_ends_it_and_not_its_awaiter() -> None:
    async def ask() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "answered"

    assert await Begun(ask()) == "late"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_who_awaits_it_and_is_cancelled_cancels_it() -> None:
    ends: list[str] = []

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    async def wait() -> None:
        await Begun(ask())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled"]


async def test_one_that_is_closed_ends_where_it_waits() -> None:
    ends: list[str] = []

    async def ask() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("closed")

    begun = Begun(ask())
    begun.close()
    begun.close()
    assert ends == ["closed"]


async def test_a_fault_is_raised_where_it_is_awaited() -> None:
    async def ask() -> None:
        raise ValueError("own")

    begun = Begun(ask())
    with pytest.raises(ValueError, match="own"):
        await begun


async def test_a_context_variable_set_inside_is_kept_inside() -> None:
    seen: list[str] = []

    async def ask() -> None:
        token = _NAME.set("inside")
        await asyncio.sleep(0)
        seen.append(_NAME.get())
        _NAME.reset(token)

    begun = Begun(ask())
    assert _NAME.get() == "outside"
    await begun
    assert (seen, _NAME.get()) == (["inside"], "outside")
