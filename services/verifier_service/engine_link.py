"""The front's end of the engine process: starts it, asks it, notices when it dies, starts it again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping

from contracts.errors import Unavailable
from services.link.frames import Kind
from services.link.questions import Questions

MODULE = "services.verifier_service.start_engine"
_RESTART_DELAYS_S = (0.2, 1.0, 5.0, 15.0)

_log = logging.getLogger(__name__)


class EngineLink(Questions):
    """One running engine process. When its stream ends, all that wait get Unavailable."""

    def __init__(self) -> None:
        super().__init__(_died)
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()

    def noticed(self, kind: Kind) -> None:
        if kind is Kind.READY and not self.ready.done():
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set_result(None)
        super().connection_lost(error)


class EngineSupervisor:
    """Keeps one engine process running between entry and exit of `async with`.

    environment: added to the engine's own; thread settings must stand there before torch is imported. on_state: told
    True when an engine is ready and False when it died. module: what the process runs, given a socket's number.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        on_state: Callable[[bool], Awaitable[None]],
        *,
        module: str = MODULE,
    ) -> None:
        self._environment = {**os.environ, **environment}
        self._on_state = on_state
        self._module = module
        self._link: EngineLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The engine process, None while there is none."""
        return self._process.pid if self._process else None

    async def __aenter__(self) -> EngineSupervisor:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper

    async def ask(self, kind: Kind, payload: bytes) -> bytes:
        """Raises Unavailable while no engine is ready, else what the engine raises."""
        if self._link is None or not self._link.ready.done() or not self._link.up:
            raise Unavailable("engine", "the engine process is starting", retry_after_ms=1_000)
        return await self._link.ask(kind, payload)

    async def _keep(self) -> None:
        failures = 0
        while True:
            served = await self._run_once()
            failures = 0 if served else failures + 1
            delay_s = _RESTART_DELAYS_S[min(failures, len(_RESTART_DELAYS_S) - 1)]
            _log.error("the engine process ended; the next one starts in %.1f s", delay_s)
            await asyncio.sleep(delay_s)

    async def _run_once(self) -> bool:
        """Runs one engine to its end; whether it ever served."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, str(theirs.fileno()),
                pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, env=self._environment,
            )  # fmt: skip
        self._process = process
        ours.setblocking(False)
        _, link = await asyncio.get_running_loop().create_unix_connection(EngineLink, sock=ours)
        self._link = link
        try:
            await asyncio.wait((link.ready, link.gone), return_when=asyncio.FIRST_COMPLETED)
            if link.ready.done():
                await self._on_state(True)
            # Waited for beside the future, not on it: cancelling this task must not settle it.
            await asyncio.wait((link.gone,))
            return link.ready.done()
        finally:
            self._link = None
            link.close()
            await _reap(process)
            self._process = None
            await self._on_state(False)


async def _reap(process: asyncio.subprocess.Process) -> None:
    """Waits for a process that was told to stop by its stream's end; one that does not is killed."""
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _died() -> Unavailable:
    return Unavailable("engine", "the engine process died", retry_after_ms=1_000)
