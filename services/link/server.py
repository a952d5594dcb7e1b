"""The answering end of a link, for services that answer from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, cast

from contracts.errors import FailedPrecondition
from services.link.eager import run_eagerly
from services.link.frames import Kind, Splitter, frame
from services.link.writing import Writer
from services.status import info_of, typed

# An enumeration's members are looked up through its metaclass.
_CANCEL, _FORGET, _REPLY, _ERROR = Kind.CANCEL, Kind.FORGET, Kind.REPLY, Kind.ERROR


class Answering(Protocol):
    """What one connection's questions are put to; it may keep state of that connection."""

    async def answer(self, kind: Kind, payload: bytes) -> bytes: ...

    def forget(self, session_id: str) -> None: ...


class _Connection(asyncio.Protocol):
    def __init__(self, answering: Answering, open_connections: set[_Connection]) -> None:
        self._answering = answering
        self._open_connections = open_connections
        self._splitter = Splitter()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = Writer(self._transport)
        self._open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        for kind, call_id, payload in self._splitter.feed(data):
            if kind is _CANCEL:
                running = self._tasks.get(call_id)
                if running is not None:
                    running.cancel()
            elif kind is _FORGET:
                self._answering.forget(payload.decode(errors="replace"))
            else:
                answer = run_eagerly(self._answer(kind, call_id, payload))
                if answer is not None:
                    self._tasks[call_id] = answer
                    answer.add_done_callback(lambda _, call_id=call_id: self._tasks.pop(call_id, None))  # type: ignore[misc]

    def close(self) -> None:
        """Ends it once what was answered has been sent."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._open_connections.discard(self)
        for task in self._tasks.values():
            task.cancel()

    async def _answer(self, kind: Kind, call_id: int, payload: bytes) -> None:
        try:
            answer = frame(_REPLY, call_id, await self._answering.answer(kind, payload))
        except Exception as error:
            answer = frame(_ERROR, call_id, info_of(typed(error)).SerializeToString())
        self._writer.write(answer)


class LinkServer:
    """Listens at `path` between entry and exit of `async with`; only this user may connect. None: does nothing."""

    def __init__(self, path: Path | None, connected: Callable[[], Answering]) -> None:
        self._path = path
        self._connected = connected
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def __aenter__(self) -> LinkServer:
        if self._path is not None:
            clear(self._path)
            loop = asyncio.get_running_loop()
            try:
                self._server = await loop.create_unix_server(
                    lambda: _Connection(self._connected(), self._connections), str(self._path)
                )
                self._path.chmod(0o600)
            except OSError as error:
                raise FailedPrecondition("DRAFTPROOF_LINK_DIR", f"cannot listen at {self._path}: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._path is not None:
            self._server.close()
            for connection in tuple(self._connections):
                connection.close()
            clear(self._path)


def clear(path: Path) -> None:
    """Removes the socket that a process left there, which would refuse the next one its name."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
