"""All services on this machine as one unit: their ports, their environment, the embedded Redis, start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.redis_embedded import EmbeddedRedis, free_port
from services.settings import PREFIX, AllSettings
from services.supervisor import ChildSpec, Supervisor

SERVICES = ("verifier", "proposer", "retriever", "orchestrator")
_REDIS_CHECK_S = 1.0

OnEvent = Callable[[str, str], None]


@dataclass(frozen=True)
class Stack:
    """A running stack. endpoints: host:port by service. redis: the embedded server, None where a URL was set."""

    endpoints: Mapping[str, str]
    redis_url: str
    redis: EmbeddedRedis | None
    supervisor: Supervisor

    def pid(self, service: str) -> int | None:
        """The service's process now; None while it is down."""
        return next(child.pid for child in self.supervisor.children if child.spec.name == service)


def child_environment(
    settings: AllSettings, ports: Mapping[str, int], redis_url: str, link_dir: str = ""
) -> dict[str, str]:
    """The settings as variables, with what this stack decided put in their place."""
    values = {name: str(value) for name, value in settings.model_dump().items()}
    values["cache_dir"] = str(settings.cache_dir.resolve())
    values["redis_url"] = redis_url
    values["link_dir"] = link_dir
    for service, port in ports.items():
        values[f"{service}_port"] = str(port)
        if service != "orchestrator":
            values[f"{service}_endpoint"] = f"{settings.host}:{port}"
    return {PREFIX + name.upper(): value for name, value in values.items()}


@asynccontextmanager
async def running_stack(
    settings: AllSettings, on_event: OnEvent, *, logs: Path | None = None, redis_dir: str = "redis"
) -> AsyncIterator[Stack]:
    """Everything healthy inside the block, everything stopped after it.

    logs: directory of one log file a service; None: all on standard error. redis_dir: under the cache directory, where the
    embedded Redis keeps its data; a second stack on it is refused. Raises what a failing start raises.
    """
    wanted = {service: int(getattr(settings, f"{service}_port")) for service in SERVICES}
    ports = {service: port or free_port() for service, port in wanted.items()}
    redis = None
    if not settings.redis_url:
        redis = EmbeddedRedis(settings.cache_dir / redis_dir, settings.redis_port, wait=False)
        on_event("redis", f"started as process {redis.pid}")
    keeper: asyncio.Task[None] | None = None
    # Reads its snapshot while services that do not need it start.
    awaited = {"retriever": asyncio.create_task(asyncio.to_thread(redis.await_ready))} if redis is not None else {}
    own_links = None if settings.link_dir else tempfile.TemporaryDirectory(prefix="draftproof-")
    try:
        redis_url = redis.url if redis else settings.redis_url
        links = own_links.name if own_links else settings.link_dir
        environment = child_environment(settings, ports, redis_url, links)
        specs = [
            ChildSpec(
                name=service,
                command=[sys.executable, "-m", "services.start", service],
                endpoint=f"{settings.host}:{port}",
                environment=environment,
                log=logs / f"{service}.log" if logs else None,
            )
            for service, port in ports.items()
        ]
        endpoints = {spec.name: spec.endpoint for spec in specs}
        async with Supervisor(specs, on_event) as supervisor:
            await supervisor.start(awaited)
            if redis is not None:
                keeper = asyncio.create_task(_keep(redis, on_event))
            yield Stack(endpoints, redis_url, redis, supervisor)
    finally:
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        await asyncio.gather(*awaited.values(), return_exceptions=True)
        if redis is not None:
            await asyncio.to_thread(redis.stop)
            on_event("redis", "stopped")
        if own_links is not None:
            own_links.cleanup()


async def _keep(redis: EmbeddedRedis, on_event: OnEvent) -> None:
    while True:
        await asyncio.sleep(_REDIS_CHECK_S)
        if not redis.alive():
            on_event("redis", "ended; starts again")
            await asyncio.to_thread(redis.restart)
