"""The verifier in the caller's own process: contracts.ports.VerifierPort over a worker thread.

For `--local` and tests. An event loop beside a torch thread answers late, so services host the worker in a process of its
own.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, TypeVar

from contracts.errors import DraftproofError
from contracts.hidden import HiddenRows
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Receipt
from verifier.jobs import Close, Describe, ExportHidden, GetReceipt, Job, Open, Verify
from verifier.worker import Worker

T = TypeVar("T")


class LocalVerifier:
    """Runs `worker` on a thread between entry and exit of `async with`; calls may come from any event loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._thread = threading.Thread(target=worker.run, name="verifier", daemon=True)

    async def __aenter__(self) -> LocalVerifier:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.stop()
        await asyncio.to_thread(self._thread.join)

    async def describe(self) -> VerifierDescription:
        return await self._ask(Describe())

    async def open_session(self, request: OpenSession) -> SessionOpened:
        return await self._ask(Open(request))

    async def verify(self, request: VerifyRequest) -> Receipt:
        return await self._ask(Verify(request))

    async def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        return await self._ask(GetReceipt(session_id, round_id))

    async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        return await self._ask(ExportHidden(session_id, start, stop))

    async def close_session(self, session_id: str) -> None:
        await self._ask(Close(session_id))

    async def _ask(self, job: Job[T]) -> T:
        """A cancelled call takes its job back if it still waits."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def arrive(outcome: T | DraftproofError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, answer, outcome)

        entry = self._worker.submit(job, arrive)
        try:
            return await answer
        except asyncio.CancelledError:
            self._worker.cancel(entry)
            raise


def _settle(answer: asyncio.Future[Any], outcome: object) -> None:
    if answer.done():
        return
    if isinstance(outcome, DraftproofError):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
