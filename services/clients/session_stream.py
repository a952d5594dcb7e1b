"""One bidirectional stream as a row of question-and-answer calls.

Answers find their questions by number, so several may be under way and a question given up does not break the stream:
its late answer is dropped. A broken stream fails what waits on it and is opened anew by the next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc

from contracts.errors import DeadlineExceeded, DraftproofError, Unavailable
from services.status import error_of_call

S = TypeVar("S")


class _Open(Generic[S]):
    """One stream while it lives, with the sender's state that belongs to it."""

    def __init__(self, stream_call: Any, state: S) -> None:
        self.state = state
        self.sending = asyncio.Lock()
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.broken = False
        self._call = stream_call
        self._reader = asyncio.create_task(self._read())

    async def write(self, message: Any) -> None:
        await self._call.write(message)

    async def _read(self) -> None:
        failure: DraftproofError = Unavailable("", "the peer ended the stream")
        try:
            while (answer := await self._call.read()) is not grpc.aio.EOF:
                waiting = self.waiting.pop(answer.call_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except grpc.aio.AioRpcError as error:
            failure = error_of_call(error)
        except asyncio.CancelledError:
            if not self.broken:
                raise
        finally:
            self.broken = True
            for waiting in self.waiting.values():
                if not waiting.done():
                    waiting.set_exception(failure)
            self.waiting.clear()

    async def close(self) -> None:
        self.broken = True
        self._call.cancel()
        await asyncio.wait((self._reader,))


class SessionStream(Generic[S]):
    """open_call: begins a stream. new_state: what the sender remembers of one stream (None where it needs nothing)."""

    def __init__(self, open_call: Callable[[], Any], new_state: Callable[[], S]) -> None:
        self._open_call = open_call
        self._new_state = new_state
        self._open: _Open[S] | None = None
        self._last_id = 0

    async def ask(self, build: Callable[[int, S], Any], *, timeout_s: float) -> Any:
        """The answer to the message that `build` makes from a call id and the stream's state.

        Raises Unavailable where the stream breaks, DeadlineExceeded after `timeout_s`.
        """
        loop = asyncio.get_running_loop()
        self._last_id += 1
        call_id = self._last_id
        stream = self._current()
        answer: asyncio.Future[Any] = loop.create_future()
        try:
            async with asyncio.timeout(timeout_s):
                async with stream.sending:
                    # Built under the lock: the state advances in the order in which messages leave.
                    message = build(call_id, stream.state)
                    stream.waiting[call_id] = answer
                    await self._write(stream, message)
                return await answer
        except TimeoutError as error:
            raise DeadlineExceeded("", f"no answer within {timeout_s * 1000:.0f} ms") from error
        finally:
            stream.waiting.pop(call_id, None)

    def reset_state(self) -> None:
        """The sender forgets what this stream carried, and so sends everything anew."""
        if self._open is not None:
            self._open.state = self._new_state()

    async def close(self) -> None:
        """Ends the stream, if one is open."""
        if self._open is not None:
            await self._open.close()
            self._open = None

    def _current(self) -> _Open[S]:
        if self._open is None or self._open.broken:
            self._open = _Open(self._open_call(), self._new_state())
        return self._open

    async def _write(self, stream: _Open[S], message: Any) -> None:
        try:
            await stream.write(message)
        except grpc.aio.AioRpcError as error:
            stream.broken = True
            raise error_of_call(error) from error
        except (grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            stream.broken = True
            raise Unavailable("", "the stream ended before the call could be sent") from error
