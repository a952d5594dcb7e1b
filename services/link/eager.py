"""Runs a coroutine's first part where it is made, as Python 3.12's eager tasks do: a task only where it has to wait.

A task costs a turn of the event loop before it begins, and much that may have to wait does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

from orchestrator.begun import Begun


def run_eagerly(coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """A task that ends the coroutine; None where it has ended. Context variables that it sets stay its own.

    Its first part runs in no task of its own: it must not ask for the current one, and what it raises is raised here.
    """
    context = copy_context()
    try:
        waits_for = context.run(coroutine.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_rest(Begun.waiting(coroutine, context, waits_for)))


async def _rest(begun: Begun[None]) -> None:
    await begun
