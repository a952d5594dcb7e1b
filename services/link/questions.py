"""The asking end of one connection: questions go out under call ids, answers come back by them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple, cast

from contracts.errors import DeadlineExceeded, DraftproofError
from protos.draftproof.v1.errors_pb2 import ErrorInfo
from services.link.frames import Kind, Splitter, frame
from services.link.prompt_answer import PromptAnswer
from services.link.writing import Writer
from services.status import error_of_info


class _Waiting(NamedTuple):
    """A question's answer to be, and until when it is waited for, on the loop's clock."""

    answer: PromptAnswer
    until: float
    timeout_s: float


class Questions(asyncio.Protocol):
    """lost: the error of what waits when the stream ends, and of what is asked without one."""

    def __init__(self, lost: Callable[[], DraftproofError]) -> None:
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._writer: Writer | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._splitter = Splitter()
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    @property
    def up(self) -> bool:
        """Whether there is a stream."""
        return self._transport is not None

    async def ask(self, kind: Kind, payload: bytes, *, timeout_s: float = math.inf) -> bytes:
        """The answer's bytes. Raises the peer's error, `lost`, and DeadlineExceeded after `timeout_s`; a question that is
        given up is taken back.
        """
        if self._writer is None:
            raise self._lost()
        loop = asyncio.get_running_loop()
        self._last_id += 1
        call_id = self._last_id
        answer = PromptAnswer(loop=loop)
        until = loop.time() + timeout_s
        self._waiting[call_id] = _Waiting(answer, until, timeout_s)
        self._writer.write(frame(kind, call_id, payload))
        if until < self._looks_at:
            self._look_at(until, loop)
        try:
            return await answer
        finally:
            if self._waiting.pop(call_id, None) is not None:
                self.tell(Kind.CANCEL, call_id=call_id)

    def tell(self, kind: Kind, payload: bytes = b"", *, call_id: int = 0) -> None:
        """Sends what has no answer; nothing where there is no stream."""
        if self._writer is not None:
            self._writer.write(frame(kind, call_id, payload))

    def close(self) -> None:
        """Ends the stream once what was written has left."""
        if self._transport is not None:
            self._transport.close()

    def noticed(self, kind: Kind) -> None:
        """A frame that answers nothing that waits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._writer = Writer(self._transport)

    def data_received(self, data: bytes) -> None:
        for kind, call_id, payload in self._splitter.feed(data):
            waiting = self._waiting.pop(call_id, None)
            if waiting is None or waiting.answer.done():
                self.noticed(kind)
            elif kind is Kind.ERROR:
                waiting.answer.set_exception(error_of_info(ErrorInfo.FromString(payload)))
            else:
                waiting.answer.settle(payload)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._writer = None
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(self._lost())
        self._waiting.clear()

    def _look_at(self, when: float, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all that wait: one a question would cost every round a step. It looks and starts itself again."""
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = loop.call_at(when, self._give_up_late_ones, loop)

    def _give_up_late_ones(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks_at = None, math.inf
        now = loop.time()
        for answer, until, timeout_s in self._waiting.values():
            if until <= now and not answer.done():
                answer.set_exception(DeadlineExceeded("", f"no answer within {timeout_s * 1000:.0f} ms"))
        soonest = min(
            (waiting.until for waiting in self._waiting.values() if not waiting.answer.done()), default=math.inf
        )
        if soonest < math.inf:
            self._look_at(soonest, loop)
