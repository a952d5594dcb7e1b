"""orchestrator/patience.py: bounds as asyncio.timeout sets them, by one timer for waits that follow one another."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator.patience import Patience

_LONG = 3_600.0
_SHORT = 0.01


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_what_takes_longer_is_a_timeout() -> None:
    with pytest.raises(TimeoutError), Patience().within(_SHORT):
        await _for_ever()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_wait_that_ended_in_time_does_not_bound_the_one_after_it() -> None:
    loop, patience = asyncio.get_running_loop(), Patience()
    with patience.within(_SHORT):
        pass
    heard: asyncio.Future[str] = loop.create_future()
    loop.call_later(3 * _SHORT, heard.set_result, "late")
    with patience.within(_LONG):
        assert await heard == "late"


async def test_a_shorter_bound_after_a_longer_one_holds() -> None:
    patience = Patience()
    with patience.within(_LONG):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), patience.within(_SHORT):
        await _for_ever()
    # And again, once its timer has gone off.
    with pytest.raises(TimeoutError), patience.within(_SHORT):
        await _for_ever()


async def test_between_waits_nobody_is_cancelled() -> None:
    patience = Patience()
    with patience.within(_SHORT):
        pass
    await asyncio.sleep(3 * _SHORT)


async def test_who_is_cancelled_from_outside_stays_cancelled() -> None:
    began = asyncio.Event()

    async def wait() -> None:
        with Patience().within(_LONG):
            began.set()
            await _for_ever()

    task = asyncio.create_task(wait())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_inside_anothers_bound_each_ends_its_own() -> None:
    outer, inner = Patience(), Patience()
    ended: list[str] = []

    async def wait() -> None:
        try:
            with inner.within(_SHORT):
                await _for_ever()
        except TimeoutError:
            ended.append("inner")
        await _for_ever()

    with pytest.raises(TimeoutError), outer.within(3 * _SHORT):
        await wait()
    assert ended == ["inner"]


async def test_what_else_is_raised_inside_passes() -> None:
    with pytest.raises(ValueError, match="own"), Patience().within(_LONG):
        raise ValueError("own")
