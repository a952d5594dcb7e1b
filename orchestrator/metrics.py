"""Counters over all requests, after vLLM's speculative-decoding schema."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from contracts.graph import CandidateGraph
from contracts.ledger import RoundLedger
from orchestrator import telemetry_names as names

Label = tuple[str, str | int]


class Tally:
    """A counter added up here and read when a collector asks: a round makes a dozen additions, each of which would take the
    SDK's own counter 20 us.
    """

    def __init__(self, meter: Meter, name: str, unit: str, description: str) -> None:
        self._sums: dict[tuple[Label, ...], int] = {}
        meter.create_observable_counter(name, [self._read], unit, description)

    def add(self, amount: int, *labels: Label) -> None:
        """Adds under these labels. One thread adds; others may read."""
        self._sums[labels] = self._sums.get(labels, 0) + amount

    def _read(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(total, dict(labels)) for labels, total in self._sums.copy().items()]


class Metrics:
    """Mean acceptance length is 1 + accepted / drafts. A draft is a round with at least one candidate."""

    def __init__(self, meter: Meter) -> None:
        self._drafts = Tally(meter, names.METRIC_DRAFTS, "{draft}", "Rounds with at least one candidate")
        self._draft_tokens = Tally(meter, names.METRIC_DRAFT_TOKENS, "{token}", "Candidates verified")
        self._accepted = Tally(meter, names.METRIC_ACCEPTED_TOKENS, "{token}", "Candidates accepted")
        self._per_pos = Tally(
            meter, names.METRIC_ACCEPTED_PER_POS, "{token}", "Candidates accepted by depth below the anchor, from 0"
        )
        self._committed = Tally(meter, names.METRIC_COMMITTED, "{token}", "Tokens published")
        self._proposed_by = Tally(meter, names.METRIC_SOURCE_PROPOSED, "{token}", "Candidates by source")
        self._accepted_by = Tally(meter, names.METRIC_SOURCE_ACCEPTED, "{token}", "Acceptances by source")
        self._failures = Tally(meter, names.METRIC_SOURCE_FAILURES, "{failure}", "Failed offers by source")
        self._overhead = meter.create_histogram(
            names.METRIC_ROUND_OVERHEAD, "us", "Round time outside target, selection, proposal and retrieval"
        )
        self._asked = Tally(meter, names.METRIC_PREFIX_QUERIES, "{token}", "Prompt tokens of opened sessions")
        self._hits = Tally(
            meter, names.METRIC_PREFIX_HITS, "{token}", "Prompt tokens whose KV the verifier had already"
        )

    def opened(self, *, prompt: int, cached: int) -> None:
        """Adds a request's first session: its prompt's length, and how much of it was not prefilled."""
        self._asked.add(prompt)
        self._hits.add(cached)

    def round(self, graph: CandidateGraph, ledger: RoundLedger, *, verifier: str) -> None:
        """Adds one round."""
        by = (names.LABEL_VERIFIER, verifier)
        if len(graph):
            self._drafts.add(1, by)
            self._draft_tokens.add(len(graph), by)
            self._accepted.add(ledger.accepted, by)
            for position in range(ledger.accepted):
                self._per_pos.add(1, by, (names.LABEL_POSITION, position))
        self._committed.add(ledger.committed, by)
        self._overhead.record(ledger.overhead_us, {names.LABEL_VERIFIER: verifier})
        for source, count in ledger.proposed_by.items():
            self._proposed_by.add(count, (names.LABEL_SOURCE, source))
        for source, count in ledger.accepted_by.items():
            self._accepted_by.add(count, (names.LABEL_SOURCE, source))
        for source in ledger.failures:
            self._failures.add(1, (names.LABEL_SOURCE, source))
