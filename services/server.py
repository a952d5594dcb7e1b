"""One gRPC server a process: health, reflection, size limits, signals, drain.

On SIGTERM or SIGINT a service first says NOT_SERVING, waits until balancers have seen it, lets running calls end, and
stops. One event loop a process: grpc.aio does not share.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from contracts.errors import FailedPrecondition
from services.channel_options import SERVER_OPTIONS
from services.unreadable import RefusesUnreadable

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listen:
    """Where to listen (port 0: any free one) and how patiently to stop."""

    host: str = "127.0.0.1"
    port: int = 0
    drain_ms: int = 0
    grace_ms: int = 5_000


class ServiceServer:
    """An `async with` block in which the services named are served.

    Register servicers on `grpc_server` before entering; `port` is known inside. Health stands at NOT_SERVING until
    `set_serving(True)`.
    """

    def __init__(self, services: Sequence[str], listen: Listen) -> None:
        self.grpc_server = grpc.aio.server(options=SERVER_OPTIONS, interceptors=(RefusesUnreadable(),))
        self.port = 0
        self._listen = listen
        self._services = tuple(services)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc_server)
        reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), self.grpc_server)

    async def __aenter__(self) -> ServiceServer:
        await self.set_serving(False)
        address = f"{self._listen.host}:{self._listen.port}"
        try:
            self.port = self.grpc_server.add_insecure_port(address)
        except RuntimeError as error:
            raise FailedPrecondition("port", f"cannot listen on {address}: {error}") from error
        await self.grpc_server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._health.enter_graceful_shutdown()
        await asyncio.sleep(self._listen.drain_ms / 1000)
        await self.grpc_server.stop(self._listen.grace_ms / 1000)

    async def set_serving(self, serving: bool) -> None:
        """What health checks of the whole server and of each service answer from now on."""
        for name in ("", *self._services):
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def set_named(self, name: str, *, serving: bool) -> None:
        """What a health check under a further name answers from now on: of something that the service can do without."""
        await self._health.set(name, SERVING if serving else NOT_SERVING)


async def until_told_to_stop(*, follow_stdin: bool = False) -> str:
    """Waits for SIGTERM or SIGINT, or with `follow_stdin` for the end of standard input; says which it was."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()

    def tell(reason: str) -> None:
        if not told.done():
            told.set_result(reason)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell, signal.Signals(number).name)
    transport = await _watch_stdin(loop, tell) if follow_stdin else None
    try:
        reason = await told
        _log.info("stopping: %s", reason)
        return reason
    finally:
        if transport is not None:
            transport.close()


class _StdinWatch(asyncio.Protocol):
    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def connection_lost(self, error: Exception | None) -> None:
        self._tell("standard input ended")


async def _watch_stdin(loop: asyncio.AbstractEventLoop, tell: Callable[[str], None]) -> asyncio.ReadTransport:
    transport, _ = await loop.connect_read_pipe(lambda: _StdinWatch(tell), sys.stdin)
    return transport
