"""The course of one request: admitted, opened, round after round, summed up, closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from contracts.errors import DeadlineExceeded, DraftproofError, FailedPrecondition, InvalidArgument
from contracts.ledger import RoundLedger, sum_ledgers
from contracts.ports import Tokenizer
from contracts.receipt import FinishReason
from orchestrator.admission import Admitted, admit_request
from orchestrator.budget.adaptive import AdaptiveBudget
from orchestrator.budget.base import Budget, FixedBudget
from orchestrator.budget.experience import Experience
from orchestrator.events import Certificate, Chunk, Final, RoundInfo, Usage
from orchestrator.gather import Gatherer
from orchestrator.metrics import Metrics
from orchestrator.request import GenerateRequest, check_request
from orchestrator.round import Round, RoundOutcome
from orchestrator.rounds import Rounds
from orchestrator.session import Peers, Session
from orchestrator.settings import OrchestratorSettings
from orchestrator.spans import Spans
from orchestrator.text import TextAssembly


class Run:
    """State of one request. Calls in order: `open`, `next_chunk` until `finish` is set, `final`; `close` in any case.

    experience: what an adaptive budget learns from.
    deadline: on the event loop's clock, seconds; None for none.
    """

    def __init__(
        self,
        request: GenerateRequest,
        peers: Peers,
        tokenizer: Tokenizer,
        settings: OrchestratorSettings,
        *,
        spans: Spans,
        metrics: Metrics,
        new_name: Callable[[], str],
        experience: Experience,
        deadline: float | None,
    ) -> None:
        self.finish = FinishReason.NONE
        self._request = request
        self._peers = peers
        self._tokenizer = tokenizer
        self._settings = settings
        self._spans = spans
        self._metrics = metrics
        self._new_name = new_name
        self._experience = experience
        self._deadline = deadline
        self._sessions: list[Session] = []
        self._ledgers: list[RoundLedger] = []
        self._failures: dict[str, str] = {}
        self._stop_string: str | None = None
        self._stop_id: int | None = None
        self._rounds: Rounds | None = None
        self._closing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Admission and prefill. Raises what refuses the request, DeadlineExceeded if it takes too long."""
        settings = self._settings
        check_request(
            self._request,
            node_limit=settings.max_node_budget,
            depth_limit=settings.depth_limit,
            default_sources=settings.default_sources,
        )
        try:
            async with asyncio.timeout_at(self._deadline):
                with self._spans.below_root():
                    session, budget = await self._open_session()
        except TimeoutError as error:
            raise DeadlineExceeded("deadline_ms", "passed before the session was open") from error
        self._spans.admitted(session.admitted, cached_tokens=session.cached_tokens)
        self._metrics.opened(prompt=len(session.admitted.prompt), cached=session.cached_tokens)
        policy, capability = session.admitted.policy, session.admitted.capability
        patience_ms = self._settings.law_deadline_ms if capability.needs_law else self._settings.propose_deadline_ms
        self._text = TextAssembly(self._tokenizer, policy.stop_strings, min_tokens=policy.min_tokens)
        round = Round(
            request=self._request,
            session=session,
            verifier=self._peers.verifier,
            gatherer=Gatherer(
                walks_laws=capability.needs_law,
                deadline_s=patience_ms / 1000,
                vocab_size=session.manifest.target.vocab_size,
                spans=self._spans,
            ),
            budget=budget,
            text=self._text,
            settings=self._settings,
            spans=self._spans,
        )
        self._rounds = Rounds(round)

    async def _open_session(self) -> tuple[Session, Budget]:
        admitted = await self._admit()
        while True:
            adaptive = admitted.manifest.budget == "adaptive"
            budget: Budget = AdaptiveBudget(self._experience) if adaptive else FixedBudget()
            session = Session(
                self._new_name(),
                admitted,
                self._peers,
                self._settings,
                tenant=self._request.tenant,
                cache_scope=self._request.cache_scope,
            )
            self._sessions.append(session)
            try:
                await session.open(budget)
                return session, budget
            except FailedPrecondition:
                # Our description of the verifier may be out of date; sealed afresh, the session may open.
                self._peers.catalogue.invalidate()
                again = await self._admit()
                if again.manifest == admitted.manifest or len(self._sessions) > 1:
                    raise
                admitted = again

    async def _admit(self) -> Admitted:
        view = await self._peers.catalogue.view(self._request.tenant)
        if not view.fresh:
            # Nobody is refused, or left without a source, by what the services were a while ago.
            with contextlib.suppress(InvalidArgument, FailedPrecondition):
                admitted = admit_request(self._request, view, self._tokenizer, self._settings)
                if not admitted.absent:
                    return admitted
            view = await self._peers.catalogue.view(self._request.tenant, fresh=True)
        return admit_request(self._request, view, self._tokenizer, self._settings)

    async def next_chunk(self) -> Chunk | None:
        """One round's chunk, when the next round is on its way: what is done with a chunk is done while the target runs.

        At the deadline the text that was held back, if any.
        """
        assert self._rounds is not None
        try:
            outcome = await self._rounds.next(self._deadline)
        except TimeoutError:
            self.finish = FinishReason.DEADLINE
            held = self._text.flush()
            return Chunk((), held) if held else None
        return self._account(outcome)

    def _account(self, outcome: RoundOutcome) -> Chunk:
        ledger, receipt, manifest = outcome.ledger, outcome.receipt, outcome.manifest
        taken = outcome.taken or self._text.take(receipt.tokens, receipt.finish)
        self._ledgers.append(ledger)
        self._metrics.round(outcome.graph, ledger, verifier=self._sessions[-1].manifest.verifier)
        if ledger.failures:
            self._failures.update(ledger.failures)
            self._peers.catalogue.invalidate()
        self.finish, self._stop_string, self._stop_id = taken.finish, taken.stop_string, taken.stop_id
        return Chunk(
            token_ids=receipt.tokens[: taken.kept],
            text=taken.text,
            logprobs=receipt.logprobs[: taken.kept],
            round=RoundInfo(
                round_id=len(self._ledgers) - 1,
                session_id=manifest.session_id,
                round_hash=manifest.hash,
                prefix_len=manifest.prefix_len + taken.kept,
                candidates=ledger.candidates,
                accepted=ledger.accepted,
                closing=receipt.closing,
                ledger=ledger,
            ),
        )

    async def final(self) -> Final:
        """The certificate. The sessions begin to close meanwhile."""
        self._begin_close()
        session = self._sessions[-1]
        self._peers.recorder.record(
            session.admitted.bindings,
            tenant=self._request.tenant,
            entry=session.session_id,
            tokens=session.frontier.tokens[len(session.admitted.prompt) :],
        )
        capability = session.admitted.capability
        ledger = sum_ledgers(self._ledgers, plain_step_us=await self._plain_step_us())
        return Final(
            finish=self.finish,
            usage=Usage(
                prompt=len(session.admitted.prompt),
                completion=session.published,
                proposed=ledger.candidates,
                accepted=ledger.accepted,
                cached=session.cached_tokens,
            ),
            certificate=Certificate(
                verifier=capability.name,
                exactness=capability.exactness,
                promise=capability.promise,
                manifest_hash=session.manifest.hash,
                manifest=session.manifest.canonical,
                parents=tuple(session.parents),
                ledger=ledger,
                failures=self._failures,
                absent=session.admitted.absent,
                prefill_us=session.prefill_us,
                sessions=session.sessions,
            ),
            stop_string=self._stop_string,
            stop_id=self._stop_id,
        )

    async def _plain_step_us(self) -> float:
        catalogue = self._peers.catalogue
        if catalogue.verifier is not None and catalogue.verifier.plain_step_us:
            return catalogue.verifier.plain_step_us
        with contextlib.suppress(DraftproofError):
            # A fresh verifier has measured its first step only since it was described.
            catalogue.invalidate()
            return (await catalogue.view(self._request.tenant)).verifier.plain_step_us
        return 0.0

    def _begin_close(self) -> asyncio.Task[None]:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_all())
        return self._closing

    async def _close_all(self) -> None:
        if self._rounds is not None:
            await self._rounds.close()
        for session in self._sessions:
            await session.close()

    async def close(self) -> None:
        """Closes every session at verifier and proposers."""
        await self._begin_close()
