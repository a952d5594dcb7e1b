"""Whether a request is worth running a source over its prompt: heads read the target's rows of all of it before they draft.

That costs time in proportion to the prompt, before the first token; what it brings is in proportion to what is published.
Long prompts with short answers (summaries, questions about a text) lose by a head that gains on others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.budget.running import Running

# Rounds over all requests after which what a source brings is known, and the share of a round in the mean.
_KNOWN_AFTER = 48
_SHARE = 1.0 / 256.0
# Requests of which one is prepared though others lost by it, so that a source that has become better is found out.
_TRIED_EVERY = 8
_ROW_FLOOR_US = 10.0


@dataclass
class _Brought:
    """Sums over past rounds, those long ago counting for less: microseconds gained, tokens published."""

    gained_us: float = 0.0
    tokens: float = 0.0
    rounds: int = 0
    refused: int = 0


class Preparing:
    """What preparing each source costs a row of a prompt, and what the source brings a token that is published."""

    def __init__(self) -> None:
        self._row_us: dict[str, Running] = {}
        self._brought: dict[str, _Brought] = {}

    def prepared(self, source: str, rows: int, us: float) -> None:
        """A prompt of so many rows took so long."""
        if rows > 0:
            self._row_us.setdefault(source, Running(_ROW_FLOOR_US)).add(us / rows)

    def cost_us(self, source: str, rows: int) -> float:
        """What that takes; endless as long as nothing is known."""
        cost = self._row_us.get(source)
        return math.inf if cost is None else cost.value * rows

    def brought(self, source: str, gained_us: float, tokens: int) -> None:
        """A round of a request that the source was prepared for: what it gained, waits off; 0 where it was not asked."""
        sums = self._brought.setdefault(source, _Brought())
        sums.gained_us += gained_us - _SHARE * sums.gained_us
        sums.tokens += tokens - _SHARE * sums.tokens
        sums.rounds += 1

    def worth(self, source: str, rows: int, tokens: int) -> bool:
        """Whether a request that publishes up to `tokens` behind a prompt of `rows` rows gains by preparing the source.

        True while too little is known, and for every eighth request that would lose.
        """
        cost, sums = self._row_us.get(source), self._brought.get(source)
        if cost is None or sums is None or sums.rounds < _KNOWN_AFTER:
            return True
        if sums.gained_us / sums.tokens * tokens >= cost.value * rows:
            return True
        sums.refused += 1
        return sums.refused % _TRIED_EVERY == 0
