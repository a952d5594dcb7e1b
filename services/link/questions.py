"""The asking end of one connection: questions go out under call ids, answers come back by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from contracts.errors import DeadlineExceeded, DraftproofError
from protos.draftproof.v1.errors_pb2 import ErrorInfo
from services.link.frames import Kind, Splitter, frame
from services.status import error_of_info


class Questions(asyncio.Protocol):
    """lost: the error of what waits when the stream ends, and of what is asked without one."""

    def __init__(self, lost: Callable[[], DraftproofError]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._splitter = Splitter()
        self._last_id = 0

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._transport is not None

    async def ask(self, kind: Kind, payload: bytes, *, timeout_s: float | None = None) -> bytes:
        """The answer's bytes. Raises the peer's error, `lost`, and DeadlineExceeded after `timeout_s`; a question that is
        given up is taken back.
        """
        if self._transport is None:
            raise self._lost()
        loop = asyncio.get_running_loop()
        self._last_id += 1
        call_id = self._last_id
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[call_id] = answer
        self._transport.write(frame(kind, call_id, payload))
        timer = None if timeout_s is None else loop.call_later(timeout_s, _expire, answer, timeout_s)
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            if self._waiting.pop(call_id, None) is not None:
                self.tell(Kind.CANCEL, call_id=call_id)

    def tell(self, kind: Kind, payload: bytes = b"", *, call_id: int = 0) -> None:
        """Sends what has no answer; nothing where there is no stream."""
        if self._transport is not None:
            self._transport.write(frame(kind, call_id, payload))

    def close(self) -> None:
        """Ends the stream once what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def noticed(self, kind: Kind) -> None:
        """A frame that answers nothing that waits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for kind, call_id, payload in self._splitter.feed(data):
            answer = self._waiting.pop(call_id, None)
            if answer is None or answer.done():
                self.noticed(kind)
            elif kind is Kind.ERROR:
                answer.set_exception(error_of_info(ErrorInfo.FromString(payload)))
            else:
                answer.set_result(payload)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._lost())
        self._waiting.clear()


def _expire(answer: asyncio.Future[bytes], timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("", f"no answer within {timeout_s * 1000:.0f} ms"))
