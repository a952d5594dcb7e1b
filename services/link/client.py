"""A link's asking end, which comes and goes with its socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

from contracts.errors import Unavailable
from services.link.frames import Kind
from services.link.questions import Questions

_RECONNECT_S = 0.5


class LinkClient:
    """A connection to one socket, made when first needed and again after it was lost. Use `close` when done.

    `generation` counts connections: what a peer remembers of a connection is gone when it changes.
    """

    def __init__(self, path: Path) -> None:
        self.generation = 0
        self._path = path
        self._connection: Questions | None = None
        self._connecting = asyncio.Lock()
        self._not_before = 0.0

    async def up(self) -> bool:
        """Whether there is a connection; tries to make one at most twice a second."""
        if self._connection is not None and self._connection.up:
            return True
        loop = asyncio.get_running_loop()
        async with self._connecting:
            if self._connection is not None and self._connection.up:
                return True
            if loop.time() < self._not_before:
                return False
            try:
                _, self._connection = await loop.create_unix_connection(lambda: Questions(_lost), str(self._path))
            except OSError:
                self._not_before = loop.time() + _RECONNECT_S
                return False
            self.generation += 1
            return True

    async def ask(self, kind: Kind, payload: bytes, *, timeout_s: float) -> bytes:
        """The answer's bytes. Raises the peer's error, Unavailable without a connection or where it breaks,
        DeadlineExceeded.
        """
        if self._connection is None:
            raise _lost()
        return await self._connection.ask(kind, payload, timeout_s=timeout_s)

    def tell(self, kind: Kind, payload: bytes) -> None:
        """Sends what has no answer; nothing where there is no connection."""
        if self._connection is not None:
            self._connection.tell(kind, payload)

    def close(self) -> None:
        """Ends the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _lost() -> Unavailable:
    return Unavailable("link", "there is no connection to the peer")
