"""The local stack with chosen sources and a watched verifier: real rounds, nothing simulated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from contracts.graph import CandidateGraph
from contracts.hidden import HiddenRows
from contracts.ledger import RoundLedger
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifierPort, VerifyRequest
from contracts.receipt import Receipt
from contracts.sampling import SamplingPolicy
from models.checkpoint import resolve
from orchestrator.events import Chunk, Final
from orchestrator.generate import Orchestrator
from orchestrator.request import GenerateRequest
from proposer.host import SourceHost, TakesRows
from proposer.local import LocalProposer
from proposer.source import Source
from services.orchestrator_service.process import orchestrator_settings
from services.proposer_service.process import build_proposer
from services.settings import AllSettings
from services.text import CheckpointTokenizer
from services.verifier_service.build import build_worker
from verifier.local import LocalVerifier

Watch = Callable[[CandidateGraph, Receipt], None]

# Waiting for a draft must not be cut short here: a source that is late is not measured at all.
_PATIENCE_MS = 600_000.0


class WatchedVerifier:
    """Passes every call on and shows each verified graph with its receipt to `watch`, which may be set at any time."""

    def __init__(self, port: VerifierPort) -> None:
        self._port = port
        self.watch: Watch | None = None

    async def describe(self) -> VerifierDescription:
        return await self._port.describe()

    async def open_session(self, request: OpenSession) -> SessionOpened:
        return await self._port.open_session(request)

    async def verify(self, request: VerifyRequest) -> Receipt:
        receipt = await self._port.verify(request)
        if self.watch is not None:
            self.watch(request.graph, receipt)
        return receipt

    async def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        return await self._port.get_receipt(session_id, round_id)

    async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        return await self._port.export_hidden(session_id, start, stop)

    async def close_session(self, session_id: str) -> None:
        await self._port.close_session(session_id)


@dataclass(frozen=True)
class Observed:
    """One generation. seconds: of its rounds, prefill not included. rounds: their ledgers.

    later_tokens, later_cpu_seconds: of all rounds but the first, in this process's CPU time over all threads: what waiting
    for a busy machine does not change.
    """

    tokens: tuple[int, ...]
    seconds: float
    later_tokens: int
    later_cpu_seconds: float
    rounds: tuple[RoundLedger, ...]
    final: Final


@dataclass(frozen=True)
class LocalStack:
    """An orchestrator with its peers in this process."""

    orchestrator: Orchestrator
    verifier: WatchedVerifier
    proposer: LocalProposer
    tokenizer: CheckpointTokenizer

    async def generate(
        self,
        prompt: Sequence[int],
        policy: SamplingPolicy,
        sources: Sequence[str],
        *,
        node_budget: int | None = None,
        max_depth: int | None = None,
        verifier: str = "",
    ) -> Observed:
        """One request over the named sources; none of them is plain decoding."""
        request = GenerateRequest(
            prompt_ids=tuple(prompt),
            policy=policy,
            sources=tuple(sources),
            node_budget=node_budget if sources else 0,
            max_depth=max_depth,
            verifier=verifier,
        )
        tokens: list[int] = []
        rounds: list[RoundLedger] = []
        started: float | None = None
        final: Final | None = None
        ended = before = time.perf_counter()
        first_tokens, cpu_after_first, cpu_ended = 0, 0.0, 0.0
        async for event in self.orchestrator.generate(request):
            if isinstance(event, Chunk):
                ended, cpu_ended = time.perf_counter(), time.process_time()
                tokens.extend(event.token_ids)
                if not rounds:
                    first_tokens, cpu_after_first = len(tokens), cpu_ended
                if event.round is not None:
                    rounds.append(event.round.ledger)
                    started = started if started is not None else ended - event.round.ledger.total_us / 1e6
            else:
                final = event
        assert final is not None
        return Observed(
            tuple(tokens),
            ended - (before if started is None else started),
            len(tokens) - first_tokens,
            cpu_ended - cpu_after_first,
            tuple(rounds),
            final,
        )


@asynccontextmanager
async def local_stack(
    settings: AllSettings, sources: Sequence[Source] | None = None, *, hidden: TakesRows | None = None
) -> AsyncIterator[LocalStack]:
    """The stack of `services.local` without retrieval. sources: None for those of the settings. hidden: where the target's
    rows go that `sources` read."""
    async with AsyncExitStack() as stack:
        worker = await asyncio.to_thread(build_worker, settings)
        verifier = WatchedVerifier(await stack.enter_async_context(LocalVerifier(worker)))
        if sources is None:
            proposer = await asyncio.to_thread(build_proposer, settings)
        else:
            proposer = LocalProposer(SourceHost(sources, hidden=hidden))
        stack.callback(proposer.shutdown)
        tokenizer = CheckpointTokenizer(resolve(settings.model, settings.models_dir))
        # Whatever is offered is verified: what is measured must not depend on what was measured before.
        patient = replace(orchestrator_settings(settings), propose_deadline_ms=_PATIENCE_MS, budget="fixed")
        orchestrator = Orchestrator(verifier, [proposer], [], tokenizer, patient)
        stack.push_async_callback(orchestrator.aclose)
        yield LocalStack(orchestrator, verifier, proposer, tokenizer)
