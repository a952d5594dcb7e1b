"""A stream that works on while its last item is being sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
ITEMS_AHEAD = 16


@dataclass(frozen=True)
class _End:
    error: Exception | None


async def ahead(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The same items and the same end, an error included, at most ITEMS_AHEAD of them made before they are asked for.

    The source runs in one task from beginning to end; closing this stops it where it is and closes it.
    """
    made: asyncio.Queue[T | _End] = asyncio.Queue(ITEMS_AHEAD)
    maker = asyncio.create_task(_make(items, made))
    try:
        while not isinstance(item := await made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        maker.cancel()
        await asyncio.wait((maker,))


async def _make(items: AsyncIterator[T], made: asyncio.Queue[T | _End]) -> None:
    error: Exception | None = None
    try:
        async for item in items:
            await made.put(item)
    except Exception as raised:
        error = raised
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
    await made.put(_End(error))
