"""Bounds on waits that follow one another, by one timer: asyncio.timeout makes and cancels one for every wait."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType


class Patience:
    """`with patience.within(seconds):` raises TimeoutError where what it holds takes longer, as asyncio.timeout does.

    One wait at a time, of whatever task; inside another's bound, not inside its own.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._until = math.inf
        self._expired = False
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def within(self, seconds: float) -> Patience:
        """Entered at once, on the running loop."""
        self._expired = False
        self._task = task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds
        if self._until < self._looks_at:
            self._look_at(self._until, loop)
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The timer stays: it looks again when it goes off.
        task, self._task = self._task, None
        if (
            self._expired
            and task is not None
            and task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def _look_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = loop.call_at(when, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at = None, math.inf
        if self._task is None:
            return
        if loop.time() < self._until:
            self._look_at(self._until, loop)
        else:
            self._expired = True
            self._task.cancel()
