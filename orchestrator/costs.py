"""A round's ledger from what was measured here and what the peers reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contracts.graph import CandidateGraph
from contracts.ledger import IndexMatch, RoundLedger
from orchestrator.gather import Gathered
from orchestrator.recovery import Answer


def round_ledger(
    *, total_us: float, packing_us: float, gathered: Gathered, answer: Answer, graph: CandidateGraph, kept: int
) -> RoundLedger:
    """Components in microseconds that add up to `total_us`, the wall time of the round.

    `kept`: how many of the receipt's tokens were published. Where peers report more time than their call took (another
    clock), their figures are scaled into it. What a repeated call took beyond the verifier's time is `other`.
    """
    proposal_us, retrieval_us = _gathering(gathered)
    timings = answer.receipt.timings
    scale = min(1.0, (answer.wall_us - answer.waited_us) / timings.total_us) if timings.total_us else 1.0
    around_us = answer.wall_us - answer.waited_us - timings.total_us * scale
    wire_us = gathered.wall_us - proposal_us - retrieval_us + (0.0 if answer.recovered else around_us)
    packing = packing_us + timings.pack_us * scale
    queue, verify = timings.queue_us * scale + answer.waited_us, timings.target_us * scale
    selection, state = timings.select_us * scale, timings.commit_us * scale
    known = proposal_us + retrieval_us + packing + wire_us + queue + verify + selection + state
    accepted = answer.receipt.accepted_rows[:kept]
    return RoundLedger(
        proposal=proposal_us,
        retrieval=retrieval_us,
        packing=packing,
        wire=wire_us,
        queue=queue,
        verify=verify,
        selection=selection,
        state=state,
        other=total_us - known,
        committed=kept,
        candidates=len(graph),
        accepted=len(accepted),
        proposed_by=_by_source(graph, range(len(graph))),
        accepted_by=_by_source(graph, accepted),
        failures=gathered.failures,
        matches={
            offer.source: IndexMatch(cost.match_length, cost.match_count, cost.truncated)
            for offer in gathered.offers
            if offer.retrieves and offer.proposal is not None and (cost := offer.proposal.cost)
        },
    )


def _gathering(gathered: Gathered) -> tuple[float, float]:
    """What the round waited for proposal and for retrieval: the longest of each, sharing the time they overlapped."""
    proposal = max((offer.busy_us for offer in gathered.offers if not offer.retrieves), default=0.0)
    retrieval = max((offer.busy_us for offer in gathered.offers if offer.retrieves), default=0.0)
    waited = min(gathered.wall_us, max(proposal, retrieval))
    both = proposal + retrieval
    return (waited * proposal / both, waited * retrieval / both) if both else (0.0, 0.0)


def _by_source(graph: CandidateGraph, rows: Sequence[int]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        for source in graph.sources[row]:
            counts[source] = counts.get(source, 0) + 1
    return counts
