"""A future whose waiter goes on where the answer is read, without a turn of the event loop between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

Waiter = Callable[[Any], object]


class PromptAnswer(asyncio.Future[bytes]):
    """Awaited as any other. `settle` runs the task that waits for it at once, up to its next wait, so that whoever calls it
    must be a callback of the loop and in no task. However else it ends, that task runs at the loop's next turn.
    """

    _waiter: tuple[Waiter, Context | None] | None = None

    def add_done_callback(self, waiter: Waiter, /, *, context: Context | None = None) -> None:
        if self._waiter is None and not self.done():
            self._waiter = waiter, context
        else:
            super().add_done_callback(waiter, context=context)

    def remove_done_callback(self, waiter: Waiter, /) -> int:
        removed = super().remove_done_callback(waiter)
        if self._waiter is not None and self._waiter[0] == waiter:
            self._waiter = None
            removed += 1
        return removed

    def settle(self, answer: bytes) -> None:
        """The result is `answer`."""
        waiter, self._waiter = self._waiter, None
        self.set_result(answer)
        if waiter is not None:
            call, context = waiter
            if context is None:
                call(self)
            else:
                context.run(call, self)

    def cancel(self, msg: Any | None = None) -> bool:
        self._later()
        return super().cancel(msg)

    def set_exception(self, exception: type | BaseException, /) -> None:
        self._later()
        super().set_exception(exception)

    def _later(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            call, context = waiter
            super().add_done_callback(call, context=context)
