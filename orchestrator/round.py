"""One round as a transaction: plan, gather, merge, bind, verify, publish, account."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from contracts.capability import bind
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.ledger import RoundLedger
from contracts.manifest import RoundManifest, SourcePlan
from contracts.payload import payload_digest
from contracts.ports import ProposeRequest, VerifierPort, VerifyRequest
from contracts.receipt import FinishReason, Receipt
from orchestrator import telemetry_names as names
from orchestrator.budget.base import Budget, Choice
from orchestrator.choice_trace import set_choice
from orchestrator.costs import round_ledger
from orchestrator.gather import Gathered, Gatherer
from orchestrator.patience import Patience
from orchestrator.recovery import Answer, SessionLost, verify_surely
from orchestrator.request import GenerateRequest
from orchestrator.session import Session
from orchestrator.settings import OrchestratorSettings
from orchestrator.spans import Spans, set_ledger
from orchestrator.strictness import longest_path
from orchestrator.text import Taken, TextAssembly

# Until the question to the verifier has been read: where cores are few its reader waits for the one that we run on.
_AFTERWARDS_S = 0.002


class RoundOutcome(msgspec.Struct, frozen=True, dict=True):
    """A committed round. taken: what of the receipt the client may see, None where that is all of it and the text is yet
    to be made. kept: how many of its tokens that is. total_us, packing_us: the round's wall time, and its packing here.
    """

    manifest: RoundManifest
    choice: Choice
    gathered: Gathered
    answer: Answer
    taken: Taken | None
    kept: int
    total_us: float
    packing_us: float

    @property
    def graph(self) -> CandidateGraph:
        """The candidates that were verified."""
        return self.choice.graph

    @property
    def receipt(self) -> Receipt:
        return self.answer.receipt

    @property
    def finish(self) -> FinishReason:
        """Why generation ends, if it does."""
        return self.receipt.finish if self.taken is None else self.taken.finish

    @cached_property
    def ledger(self) -> RoundLedger:
        """Made when first asked for, which is while the next round's target runs."""
        return round_ledger(
            total_us=self.total_us,
            packing_us=self.packing_us,
            gathered=self.gathered,
            answer=self.answer,
            graph=self.graph,
            kept=self.kept,
        )


@dataclass(frozen=True)
class Round:
    """What the rounds of one request share."""

    request: GenerateRequest
    session: Session
    verifier: VerifierPort
    gatherer: Gatherer
    budget: Budget
    text: TextAssembly
    settings: OrchestratorSettings
    spans: Spans
    patience: Patience = field(default_factory=Patience)
    unlearned: deque[RoundOutcome] = field(default_factory=deque)

    async def run(self, asked: Callable[[], None]) -> RoundOutcome:
        """One committed round. Where the session is lost it goes on elsewhere, inside the same round's time.

        Calls `asked` a moment after the verifier was asked, unless the round is over by then. Raises the verifier's
        refusals, and Unavailable where no replica is left.
        """
        started = time.perf_counter()
        with self.spans.round():
            while True:
                try:
                    outcome = await self._attempt(started, asked)
                    break
                except SessionLost:
                    await self.session.reopen(self.budget)
        if outcome.finish is not FinishReason.NONE:
            self._learn()
        return outcome

    async def _attempt(self, started: float, asked: Callable[[], None]) -> RoundOutcome:
        session = self.session
        willing = [source for source in session.sources if self.budget.asked(source.description.name)]
        sources = self.gatherer.begin_round(willing)
        plan = session.plan(sources, self.budget.reaches)
        manifest = session.round_manifest(plan, sources)
        prefix = session.frontier.tokens
        gathered = await self.gatherer.gather(
            [
                (source, self._ask(share, manifest, prefix))
                for share in plan
                for source in sources
                if source.description.name == share.source
            ],
            dear=self.budget.dear,
            worth=self.budget.worth_asking,
        )
        packing = time.perf_counter()
        with self.spans.pack():
            merged = merge_by_full_prefix(gathered.proposals, budget=session.manifest.node_budget)
            if session.one_path:
                merged = longest_path(merged)
            choice = self.budget.choose(merged, gathered.proposals)
            graph = choice.graph
            bind(session.admitted.capability, graph)
            request = VerifyRequest(manifest, graph, payload_digest(manifest, graph), session.round_id - 1)
        packing_us = (time.perf_counter() - packing) * 1e6
        if self.spans.traced:
            # Before the round before is learned from, which changes what is thought of the sources.
            span = self.spans.current()
            if span.is_recording():
                set_choice(
                    span, session, self.budget, choice, willing=willing, ready=sources, plan=plan, gathered=gathered
                )
        with self.spans.verify() as span:
            afterwards = asyncio.get_running_loop().call_later(_AFTERWARDS_S, self._afterwards, asked)
            try:
                answer = await verify_surely(self.verifier, request, self.settings, self.patience)
            finally:
                afterwards.cancel()
            receipt = answer.receipt
            if span.is_recording():
                span.set_attributes(
                    {
                        names.PASS_ROWS: receipt.pass_rows,
                        names.PASS_SESSIONS: receipt.pass_sessions,
                        names.RECOVERED: answer.recovered,
                    }
                )
                self.spans.verify_parts(receipt, started_ns=answer.started_ns, wall_us=answer.wall_us)
        # Text that cannot end the generation is made while the next round's target runs.
        taken = self.text.take(receipt.tokens, receipt.finish) if self.text.may_stop else None
        kept = len(receipt.tokens) if taken is None else taken.kept
        session.publish(receipt, kept)
        outcome = RoundOutcome(
            manifest=manifest,
            choice=choice,
            gathered=gathered,
            answer=answer,
            taken=taken,
            kept=kept,
            total_us=(time.perf_counter() - started) * 1e6,
            packing_us=packing_us,
        )
        # Where the answer came before there was time to.
        self._learn()
        self.unlearned.append(outcome)
        self._annotate(outcome)
        return outcome

    def _afterwards(self, asked: Callable[[], None]) -> None:
        """What the round before has left to do, while this one's target runs: it is learned from, then given out."""
        self._learn()
        asked()

    def _learn(self) -> None:
        while self.unlearned:
            outcome = self.unlearned.popleft()
            self.budget.learn(outcome.choice, outcome.receipt, outcome.ledger, outcome.gathered.waits_us)

    def _ask(self, share: SourcePlan, manifest: RoundManifest, prefix: npt.NDArray[np.int64]) -> ProposeRequest:
        return ProposeRequest(
            source=share.source,
            manifest=manifest,
            policy=self.session.admitted.policy,
            prefix=prefix,
            node_budget=share.node_budget,
            max_depth=share.max_depth,
            options=self.request.options.get(share.source, {}),
        )

    def _annotate(self, outcome: RoundOutcome) -> None:
        span = self.spans.current()
        if span.is_recording():
            manifest = outcome.manifest
            span.set_attributes(
                {
                    names.SESSION_ID: manifest.session_id,
                    names.ROUND_ID: manifest.round_id,
                    names.ROUND_HASH: manifest.hash,
                    names.MANIFEST_HASH: manifest.manifest_hash,
                    names.PREFIX_LEN: manifest.prefix_len,
                }
            )
            set_ledger(span, outcome.ledger)
