"""A coroutine begun in one place and awaited in another of the same task: what it asks for is on its way meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Begun(Generic[T]):
    """Runs the coroutine up to its first wait where it is made, the rest where it is awaited, once, by the same task.

    A task of its own would begin at the next turn of the event loop. Context variables that it sets stay its own. What it
    raises is raised where it is awaited. `close` ends one that was not.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._hold(coroutine, copy_context(), None)
        self._step(coroutine.send, None)

    @classmethod
    def waiting(cls, coroutine: Coroutine[Any, Any, T], context: Context, waits_for: Any) -> Begun[T]:
        """One whose first part ran in that context already, up to what it waits for."""
        begun = cls.__new__(cls)
        begun._hold(coroutine, context, waits_for)
        return begun

    def _hold(self, coroutine: Coroutine[Any, Any, T], context: Context, waits_for: Any) -> None:
        self._coroutine = coroutine
        self._context = context
        self._waits_for = waits_for
        self._end: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether it needed no wait, or none any more."""
        return self._end is not None

    def result(self) -> T:
        """What it returned, once it has ended. Raises what it raised."""
        if isinstance(self._end, StopIteration):
            outcome: T = self._end.value
            return outcome
        assert self._end is not None
        raise self._end

    def __await__(self) -> Generator[Any, Any, T]:
        while self._end is None:
            try:
                sent = yield self._waits_for
            except BaseException as error:
                self._step(self._coroutine.throw, error)
            else:
                self._step(self._coroutine.send, sent)
        return self.result()

    def close(self) -> None:
        """Where it waits, it ends there."""
        if self._end is None:
            self._context.run(self._coroutine.close)

    def _step(self, step: Callable[[Any], Any], value: Any) -> None:
        try:
            self._waits_for = self._context.run(step, value)
        except BaseException as ended:
            self._end = ended
