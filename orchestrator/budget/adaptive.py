"""The adaptive budget: of what the sources offer, the candidates that make the round's tokens cheapest; none if none do.

A round that verifies n candidates takes t(n) and publishes 1 + (the sum of their chances to be reached and accepted) tokens
in expectation (M7.7's cost model; Sequoia, arXiv 2402.12374, section 3.3, chooses a tree's size by the same ratio). Chances
come from what the text showed of earlier offers (budget/hindsight.py), t from the receipts at the present load
(budget/pass_times.py, budget/experience.py). Candidates are dropped only before verifiers that need no law (DECISIONS 7):
there the published text does not depend on them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec

from contracts.graph import EMPTY_GRAPH, CandidateGraph, keep_rows
from contracts.ledger import RoundLedger
from contracts.proposal import Proposal
from contracts.receipt import Receipt
from contracts.topology import ANCHOR
from orchestrator.budget.acceptance import Trials
from orchestrator.budget.base import Choice, Standing
from orchestrator.budget.evidence import Evidence, known_of, known_of_first
from orchestrator.budget.experience import Experience
from orchestrator.budget.hindsight import Hindsight
from orchestrator.budget.pauses import SourceWorth
from orchestrator.budget.reaches import Reaches
from orchestrator.budget.streaks import DearWorth

# A source is paused or brought back by gains beyond this share of a round.
_MARGIN = 0.01
# What preparing a source may take of a request's plain rounds, whatever the source brought others: this request finds out.
_SMALL = 0.01
# Classes of how likely the next token is among what was offered at once: another source is worth more where that is little.
_STRENGTHS = (0.4, 0.7, 0.9)
# A source that rounds wait longer for is not asked beside the others but after those that answer at once.
_DEAR_US = 2_000.0


class _Thought(Choice, frozen=True):
    """A choice with what is needed to learn from its round: all that was offered, what was known of it, the chances and
    costs that it was chosen by, what of these were waits by dear source, and how strong the offers were that such a source
    was asked after.
    """

    merged: CandidateGraph = EMPTY_GRAPH
    known: Sequence[Sequence[Evidence]] = ()
    chances: Sequence[float] = ()
    costs_us: Sequence[float] = ()
    waits_us: Mapping[str, float] = msgspec.field(default_factory=dict)
    strengths: Mapping[str, int] = msgspec.field(default_factory=dict)

    def gain_us(self, source: str) -> float:
        """What the source's offers saved of the target's time."""
        offering, only = self.merged.sources, (source,)
        alone = offering.count(only)
        if not self.costs_us or not (alone or any(source in names for names in offering)):
            return 0.0
        rest: list[float] = []
        if alone < len(offering):
            rest = [chance for chance, names in zip(self.chances, offering, strict=True) if names != only]
        # What the round waited for the source is no part of the round without it, and is counted when it is known.
        wait_us = self.waits_us.get(source, 0.0)
        less = [cost_us - wait_us for cost_us in self.costs_us] if wait_us else self.costs_us
        count, fewer = cheapest(sorted(rest, reverse=True), less)
        return (less[count] / fewer * self.expected_tokens - less[len(self.graph)]) / self.sessions


class AdaptiveBudget:
    """A Budget that learns from what the text shows (budget/base.py)."""

    def __init__(self, experience: Experience) -> None:
        self._experience = experience
        self._trials = Trials(experience.trials)
        self._hindsight = Hindsight(self._trials)
        self._worth: dict[tuple[str, int], SourceWorth | DearWorth] = {}
        self._strengths: dict[str, int] = {}
        self._reaches = Reaches(experience.reaches)
        # Of the sources that read the prompt's rows, those that do and those that this request does without.
        self._prepared: set[str] = set()
        self._left_out: set[str] = set()

    @property
    def reaches(self) -> Mapping[str, int]:
        return self._reaches.whole

    def prepares(self, source: str, rows: int, tokens: int) -> bool:
        # Once a request: one that goes on elsewhere keeps its sources.
        if source not in self._prepared | self._left_out:
            preparing = self._experience.preparing
            small_us = _SMALL * tokens * self._experience.costs_us(0)[0]
            worth = preparing.cost_us(source, rows) <= small_us or preparing.worth(source, rows, tokens)
            (self._prepared if worth else self._left_out).add(source)
        return source in self._prepared

    def prepared(self, source: str, rows: int, us: float) -> None:
        self._experience.preparing.prepared(source, rows, us)

    def asked(self, source: str) -> bool:
        if source in self._strengths:
            self._strengths = {other: strength for other, strength in self._strengths.items() if other != source}
        return source not in self._left_out and (self.dear(source) or self._wanted(source, 0))

    def dear(self, source: str) -> bool:
        return self._experience.wait_us(source) > _DEAR_US

    def worth_asking(self, source: str, offers: Sequence[Proposal]) -> bool:
        chances = [self._trials.rate(what) for offer in offers for what in known_of_first(offer)]
        strength = bisect_right(_STRENGTHS, max(chances, default=0.0))
        # Another mapping: a choice keeps that of its round.
        self._strengths = {**self._strengths, source: strength}
        return self._wanted(source, strength)

    def _wanted(self, source: str, strength: int) -> bool:
        return self._worth_of(source, strength).next_round_asks()

    def _worth_of(self, source: str, strength: int) -> SourceWorth | DearWorth:
        worth = self._worth.get((source, strength))
        if worth is None:
            experience = self._experience
            before_us = experience.worth_us(source, strength)
            if self.dear(source):
                worth = DearWorth(before_us)
            else:
                paused = experience.pauses_from_the_start(source, strength, self._margin_us)
                worth = SourceWorth(before_us, paused=paused)
            self._worth[source, strength] = worth
        return worth

    @property
    def _margin_us(self) -> float:
        return _MARGIN * self._experience.costs_us(0)[0] / max(1.0, self._experience.sessions.value)

    def choose(self, graph: CandidateGraph, proposals: Sequence[Proposal]) -> Choice:
        experience, offered = self._experience, len(graph)
        known = known_of(graph, proposals)
        if not offered or not experience.times.known:
            return _Thought(graph, offered, merged=graph, known=known, strengths=self._strengths)
        chances = self._chances(graph, known)
        waits: dict[str, float] = {}
        for proposal in proposals:
            wait_us = experience.wait_us(proposal.source)
            if wait_us > _DEAR_US:
                waits[proposal.source] = wait_us
        costs = experience.costs_us(offered, sum(waits.values()))
        ranked = sorted(chances, reverse=True)
        best, tokens = cheapest(ranked, costs)
        if best == offered:
            chosen = graph
        elif not best:
            chosen = EMPTY_GRAPH
        elif chances[:best] == ranked[:best]:
            chosen = keep_rows(graph, range(best))
        else:
            # Chances never grow along a path and ties go by row number, so the first rows are whole with their ancestors.
            order = sorted(range(offered), key=[-chance for chance in chances].__getitem__)
            chosen = keep_rows(graph, sorted(order[:best]))
        idle_us = experience.idle_us.value
        return _Thought(
            chosen,
            offered,
            tokens,
            costs[best],
            costs[best] - costs[0],
            costs[0] - experience.costs_us(0)[0] + idle_us if waits else idle_us,
            experience.sessions.value,
            graph,
            known,
            chances,
            costs,
            waits,
            self._strengths,
        )

    def learn(self, choice: Choice, receipt: Receipt, ledger: RoundLedger, waits_us: Mapping[str, float]) -> None:
        assert isinstance(choice, _Thought)
        self._hindsight.offered(choice.merged, choice.known)
        self._hindsight.published(receipt.tokens)
        # Now, while the target runs, and not when the next round is chosen for.
        self._trials.rates()
        experience = self._experience
        timings = receipt.timings
        pass_us = timings.target_us * receipt.pass_rows / (len(choice.graph) + 1)
        # What the round waited for passes of others: then the target stood still for less than this session was away.
        waited_us = timings.queue_us - (pass_us - timings.target_us)
        dear_us = sum(wait_us for source, wait_us in waits_us.items() if self.dear(source))
        away_us = ledger.total_us - ledger.verify - ledger.queue - dear_us
        experience.add_round(receipt, pass_us=pass_us, idle_us=max(0.0, away_us - max(0.0, waited_us)))
        sessions = experience.sessions.value
        margin_us = self._margin_us
        gained = dict.fromkeys(self._prepared, 0.0)
        for source, wait_us in waits_us.items():
            # Only this session waits, not those that the target serves beside it.
            cost_us = wait_us / sessions
            # No more than a round is believed to be lost: a stall is not what the source costs.
            most_us = choice.expected_us or cost_us
            expected_us = choice.gain_us(source)
            gained_us = max(expected_us - cost_us, -most_us)
            strength = choice.strengths.get(source, 0)
            worth = self._worth_of(source, strength)
            if isinstance(worth, DearWorth):
                hits, held_us = self._held(source, choice, receipt, waits_us, expected_us)
                worth.judge((gained_us + held_us - cost_us) / 2.0, margin_us, hit=hits > 0)
            else:
                worth.judge(gained_us, margin_us)
            experience.add_worth(source, wait_us, gained_us, strength)
            if source in gained:
                gained[source] = gained_us
            if self.dear(source):
                self._reaches.learn(source, offered=choice.merged, chosen=choice.graph)
        for source, gained_us in gained.items():
            experience.preparing.brought(source, gained_us, len(receipt.tokens))

    def _held(
        self, source: str, choice: _Thought, receipt: Receipt, waits_us: Mapping[str, float], gain_us: float
    ) -> tuple[int, float]:
        """Tokens that a dear source alone brought, and the target's time that they really saved: `gain_us` was expected."""
        hits = sum(choice.graph.sources[row] == (source,) for row in receipt.accepted_rows)
        own = sum(names == (source,) for names in choice.graph.sources)
        if not own or not choice.expected_tokens:
            return hits, gain_us
        dear_us = sum(self._experience.wait_us(name) for name in waits_us if self.dear(name))
        # What a token would cost without the source.
        less_us = gain_us * choice.sessions + choice.expected_us - dear_us
        token_us = less_us / choice.expected_tokens
        return hits, (hits * token_us - choice.rows_us * own / len(choice.graph)) / choice.sessions

    def standing(self, source: str, choice: Choice) -> Standing:
        strength = choice.strengths.get(source, 0) if isinstance(choice, _Thought) else 0
        worth = self._worth.get((source, strength))
        tried, accepted = self._trials.of_source(source)
        return Standing(worth.worth_us if worth else 0.0, tried, accepted, source in self._left_out)

    def _chances(self, graph: CandidateGraph, known: Sequence[Sequence[Evidence]]) -> list[float]:
        """To be reached and accepted, by row: what the source that expects most of it expects."""
        trials = self._trials
        rates = trials.rates()
        out: list[float] = []
        for parent, facts in zip(graph.parent_list, known, strict=True):
            most = 0.0
            for what in facts:
                rate = rates.get(what)
                if rate is None:
                    rate = trials.rate(what)
                if rate > most:
                    most = rate
            out.append(most if parent == ANCHOR else most * out[parent])
        return out


def cheapest(chances: Sequence[float], costs_us: Sequence[float]) -> tuple[int, float]:
    """How many of the candidates, likeliest first, make the least time a token, and how many tokens that is.

    costs_us: what a round with 0, 1, 2, ... candidates costs.
    """
    best, best_tokens, tokens = 0, 1.0, 1.0
    for count, chance in enumerate(chances, start=1):
        tokens += chance
        if costs_us[count] * best_tokens < costs_us[best] * tokens:
            best, best_tokens = count, tokens
    return best, best_tokens
