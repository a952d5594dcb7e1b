"""The adaptive budget: of what the sources offer, the candidates that make the round's tokens cheapest; none if none do.

A round that verifies n candidates takes t(n) and publishes 1 + (the sum of their chances to be reached and accepted) tokens
in expectation (M7.7's cost model; Sequoia, arXiv 2402.12374, section 3.3, chooses a tree's size by the same ratio). Chances
come from counted trials (budget/acceptance.py), t from the receipts (budget/pass_times.py); sessions that share a pass are
taken to verify as many as this one. Candidates are dropped only before verifiers that need no law (DECISIONS 7): there the
published text does not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from contracts.graph import EMPTY_GRAPH, CandidateGraph, keep_rows
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.topology import ANCHOR, ProbabilitySemantics
from orchestrator.budget.acceptance import Evidence, Trials, evidence, own_evidence
from orchestrator.budget.base import Choice
from orchestrator.budget.pass_times import PassTimes
from orchestrator.budget.pauses import SourceWorth

# A source is paused or brought back by gains beyond this share of a plain step.
_MARGIN = 0.02
_EXPLORE_AFTER = 16
# Rounds over all sessions after which a source's worth is known, and that it is a running mean of.
_WORTH_KNOWN_AFTER = 48
_WORTH_MEMORY = 256


class Experience:
    """What all sessions of an orchestrator learn from and start with."""

    def __init__(self) -> None:
        self.trials = Trials()
        self.times = PassTimes()
        self._worths: dict[str, tuple[float, int]] = {}

    def worth_us(self, source: str) -> float | None:
        """What a round gained by the source, over recent sessions; None as long as too few rounds are known."""
        mean, rounds = self._worths.get(source, (0.0, 0))
        return mean if rounds >= _WORTH_KNOWN_AFTER else None

    def add_worth(self, source: str, gained_us: float) -> None:
        """One round in which it was asked."""
        mean, rounds = self._worths.get(source, (0.0, 0))
        rounds = min(rounds + 1, _WORTH_MEMORY)
        self._worths[source] = mean + (gained_us - mean) / rounds, rounds


class AdaptiveBudget:
    """A Budget that learns from what it chose (budget/base.py)."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self._times = experience.times
        self._trials = Trials(experience.trials)
        self._worth: dict[str, SourceWorth] = {}
        self._round = -1
        self._idle = 0
        self._evidence: list[dict[str, Evidence]] = []

    def asked(self, source: str) -> bool:
        worth = self._worth.get(source)
        return worth is None or worth.wanted(self._round + 1)

    def choose(self, graph: CandidateGraph, proposals: Sequence[Proposal], wait_us: float) -> Choice:
        self._round += 1
        self._evidence = []
        base_us, row_us = self._times.line()
        row_us *= self._times.sessions
        plain_us = base_us + row_us + self._times.outside_us
        if not len(graph) or not self._times.known:
            self._evidence = _known_of(graph, proposals)
            return Choice(graph, len(graph), row_us=row_us)
        known = _known_of(graph, proposals)
        chances = self._chances(graph, known)
        order = sorted(range(len(graph)), key=lambda row: (-chances[row], row))
        best, tokens, best_cost, best_tokens = 0, 1.0, plain_us + wait_us, 1.0
        for count, row in enumerate(order, start=1):
            tokens += chances[row]
            cost = (plain_us + wait_us + count * row_us) / tokens
            if cost < best_cost:
                best, best_cost, best_tokens = count, cost, tokens
        self._idle = 0 if best else self._idle + 1
        if self._idle == _EXPLORE_AFTER:
            # What is never verified is never tried: one row now and then shows whether the text has moved on.
            best, best_tokens, self._idle = 1, 1.0 + chances[order[0]], 0
        # Chances never grow along a path and ties go by row number, so the first rows are whole with their ancestors.
        kept = sorted(order[:best])
        self._evidence = [known[row] for row in kept]
        chosen = graph if best == len(graph) else keep_rows(graph, kept) if kept else EMPTY_GRAPH
        return Choice(chosen, len(graph), best_tokens, plain_us + best * row_us, row_us)

    def learn(self, choice: Choice, receipt: Receipt, ledger: RoundLedger, waits_us: Mapping[str, float]) -> None:
        graph = choice.graph
        rows = len(graph) + 1
        target_us = receipt.timings.target_us
        outside_us = max(0.0, ledger.total_us - ledger.verify - sum(waits_us.values()))
        self._times.add(receipt.pass_rows, receipt.pass_sessions, target_us * receipt.pass_rows / rows, outside_us)
        tried_at = {ANCHOR, *receipt.accepted_rows}
        accepted = set(receipt.accepted_rows)
        parents = graph.parents.tolist()
        for row, known in enumerate(self._evidence):
            if parents[row] in tried_at:
                for what in known.values():
                    self._trials.add(what, accepted=row in accepted)
        base_us, row_us = self._times.line()
        plain_us = base_us + row_us + self._times.outside_us
        for source, wait_us in waits_us.items():
            spent_us = ledger.proposed_by.get(source, 0) * choice.row_us + wait_us
            gained_us = ledger.accepted_by.get(source, 0) * plain_us - spent_us
            worth = self._worth.get(source)
            if worth is None:
                worth = self._worth[source] = SourceWorth(self._experience.worth_us(source))
            worth.judge(self._round, gained_us, _MARGIN * plain_us)
            self._experience.add_worth(source, gained_us)

    def _chances(self, graph: CandidateGraph, known: Sequence[dict[str, Evidence]]) -> list[float]:
        out: list[float] = []
        for row, parent in enumerate(graph.parents.tolist()):
            rate = max((self._trials.rate(what) for what in known[row].values()), default=0.0)
            out.append(rate if parent == ANCHOR else rate * out[parent])
        return out


def _known_of(graph: CandidateGraph, proposals: Sequence[Proposal]) -> list[dict[str, Evidence]]:
    """Per row what each source that offered it knows of it."""
    out: list[dict[str, Evidence]] = [{} for _ in range(len(graph))]
    children = graph.children
    for proposal in proposals:
        rows: dict[int, int] = {ANCHOR: ANCHOR}
        for index, node in enumerate(proposal.nodes):
            parent = rows.get(node.parent)
            row = None if parent is None else children.get(parent, {}).get(node.token)
            if row is None:
                continue
            rows[index] = row
            share = _share(proposal, index)
            if proposal.semantics is ProbabilitySemantics.SCORE_ONLY and node.score is not None:
                out[row][proposal.source] = own_evidence(proposal.source, share, node.depth)
            else:
                out[row][proposal.source] = evidence(proposal.source, proposal.cost.match_length, share, node.depth)
    return out


def _share(proposal: Proposal, index: int) -> float:
    """How much of what was seen, or of the drafter's probability, went this way at the parent; 1 where nobody says."""
    node = proposal.nodes[index]
    if node.score is None:
        return 1.0
    before = proposal.nodes[node.parent].score if node.parent >= 0 else None
    if proposal.semantics is ProbabilitySemantics.FREQUENCY:
        seen = proposal.cost.match_count if before is None else before
        return min(1.0, node.score / seen) if seen else 0.0
    if proposal.semantics is ProbabilitySemantics.SCORE_ONLY:
        return math.exp(min(0.0, node.score - (before or 0.0)))
    return 1.0
