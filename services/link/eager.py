"""Runs a coroutine's first part where it is made, as Python 3.12's eager tasks do: a task only where it has to wait.

A task costs a turn of the event loop before it begins, and much that may have to wait does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def run_eagerly(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """A task that ends the coroutine; None where it has ended. Context variables that it sets stay its own.

    Its first part runs in no task of its own: it must not ask for the current one, and what it raises is raised here.
    """
    context = copy_context()
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest(coroutine, waits_for), context=context)


async def _rest(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _Started(coroutine, waits_for)


class _Started(Generic[T]):
    """A coroutine that waits already, for what it yielded."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(sent)
            except StopIteration as ended:
                outcome: T = ended.value
                return outcome
