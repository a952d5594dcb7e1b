"""A stream made ahead of its reader gives the same items and the same end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from services.ahead import ITEMS_AHEAD, ahead


async def numbers(count: int, *, log: list[str], fail: bool = False) -> AsyncIterator[int]:
    try:
        for number in range(count):
            log.append(f"made {number}")
            yield number
        if fail:
            raise ValueError("at the end")
    finally:
        log.append("closed")


@pytest.mark.parametrize("count", [0, 1, ITEMS_AHEAD, 3 * ITEMS_AHEAD])
async def test_all_items_arrive_in_order(count: int) -> None:
    log: list[str] = []
    assert [item async for item in ahead(numbers(count, log=log))] == list(range(count))
    assert log[-1] == "closed"


@pytest.mark.parametrize("count", [0, 1, ITEMS_AHEAD, 3 * ITEMS_AHEAD])
async def test_an_error_comes_after_the_items_before_it(count: int) -> None:
    items = ahead(numbers(count, log=[], fail=True))
    assert [await anext(items) for _ in range(count)] == list(range(count))
    with pytest.raises(ValueError, match="at the end"):
        await anext(items)


async def test_closing_closes_the_source_where_it_is() -> None:
    log: list[str] = []
    async with aclosing(ahead(numbers(1000, log=log))) as items:
        assert await anext(items) == 0
        for _ in range(50):
            await asyncio.sleep(0)
    assert log[-1] == "closed"
    # One was taken, one waits to be put, and the queue is full between them.
    assert len(log) - 1 == ITEMS_AHEAD + 2


async def test_the_source_goes_on_while_an_item_is_being_sent() -> None:
    log: list[str] = []
    async with aclosing(ahead(numbers(3, log=log))) as items:
        await anext(items)
        for _ in range(50):
            await asyncio.sleep(0)
        assert log == ["made 0", "made 1", "made 2", "closed"]
