"""Counters over all requests, after vLLM's speculative-decoding schema."""

from __future__ import annotations

from opentelemetry.metrics import Meter

from contracts.graph import CandidateGraph
from contracts.ledger import RoundLedger
from orchestrator import telemetry_names as names


class Metrics:
    """Mean acceptance length is 1 + accepted / drafts. A draft is a round with at least one candidate."""

    def __init__(self, meter: Meter) -> None:
        self._drafts = meter.create_counter(names.METRIC_DRAFTS, "{draft}", "Rounds with at least one candidate")
        self._draft_tokens = meter.create_counter(names.METRIC_DRAFT_TOKENS, "{token}", "Candidates verified")
        self._accepted = meter.create_counter(names.METRIC_ACCEPTED_TOKENS, "{token}", "Candidates accepted")
        self._per_pos = meter.create_counter(
            names.METRIC_ACCEPTED_PER_POS, "{token}", "Candidates accepted by depth below the anchor, from 0"
        )
        self._committed = meter.create_counter(names.METRIC_COMMITTED, "{token}", "Tokens published")
        self._proposed_by = meter.create_counter(names.METRIC_SOURCE_PROPOSED, "{token}", "Candidates by source")
        self._accepted_by = meter.create_counter(names.METRIC_SOURCE_ACCEPTED, "{token}", "Acceptances by source")
        self._failures = meter.create_counter(names.METRIC_SOURCE_FAILURES, "{failure}", "Failed offers by source")
        self._overhead = meter.create_histogram(
            names.METRIC_ROUND_OVERHEAD, "us", "Round time outside target, selection, proposal and retrieval"
        )
        self._asked = meter.create_counter(names.METRIC_PREFIX_QUERIES, "{token}", "Prompt tokens of opened sessions")
        self._hits = meter.create_counter(
            names.METRIC_PREFIX_HITS, "{token}", "Prompt tokens whose KV the verifier had already"
        )

    def opened(self, *, prompt: int, cached: int) -> None:
        """Adds a request's first session: its prompt's length, and how much of it was not prefilled."""
        self._asked.add(prompt)
        self._hits.add(cached)

    def round(self, graph: CandidateGraph, ledger: RoundLedger, *, verifier: str) -> None:
        """Adds one round."""
        by = {names.LABEL_VERIFIER: verifier}
        if len(graph):
            self._drafts.add(1, by)
            self._draft_tokens.add(len(graph), by)
            self._accepted.add(ledger.accepted, by)
            for position in range(ledger.accepted):
                self._per_pos.add(1, {**by, names.LABEL_POSITION: position})
        self._committed.add(ledger.committed, by)
        self._overhead.record(ledger.overhead_us, by)
        for source, count in ledger.proposed_by.items():
            self._proposed_by.add(count, {names.LABEL_SOURCE: source})
        for source, count in ledger.accepted_by.items():
            self._accepted_by.add(count, {names.LABEL_SOURCE: source})
        for source in ledger.failures:
            self._failures.add(1, {names.LABEL_SOURCE: source})
