"""How often candidates hold, by what is known of them beforehand.

What is known: the source, how long a suffix it matched, how often this continuation followed that one (where the source
counts), and how deep the candidate stands. A candidate is *tried* when its parent was accepted: then it is accepted or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

Evidence = tuple[str, int, int, int]

_SHARED_WEIGHT = 8.0
_PRIOR_WEIGHT = 4.0
_FORGET_AT = 512.0
# A longer match makes a continuation likelier; what these are at first matters for a few dozen trials only.
_PRIOR_BY_MATCH = (0.5, 0.4, 0.5, 0.65, 0.75, 0.85)
_SHARES = (0.05, 0.2, 0.5)
_PRIOR_BY_SHARE = (0.03, 0.12, 0.35, 1.0)
_DEEPEST = 4


def evidence(source: str, match_length: int, share: float, depth: int) -> Evidence:
    """Classes of match length (0, 1, 2, 3-4, 5-8, longer), of the share of what was seen (_SHARES), and depths to 4."""
    match = match_length if match_length < 3 else 3 if match_length < 5 else 4 if match_length < 9 else 5
    return source, match, bisect_right(_SHARES, share), min(depth, _DEEPEST)


class Trials:
    """Counts of tried and accepted candidates by evidence, of one session on top of those of all sessions before."""

    def __init__(self, shared: Trials | None = None) -> None:
        self._shared = shared
        self._counts: dict[Evidence, list[float]] = {}

    def add(self, what: Evidence, *, accepted: bool) -> None:
        """One trial, here and in what is shared."""
        counts = self._counts.get(what)
        if counts is None:
            counts = self._counts[what] = [0.0, 0.0]
        counts[0] += 1.0
        counts[1] += accepted
        if counts[0] >= _FORGET_AT:
            counts[0], counts[1] = counts[0] / 2.0, counts[1] / 2.0
        if self._shared is not None:
            self._shared.add(what, accepted=accepted)

    def rate(self, what: Evidence) -> float:
        """The expected share of accepted ones among the tried, within (0, 1): Beta means, the shared one as the prior."""
        tried, accepted = self._counts.get(what, (0.0, 0.0))
        if self._shared is not None:
            prior, weight = self._shared.rate(what), _SHARED_WEIGHT
        else:
            prior, weight = _PRIOR_BY_MATCH[what[1]] * _PRIOR_BY_SHARE[what[2]], _PRIOR_WEIGHT
        return (accepted + prior * weight) / (tried + weight)

    def snapshot(self) -> Mapping[Evidence, tuple[float, float]]:
        """(tried, accepted) by evidence, for tests and reports."""
        return {what: (tried, accepted) for what, (tried, accepted) in self._counts.items()}
