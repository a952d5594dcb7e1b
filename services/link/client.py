"""The asking end of a link."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from contracts.errors import DeadlineExceeded, Unavailable
from protos.draftproof.v1.errors_pb2 import ErrorInfo
from services.link.frames import Kind, Splitter, frame
from services.status import error_of_info

_RECONNECT_S = 0.5


class _Connection(asyncio.Protocol):
    """Answers arrive by call id; when the stream ends, all that wait get Unavailable."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[bytes]] = {}
        self.transport: asyncio.Transport | None = None
        self._splitter = Splitter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for kind, call_id, payload in self._splitter.feed(data):
            answer = self.waiting.pop(call_id, None)
            if answer is None or answer.done():
                continue
            if kind is Kind.ERROR:
                answer.set_exception(error_of_info(ErrorInfo.FromString(payload)))
            else:
                answer.set_result(payload)

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(Unavailable("link", "the peer ended the connection"))
        self.waiting.clear()


class LinkClient:
    """A connection to one socket, made when first needed and again after it was lost. Use `close` when done.

    `generation` counts connections: what a peer remembers of a connection is gone when it changes.
    """

    def __init__(self, path: Path) -> None:
        self.generation = 0
        self._path = path
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()
        self._not_before = 0.0
        self._last_id = 0

    async def up(self) -> bool:
        """Whether there is a connection; tries to make one at most twice a second."""
        if self._connection is not None and self._connection.transport is not None:
            return True
        loop = asyncio.get_running_loop()
        async with self._connecting:
            if self._connection is not None and self._connection.transport is not None:
                return True
            if loop.time() < self._not_before:
                return False
            try:
                _, self._connection = await loop.create_unix_connection(_Connection, str(self._path))
            except OSError:
                self._not_before = loop.time() + _RECONNECT_S
                return False
            self.generation += 1
            return True

    async def ask(self, kind: Kind, payload: bytes, *, timeout_s: float) -> bytes:
        """The answer's bytes. Raises the peer's error, Unavailable where the connection breaks, DeadlineExceeded."""
        connection = self._connection
        if connection is None or connection.transport is None:
            raise Unavailable("link", "there is no connection")
        loop = asyncio.get_running_loop()
        self._last_id += 1
        call_id = self._last_id
        answer: asyncio.Future[bytes] = loop.create_future()
        connection.waiting[call_id] = answer
        connection.transport.write(frame(kind, call_id, payload))
        timer = loop.call_later(timeout_s, _expire, answer, timeout_s)
        try:
            return await answer
        finally:
            timer.cancel()
            if connection.waiting.pop(call_id, None) is not None and connection.transport is not None:
                connection.transport.write(frame(Kind.CANCEL, call_id))

    def tell(self, kind: Kind, payload: bytes) -> None:
        """Sends what has no answer; nothing where there is no connection."""
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.write(frame(kind, 0, payload))

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.close()
        self._connection = None


def _expire(answer: asyncio.Future[bytes], timeout_s: float) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("", f"no answer within {timeout_s * 1000:.0f} ms"))
