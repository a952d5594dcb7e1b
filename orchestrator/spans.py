"""The trace of one Generate: generate → round → propose / retrieve / pack / verify (queue, target, select, commit).

A generator must not leave a span attached across a yield (its consumer may live in another context), so the root is
passed explicitly and only coroutines enter spans.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from contracts.ledger import COMPONENTS, LedgerSum, RoundLedger
from contracts.proposal import Proposal
from contracts.receipt import FinishReason, Receipt
from contracts.topology import ProbabilitySemantics
from orchestrator import telemetry_names as names
from orchestrator.admission import Admitted
from orchestrator.events import Final
from orchestrator.request import GenerateRequest

# Entered several times a round where nobody traces.
_UNTRACED = nullcontext(trace.INVALID_SPAN)


class Spans:
    """Spans of one request below `root`, which the caller ends by `end`."""

    def __init__(self, tracer: Tracer, request: GenerateRequest) -> None:
        self._tracer = tracer
        self.root: Span = tracer.start_span(names.SPAN_GENERATE)
        # Without a tracer and without a caller's trace there is nothing to record and no context to pass on.
        self.traced = self.root.get_span_context().is_valid
        self._context = trace.set_span_in_context(self.root, otel_context.get_current())
        if self.root.is_recording():
            self.root.set_attributes({names.REQUEST_ID: request.request_id, names.TENANT: request.tenant})

    @contextmanager
    def below_root(self) -> Iterator[None]:
        """Calls made inside carry the root's context."""
        with trace.use_span(self.root, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def round(self) -> AbstractContextManager[Span]:
        return self._span(names.SPAN_ROUND, self._context)

    def offer(self, source: str, *, retrieves: bool) -> AbstractContextManager[Span]:
        if not self.traced:
            return _UNTRACED
        name = f"{names.SPAN_RETRIEVE if retrieves else names.SPAN_PROPOSE}/{source}"
        return self._tracer.start_as_current_span(name, attributes={names.SOURCE: source}, record_exception=False)

    def pack(self) -> AbstractContextManager[Span]:
        return self._span(names.SPAN_PACK)

    def verify(self) -> AbstractContextManager[Span]:
        return self._span(names.SPAN_VERIFY)

    def _span(self, name: str, context: Context | None = None) -> AbstractContextManager[Span]:
        return self._tracer.start_as_current_span(name, context=context) if self.traced else _UNTRACED

    def current(self) -> Span:
        """The innermost span entered here."""
        return trace.get_current_span() if self.traced else trace.INVALID_SPAN

    def verify_parts(self, receipt: Receipt, *, started_ns: int, wall_us: float) -> None:
        """Children of the current (verify) span from the receipt's timings.

        started_ns: wall clock at the call's start. The verifier's clock is not ours, so its time is centred in the
        call's, as if the wire took equally long both ways.
        """
        if not self.current().is_recording():
            return
        timings = receipt.timings
        scale = min(1.0, wall_us / timings.total_us) if timings.total_us else 1.0
        at_us = (wall_us - timings.total_us * scale) / 2
        for name, length_us in (
            (names.SPAN_QUEUE, timings.queue_us),
            ("", timings.pack_us),
            (names.SPAN_TARGET, timings.target_us),
            (names.SPAN_SELECT, timings.select_us),
            (names.SPAN_COMMIT, timings.commit_us),
        ):
            end_us = at_us + length_us * scale
            if name:
                child = self._tracer.start_span(name, start_time=started_ns + int(at_us * 1000))
                child.end(started_ns + int(end_us * 1000))
            at_us = end_us

    def admitted(self, admitted: Admitted, *, cached_tokens: int) -> None:
        """The request's sealed facts on the root, and how much of its prompt was not prefilled."""
        if self.root.is_recording():
            self.root.set_attributes(
                {
                    names.GEN_AI_OPERATION: "text_completion",
                    names.GEN_AI_MODEL: admitted.manifest.target.model,
                    names.GEN_AI_TEMPERATURE: admitted.policy.temperature,
                    names.GEN_AI_MAX_TOKENS: admitted.policy.max_tokens,
                    names.GEN_AI_INPUT_TOKENS: len(admitted.prompt),
                    names.GEN_AI_CACHED_TOKENS: cached_tokens,
                    names.VERIFIER: admitted.capability.name,
                    names.EXACTNESS: admitted.capability.exactness.value,
                }
            )

    def finished(self, final: Final) -> None:
        """The certificate's figures on the root."""
        if self.root.is_recording():
            certificate = final.certificate
            self.root.set_attributes(
                {
                    names.MANIFEST_HASH: certificate.manifest_hash,
                    names.GEN_AI_OUTPUT_TOKENS: final.usage.completion,
                    names.GEN_AI_FINISH_REASONS: (final.finish.value,),
                    names.ROUNDS: certificate.rounds,
                    names.SESSIONS: certificate.sessions,
                    names.SPEEDUP: certificate.ledger.speedup,
                    names.TIME_PER_TOKEN_US: certificate.ledger.time_per_committed_token_us,
                }
            )
            if certificate.forced_calibrations:
                forced = tuple(f"{name}:{made}" for name, made in certificate.forced_calibrations.items())
                self.root.set_attribute(names.FORCED_CALIBRATIONS, forced)
            set_ledger(self.root, certificate.ledger)

    def cancelled(self) -> None:
        """The caller went away before the end."""
        self.root.set_attribute(names.GEN_AI_FINISH_REASONS, (FinishReason.CANCELLED.value,))

    def failed(self, error: BaseException) -> None:
        """The request ended by an error."""
        self.root.record_exception(error)
        self.root.set_status(Status(StatusCode.ERROR, str(error)))

    def end(self) -> None:
        self.root.end()


def set_offer(span: Span, proposal: Proposal | None, failure: str) -> None:
    """What a source gave, or why it gave nothing."""
    if not span.is_recording():
        return
    if proposal is not None:
        cost = proposal.cost
        span.set_attributes({names.NODES: len(proposal.nodes), names.COMPUTE_US: cost.compute_us})
        if proposal.semantics is ProbabilitySemantics.FREQUENCY:
            span.set_attributes(
                {
                    names.MATCH_LENGTH: cost.match_length,
                    names.MATCH_COUNT: cost.match_count,
                    names.MISS: cost.miss,
                    names.TRUNCATED: cost.truncated,
                }
            )
    if failure:
        span.set_attribute(names.FAILURE, failure)
        span.set_status(Status(StatusCode.ERROR, failure))


def set_ledger(span: Span, ledger: RoundLedger | LedgerSum) -> None:
    """Every component in microseconds, and the counts."""
    costs = ledger.components_us if isinstance(ledger, LedgerSum) else {c: getattr(ledger, c) for c in COMPONENTS}
    span.set_attributes({f"{names.LEDGER_PREFIX}.{name}_us": float(cost) for name, cost in costs.items()})
    span.set_attributes(
        {
            names.CANDIDATES: ledger.candidates,
            names.ACCEPTED: ledger.accepted,
            names.COMMITTED: ledger.committed,
        }
    )


def now_ns() -> int:
    """Wall clock, for span timestamps."""
    return time.time_ns()
