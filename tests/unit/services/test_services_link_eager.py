"""services/link/eager.py: what needs no waiting needs no task, and what waits ends as in a task of its own."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from services.link.eager import run_eagerly

_NAME: ContextVar[str] = ContextVar("name", default="outside")


async def test_what_waits_for_nothing_is_done_at_once() -> None:
    done: list[str] = []

    async def answer() -> None:
        done.append("answered")

    assert run_eagerly(answer()) is None
    assert done == ["answered"]


async def test_what_waits_goes_on_in_a_task_with_what_it_waited_for() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def answer() -> None:
        heard.append(await future)
        await asyncio.sleep(0)
        heard.append(await asyncio.to_thread(str, 7))

    task = run_eagerly(answer())
    assert task is not None
    assert heard == []
    future.set_result("first")
    await task
    assert heard == ["first", "7"]


async def test_a_future_that_is_done_before_the_task_begins_is_heard() -> None:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    heard: list[str] = []

    async def answer() -> None:
        heard.append(await future)

    task = run_eagerly(answer())
    assert task is not None
    future.set_result("early")
    await task
    assert heard == ["early"]


async def test_cancelling_reaches_the_coroutine_where_it_waits() -> None:
    ends: list[str] = []

    async def answer() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            ends.append("cleaned up")

    task = run_eagerly(answer())
    assert task is not None
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ends == ["cancelled", "cleaned up"]


async def test_a_fault_before_the_first_wait_is_raised_and_one_after_it_is_the_tasks() -> None:
    async def at_once() -> None:
        raise ValueError("first")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("second")

    with pytest.raises(ValueError, match="first"):
        run_eagerly(at_once())
    task = run_eagerly(later())
    assert task is not None
    with pytest.raises(ValueError, match="second"):
        await task


async def test_a_context_variable_set_inside_is_kept_inside() -> None:
    seen: list[str] = []

    async def answer() -> None:
        token = _NAME.set("inside")
        await asyncio.sleep(0)
        seen.append(_NAME.get())
        _NAME.reset(token)

    task = run_eagerly(answer())
    assert _NAME.get() == "outside"
    assert task is not None
    await task
    assert seen == ["inside"]
