"""Generate: from a request to a stream of published tokens, and a certificate at the end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence

from opentelemetry import metrics, trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from contracts.ports import ProposerPort, RetrieverPort, Tokenizer, VerifierPort
from contracts.receipt import FinishReason
from orchestrator import telemetry_names as names
from orchestrator.budget.experience import Experience
from orchestrator.catalogue import Catalogue
from orchestrator.events import GenerateEvent
from orchestrator.metrics import Metrics
from orchestrator.recording import Recorder
from orchestrator.request import GenerateRequest
from orchestrator.run import Run
from orchestrator.session import Peers
from orchestrator.settings import OrchestratorSettings
from orchestrator.spans import Spans


class Orchestrator:
    """Runs requests against one verifier port and any number of proposers and retrievers. Safe for concurrent requests.

    `new_name` gives each request's session name; it must be unique among all orchestrators of one verifier.
    """

    def __init__(
        self,
        verifier: VerifierPort,
        proposers: Sequence[ProposerPort],
        retrievers: Sequence[RetrieverPort],
        tokenizer: Tokenizer,
        settings: OrchestratorSettings | None = None,
        *,
        tracer: Tracer | None = None,
        meter: Meter | None = None,
        new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._settings = settings or OrchestratorSettings()
        self._tokenizer = tokenizer
        self._tracer = tracer or trace.get_tracer(names.SCOPE)
        self._metrics = Metrics(meter or metrics.get_meter(names.SCOPE))
        self._new_name = new_name
        self._experience = Experience()
        self._closing: set[asyncio.Task[None]] = set()
        catalogue = Catalogue(
            verifier,
            proposers,
            retrievers,
            ttl_s=self._settings.describe_ttl_ms / 1000,
            stale_s=self._settings.describe_stale_ms / 1000,
            timeout_s=self._settings.describe_timeout_ms / 1000,
        )
        self._recorder = Recorder(retrievers, timeout_s=self._settings.record_timeout_ms / 1000)
        self._peers = Peers(verifier, proposers, retrievers, catalogue, self._recorder)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Yields a Chunk per round and at last one Final.

        Raises InvalidArgument, FailedPrecondition or ResourceExhausted before the first chunk; DeadlineExceeded where the
        deadline passes before a session is open (after that, the stream ends with finish `deadline`); Unavailable where
        no replica is left. However the stream ends, its sessions are closed.
        """
        loop = asyncio.get_running_loop()
        spans = Spans(self._tracer, request)
        run = Run(
            request,
            self._peers,
            self._tokenizer,
            self._settings,
            spans=spans,
            metrics=self._metrics,
            new_name=self._new_name,
            experience=self._experience,
            deadline=None if request.deadline_ms is None else loop.time() + request.deadline_ms / 1000,
        )
        try:
            await run.open()
            while run.finish is FinishReason.NONE:
                chunk = await run.next_chunk()
                if chunk is not None:
                    yield chunk
            final = await run.final()
            spans.finished(final)
            yield final
        except Exception as error:
            spans.failed(error)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # Nobody hears a final message any more; the trace says how it ended.
            if run.finish is FinishReason.NONE:
                spans.cancelled()
            raise
        finally:
            spans.end()
            await self._close(run)

    async def _close(self, run: Run) -> None:
        task = asyncio.create_task(run.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    async def aclose(self) -> None:
        """Waits for the sessions that are being closed and the outputs that are being recorded; gives up descriptions that
        are being asked for.
        """
        await asyncio.gather(*self._closing)
        await self._peers.catalogue.close()
        await self._recorder.aclose()
