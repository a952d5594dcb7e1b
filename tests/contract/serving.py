"""A servicer in this process on a port of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from services.server import Listen, ServiceServer


@asynccontextmanager
async def served(service: str, add: Callable[[Any], None]) -> AsyncIterator[str]:
    """host:port of a healthy server with the servicer that `add` adds."""
    server = ServiceServer([service], Listen(grace_ms=100))
    add(server.grpc_server)
    async with server:
        await server.set_serving(True)
        yield f"127.0.0.1:{server.port}"
