"""How often candidates hold, by what is known of them beforehand.

What is known: the source and how deep the candidate stands; of a drafter that ranks by a law of its own the probability it
gave (EAGLE-2, arXiv 2406.16858, section 3: such probabilities are close to acceptance rates, and what is off is counted
here); of others how long a suffix they matched and how often this continuation followed that one, where they count. A
candidate is *tried* when its parent was accepted: then it is accepted or not.
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

# In place of a match's class: the share is the drafter's own probability, which tells far more than that there is one.
_OWN_LAW = -1
_OWN_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
_PRIOR_BY_OWN_SHARE = (0.03, 0.07, 0.13, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)


def evidence(source: str, match_length: int, share: float, depth: int) -> Evidence:
    """Classes of match length (0, 1, 2, 3-4, 5-8, longer), of the share of what was seen (_SHARES), and depths to 4."""
    match = match_length if match_length < 3 else 3 if match_length < 5 else 4 if match_length < 9 else 5
    return source, match, bisect_right(_SHARES, share), min(depth, _DEEPEST)


def own_evidence(source: str, probability: float, depth: int) -> Evidence:
    """Of a drafter that ranks by a law of its own: classes of its probability (_OWN_SHARES), and depths to 4."""
    return source, _OWN_LAW, bisect_right(_OWN_SHARES, probability), min(depth, _DEEPEST)


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
            prior, weight = _prior(what), _PRIOR_WEIGHT
        return (accepted + prior * weight) / (tried + weight)

    def snapshot(self) -> Mapping[Evidence, tuple[float, float]]:
        """(tried, accepted) by evidence, for tests and reports."""
        return {what: (tried, accepted) for what, (tried, accepted) in self._counts.items()}


def _prior(what: Evidence) -> float:
    _, match, share, _ = what
    return _PRIOR_BY_OWN_SHARE[share] if match == _OWN_LAW else _PRIOR_BY_MATCH[match] * _PRIOR_BY_SHARE[share]
