"""Child processes in the foreground: health-checked start, restart with backoff, stop from the caller to the called.

Each child's standard input is a pipe from here and ends with us, so children stop even when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from contracts.errors import FailedPrecondition
from services.channel_options import CLIENT_OPTIONS

_RESTART_DELAYS_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_HEALTHY_RESETS_S = 30.0
# A stream that ended, as of a server that stopped.
_AGAIN_S = 0.1
_CONNECTING = (("grpc.max_reconnect_backoff_ms", 100),)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChildSpec:
    """One service. endpoint: where its health is asked. log: where its output goes; None: our own standard error."""

    name: str
    command: Sequence[str]
    endpoint: str
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    start_timeout_s: float = 300.0
    stop_timeout_s: float = 20.0


class Child:
    """One supervised process."""

    def __init__(self, spec: ChildSpec, on_event: Callable[[str, str], None]) -> None:
        self.spec = spec
        self.restarts = 0
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        """Starts it and waits until it is healthy. Raises FailedPrecondition if it ends or stays unhealthy."""
        await self._spawn()
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        healthy = asyncio.create_task(await_health(self.spec.endpoint, self.spec.start_timeout_s))
        done, pending = await asyncio.wait((ended, healthy), return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if healthy not in done:
            raise FailedPrecondition(self.spec.name, f"ended with status {self._process.returncode} while starting")
        healthy.result()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Asks it to stop, and kills it when it does not."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self.spec.stop_timeout_s):
                await process.wait()
        except TimeoutError:
            self._on_event(self.spec.name, "did not stop in time; killed")
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            assert self._process is not None
            started = loop.time()
            status = await self._process.wait()
            failures = 0 if loop.time() - started > _HEALTHY_RESETS_S else failures + 1
            delay_s = _RESTART_DELAYS_S[min(failures, len(_RESTART_DELAYS_S)) - 1] if failures else _RESTART_DELAYS_S[0]
            self._on_event(self.spec.name, f"ended with status {status}; starts again in {delay_s} s")
            await asyncio.sleep(delay_s)
            self.restarts += 1
            await self._spawn()

    async def _spawn(self) -> None:
        output: IO[Any] | None = None
        if self.spec.log is not None:
            self.spec.log.parent.mkdir(parents=True, exist_ok=True)
            output = self.spec.log.open("ab")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **self.spec.environment},
                process_group=0,
            )
        finally:
            if output is not None:
                output.close()
        self._on_event(self.spec.name, f"started as process {self._process.pid}")


class Supervisor:
    """Children between entry and exit of `async with`, the one that calls the others last.

    on_event: told (name, what happened).
    """

    def __init__(self, specs: Sequence[ChildSpec], on_event: Callable[[str, str], None]) -> None:
        self.children = [Child(spec, on_event) for spec in specs]

    async def __aenter__(self) -> Supervisor:
        return self

    async def start(self, awaited: Mapping[str, Awaitable[None]] | None = None) -> None:
        """Starts all, in order, as many at a time as there are processors: importing is all that a start does, so more at
        once would only hold up the first, which is to be the slowest. Later ones do not need earlier ones to be healthy.

        awaited: by name, what a child's start waits for. Raises what a start and what is awaited raise.
        """
        free = asyncio.Semaphore(len(os.sched_getaffinity(0)))

        async def start(child: Child) -> None:
            if awaited and child.spec.name in awaited:
                await awaited[child.spec.name]
            async with free:
                await child.start()

        starting = [asyncio.create_task(start(child)) for child in self.children]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)

    async def __aexit__(self, *_: object) -> None:
        *others, last = self.children
        # The last one calls the others: it drains while they still answer.
        await last.stop()
        await asyncio.gather(*(child.stop() for child in others))


async def await_health(endpoint: str, timeout_s: float) -> None:
    """Returns once the server says SERVING. Raises FailedPrecondition after `timeout_s`."""
    async with grpc.aio.insecure_channel(endpoint, options=(*CLIENT_OPTIONS, *_CONNECTING)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # Told rather than asked: asking takes time from those that start.
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                                return
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError as error:
            raise FailedPrecondition("health", f"{endpoint} was not healthy within {timeout_s:.0f} s") from error
