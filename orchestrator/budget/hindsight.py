"""What of the offers held, as the published text shows it, whether it was verified or not.

A candidate whose ancestors all came true was *tried* once the text has reached its place: it is the token that stands there
or not. So the chances do not hang on what was chosen: no candidate has to be verified to be learned from, and a source
that is not verified for a while is judged by what it would have brought.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.graph import CandidateGraph
from contracts.topology import ANCHOR
from orchestrator.budget.acceptance import Trials
from orchestrator.budget.evidence import Evidence


@dataclass(slots=True)
class _Offer:
    """A round's merged offers, and the row that the text has followed them to."""

    graph: CandidateGraph
    known: Sequence[Sequence[Evidence]]
    at: int = ANCHOR


class Hindsight:
    """The offers of a session that its text still follows; at most as many as an offer is deep."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._open: list[_Offer] = []

    def offered(self, graph: CandidateGraph, known: Sequence[Sequence[Evidence]]) -> None:
        """All that was offered at the frontier, before anything was dropped. known: by row, what sources know of it."""
        if len(graph):
            self._open.append(_Offer(graph, known))

    def published(self, tokens: Sequence[int]) -> None:
        """The text went on by `tokens`."""
        for token in tokens:
            self._open = [offer for offer in self._open if self._follow(offer, token)]

    def _follow(self, offer: _Offer, token: int) -> bool:
        tokens, at, goes_on = offer.graph.token_list, offer.at, False
        for row, parent in enumerate(offer.graph.parent_list):
            if parent == at:
                held = tokens[row] == token
                for what in offer.known[row]:
                    self._trials.add(what, accepted=held)
                if held:
                    offer.at, goes_on = row, True
        return goes_on
