"""The proposer port inside one process: cheap sources answer inline, sources that compute run in a thread of their own, but
for calls of single milliseconds while that thread has nothing to do: waking it and being woken takes a part of such a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from contracts.capability import SourceDescription
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from proposer.host import SourceHost

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger(__name__)


class LocalProposer:
    """Implements contracts.ports.ProposerPort over a host.

    There is one worker thread, because a model's backend is driven by one thread at a time: by the event loop's own, which
    then stands still for these milliseconds, only while nothing waits or runs in the worker. A call cancelled while it waits
    for the thread is never run; one cancelled while it runs finishes unheard.
    """

    def __init__(self, host: SourceHost) -> None:
        self._host = host
        self._dead = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="proposer")
        # What waits or runs in the thread. The thread takes out what is over; only the event loop puts something in.
        self._under_way: set[Future[Any]] = set()

    def answers_at_once(self, source: str) -> bool:
        """Whether `propose` answers for this source (contracts.ports.AnswersAtOnce): those that run inline."""
        return self._host.runs_inline(source)

    async def describe(self) -> Sequence[SourceDescription]:
        return self._host.describe()

    async def open_session(self, session_id: str, manifest: Manifest) -> None:
        self._host.open(session_id, manifest)
        self._settle()

    async def propose(self, request: ProposeRequest) -> Proposal:
        source = self._host.admit(request)
        if source.runs_inline or (not self._under_way and self._host.is_quick(request)):
            proposal = source.propose(request)
        else:
            proposal = await asyncio.wrap_future(self._submit(source.propose, request))
        return self._host.check(request, proposal)

    async def close_session(self, session_id: str) -> None:
        self._host.close(session_id)
        self._settle()

    def _settle(self) -> None:
        # Others may be short of the room that a session held, and nobody may draft again for long. An opening may have
        # dropped idle sessions.
        if self._host.settles and not self._dead:
            self._submit(self._host.settle).add_done_callback(_look_at)

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = self._worker.submit(call, *args, **kwargs)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    def shutdown(self) -> None:
        """Waits for the running call and ends the worker thread; the port is dead afterwards."""
        self._dead = True
        self._worker.shutdown(wait=True, cancel_futures=True)


def _look_at(settled: Future[None]) -> None:
    if not settled.cancelled() and settled.exception() is not None:
        _log.error("what closed sessions held was not given back", exc_info=settled.exception())
