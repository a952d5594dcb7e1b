"""How often candidates hold, by what is known of them beforehand (budget/evidence.py).

A candidate is *tried* when all its ancestors came true: then it does or does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.budget.evidence import OWN_LAW, SHORTEST_MATCH, WHATEVER, Evidence, match_class

_SHARED_WEIGHT = 16.0
_PRIOR_WEIGHT = 16.0
_FORGET_AT = 512.0
# Guesses for the first dozens of trials: by the length of a match, and where occurrences are counted, by the share.
_PRIOR_BY_MATCH = (0.2, 0.3, 0.5, 0.75, 0.85, 0.95)
_PRIOR_BY_SHARE = (0.02, 0.05, 0.13, 0.25, 0.5)
_PRIOR_BY_OWN_SHARE = (0.03, 0.07, 0.13, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)


class Trials:
    """Counts of tried and accepted candidates by evidence, of one session on top of those of all sessions before."""

    def __init__(self, shared: Trials | None = None) -> None:
        self._shared = shared
        self._counts: dict[Evidence, list[float]] = {}
        self._added = 0
        # Rates when all sessions together had added so many trials, and those of them that differ in company alone: a trial
        # of one tells of all.
        self._rates: dict[Evidence, float] = {}
        self._alike: dict[tuple[object, ...], list[Evidence]] = {}
        self._as_of = 0
        self._stale: set[tuple[object, ...]] = set()

    def add(self, what: Evidence, *, accepted: bool) -> None:
        """One trial, here and in what is shared."""
        self._added += 1
        self._count(what, accepted)
        shared = self._shared
        if shared is not None:
            alone = self._as_of == shared._added
            shared.add(what, accepted=accepted)
            if alone:
                self._as_of = shared._added
                self._stale.add(what[:-1])
        elif what.company != WHATEVER:
            self._count(what.general, accepted)

    def rates(self) -> Mapping[Evidence, float]:
        """Of a session: what `rate` says now of the evidence that it was asked about before."""
        if self._shared is not None and self._as_of != self._shared._added:
            # Others have tried too.
            self._rates.clear()
            self._alike.clear()
            self._as_of = self._shared._added
        else:
            for kind in self._stale:
                for what in self._alike.get(kind, ()):
                    self._rates[what] = self._worked_out(what)
        self._stale.clear()
        return self._rates

    def rate(self, what: Evidence) -> float:
        """The expected share of accepted ones among the tried, within (0, 1).

        Beta means: of the session, with that of all sessions as the prior, which has that of the evidence whatever other
        sources offered, which has a guess.
        """
        rate = self._worked_out(what)
        if self._shared is not None and what not in self.rates():
            self._rates[what] = rate
            self._alike.setdefault(what[:-1], []).append(what)
        return rate

    def _worked_out(self, what: Evidence) -> float:
        tried, accepted = self._counts.get(what, (0.0, 0.0))
        if self._shared is not None:
            prior, weight = self._shared._worked_out(what), _SHARED_WEIGHT
        else:
            prior, weight = _guess(what) if what.company == WHATEVER else self._worked_out(what.general), _PRIOR_WEIGHT
        return (accepted + prior * weight) / (tried + weight)

    def of_source(self, source: str) -> tuple[float, float]:
        """(tried, accepted) of all of a source's candidates here."""
        counts = [counts for what, counts in self._counts.items() if what.source == source]
        return sum(tried for tried, _ in counts), sum(accepted for _, accepted in counts)

    def snapshot(self) -> Mapping[Evidence, tuple[float, float]]:
        """(tried, accepted) by evidence, for tests and reports."""
        return {what: (tried, accepted) for what, (tried, accepted) in self._counts.items()}

    def _count(self, what: Evidence, accepted: bool) -> None:
        counts = self._counts.get(what)
        if counts is None:
            counts = self._counts[what] = [0.0, 0.0]
        counts[0] += 1.0
        counts[1] += accepted
        if counts[0] >= _FORGET_AT:
            counts[0], counts[1] = counts[0] / 2.0, counts[1] / 2.0


def _guess(what: Evidence) -> float:
    if what.match == OWN_LAW:
        return _PRIOR_BY_OWN_SHARE[what.share]
    if what.share < len(_PRIOR_BY_SHARE):
        return _PRIOR_BY_SHARE[what.share]
    # Once its ancestors have come true, as much more of the text matches.
    return _PRIOR_BY_MATCH[match_class(SHORTEST_MATCH[what.match] + what.depth - 1)]
