"""Published outputs on their way to the live indexes that the request drafted from. It never holds up or fails a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from contracts.errors import DraftproofError
from contracts.ports import RetrieverPort
from contracts.retrieval import PublishedOutput
from orchestrator.admission import Binding


class Recorder:
    """Sends each finished request's output to the retrievers whose description says that they record this tenant's.

    Off unless a retriever's live policy names the tenant. timeout_s: after it an output is given up.
    """

    def __init__(self, retrievers: Sequence[RetrieverPort], *, timeout_s: float) -> None:
        self._retrievers = retrievers
        self._timeout_s = timeout_s
        self._sending: set[asyncio.Task[None]] = set()

    def record(self, bindings: Sequence[Binding], *, tenant: str, entry: str, tokens: npt.NDArray[np.int64]) -> None:
        """Begins to send; returns at once. entry: names the output, whichever index takes it."""
        for binding in bindings:
            if binding.index is not None and binding.index.records and len(tokens):
                output = PublishedOutput(binding.index.index, tenant, entry, tokens)
                task = asyncio.create_task(self._send(self._retrievers[binding.port], output))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, retriever: RetrieverPort, output: PublishedOutput) -> None:
        with contextlib.suppress(DraftproofError, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                await retriever.record(output)

    async def aclose(self) -> None:
        """Waits for what is being sent."""
        await asyncio.gather(*self._sending)
