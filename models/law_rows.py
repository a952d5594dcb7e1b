"""One next-token law as an immutable value, in two forms that give the same results.

`SparseLaw` lives on the host as (ids, probabilities): the reference, and what truncation leaves. `DenseLaw` covers the
whole vocabulary and stays on the device; only scalars and the entries asked for leave it. Both hold float64
probabilities that sum to 1 up to rounding. What a verifier does to a law is one operation: take mass away from some
tokens and renormalise what is left (`minus`).
"""

from __future__ import annotations

import math
from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.randomness import Chooser, CoinChooser, KeyedChooser, Purpose, gumbel
from models.law_noise import HEAD, LARGEST_HEAD, MARGIN, gumbel_top
from models.law_scores import Scores, scores_of
from models.law_weights import LogitWeights, ProbabilityWeights, Weights, log

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# A mass found by subtraction from 1 keeps twelve digits down to this.
SUBTRACTABLE = 1e-3
_NO_IDS: Ints = np.zeros(0, dtype=np.int64)
_NO_VALUES: Floats = np.zeros(0)


class Law(Protocol):
    """Operations on a law over `vocab_size` tokens. Probabilities are float64; token arrays int64."""

    vocab_size: int

    def at(self, tokens: Ints) -> Floats:
        """Probabilities of `tokens` [K], on the host."""
        ...

    def of(self, token: int) -> float:
        """Probability of one token."""
        ...

    def minus(self, tokens: Ints, amounts: Floats) -> tuple[float, Law]:
        """[p - amounts]_+ : its mass, and the law it normalises to (this very law where the mass is 0)."""
        ...

    def minus_elsewhere(self, amount: float, spared: Ints) -> tuple[float, Law]:
        """`minus` of one amount at every token but `spared`."""
        ...

    def entropy(self) -> float:
        """-sum p log p, nats."""
        ...

    def dense(self) -> Floats:
        """float64 [V] on the host: for references, enumeration and small vocabularies."""
        ...

    def top(self, count: int) -> tuple[Ints, Floats]:
        """The `count` likeliest tokens of positive probability, ties to the lower id, and their probabilities."""
        ...

    def noisy_argmax(self, key: int) -> int:
        """Gumbel-max with the noise of `key`."""
        ...

    def noisy_top(self, key: int, count: int) -> Ints:
        """Gumbel top-k with the noise of `key`, best first."""
        ...


def _keyed(chooser: Chooser) -> TypeGuard[KeyedChooser]:
    # The usual class first: looking up a protocol's members takes longer than the coin.
    return isinstance(chooser, (CoinChooser, KeyedChooser))


def draw_from(law: Law, chooser: Chooser, purpose: Purpose, source: str, draw: int) -> int:
    """A sample by the coin (purpose, source, draw). Keyed choosers sample where the law lives."""
    if _keyed(chooser):
        return law.noisy_argmax(chooser.coin_key(purpose, source, draw))
    return chooser.categorical(law.dense(), purpose, source, draw)


def sample_at(law: Law, chooser: Chooser, position: int) -> int:
    """A sample by the target-sampling noise of the absolute `position`."""
    if _keyed(chooser):
        return law.noisy_argmax(chooser.sample_key(position))
    with np.errstate(divide="ignore"):
        return chooser.gumbel_argmax(np.log(law.dense()), position)


def draft_law_of(law: Law, support: int) -> DraftLaw:
    """The law truncated to its `support` likeliest tokens, as the integer weights a proposer draws from."""
    return law_from_probabilities(*law.top(support), support=support)


class SparseLaw:
    """ids int64 [S] ascending, probabilities float64 [S] > 0."""

    def __init__(self, ids: Ints, probabilities: Floats, vocab_size: int) -> None:
        self.ids = ids
        self.probabilities = probabilities
        self.vocab_size = vocab_size

    def at(self, tokens: Ints) -> Floats:
        i = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        return np.where(self.ids[i] == tokens, self.probabilities[i], 0.0)

    def of(self, token: int) -> float:
        i = int(self.ids.searchsorted(token))
        return float(self.probabilities[i]) if i < len(self.ids) and self.ids[i] == token else 0.0

    def _normalised(self, left: Floats) -> tuple[float, Law]:
        mass = float(left.sum())
        if mass <= 0.0:
            return 0.0, self
        keep = left > 0.0
        return mass, SparseLaw(self.ids[keep], left[keep] / mass, self.vocab_size)

    def minus(self, tokens: Ints, amounts: Floats) -> tuple[float, Law]:
        i = np.minimum(np.searchsorted(self.ids, tokens), len(self.ids) - 1)
        here = self.ids[i] == tokens
        left = self.probabilities.copy()
        left[i[here]] = np.maximum(left[i[here]] - amounts[here], 0.0)
        return self._normalised(left)

    def minus_elsewhere(self, amount: float, spared: Ints) -> tuple[float, Law]:
        hit = ~np.isin(self.ids, spared)
        return self._normalised(np.where(hit, np.maximum(self.probabilities - amount, 0.0), self.probabilities))

    def entropy(self) -> float:
        return float(-(self.probabilities * np.log(self.probabilities)).sum())

    def dense(self) -> Floats:
        out = np.zeros(self.vocab_size)
        out[self.ids] = self.probabilities
        return out

    def top(self, count: int) -> tuple[Ints, Floats]:
        order = np.lexsort((self.ids, -self.probabilities))[:count]
        return self.ids[order], self.probabilities[order]

    def _noisy(self, key: int) -> Floats:
        return np.asarray(np.log(self.probabilities) + gumbel(key, self.ids))

    def noisy_argmax(self, key: int) -> int:
        return int(self.ids[int(np.argmax(self._noisy(key)))])

    def noisy_top(self, key: int, count: int) -> Ints:
        return self.ids[np.lexsort((self.ids, -self._noisy(key)))[:count]]


def _among(tokens: Ints, ascending: Ints) -> npt.NDArray[np.bool_]:
    """Which of `tokens` are in `ascending`, which is not empty. (np.isin costs ten times as much.)"""
    return np.asarray(ascending[np.minimum(ascending.searchsorted(tokens), len(ascending) - 1)] == tokens)


class DenseLaw:
    """A law over the whole vocabulary: `weights` but for a few tokens, over their common mass. Immutable.

    changed, values: tokens int64 [C] ascending whose weight is not theirs in `weights` but total * values, float64 [C].
    mass: the sum of p after these changes, p being weights / total. Only single tokens, the entropy and sampling are cheap;
    the whole row is made where it is asked for.
    """

    def __init__(
        self, weights: Weights, changed: Ints = _NO_IDS, values: Floats = _NO_VALUES, mass: float = 1.0
    ) -> None:
        self._weights = weights
        self._changed = changed
        self._values = values
        self._mass = mass
        self.vocab_size = weights.scores.size

    @classmethod
    def of_logits(cls, scores: Scores, temperature: float = 1.0) -> DenseLaw:
        """softmax(scores / temperature); scores: float32 without NaN and +inf, with a finite top."""
        return cls(LogitWeights(scores, temperature))

    @classmethod
    def of_probabilities(cls, scores: Scores) -> DenseLaw:
        """The law of float64 scores >= 0 of sum 1."""
        return cls(ProbabilityWeights(scores))

    def _overridden(self, tokens: Ints, found: Floats, replacement: Floats) -> Floats:
        if len(self._changed):
            i = np.minimum(self._changed.searchsorted(tokens), len(self._changed) - 1)
            found = np.where(self._changed[i] == tokens, replacement[i], found)
        return found

    def at(self, tokens: Ints) -> Floats:
        p = self._overridden(tokens, self._weights.at(tokens) / self._weights.total, self._values)
        return np.asarray(p / self._mass)

    def of(self, token: int) -> float:
        if len(self._changed):
            return float(self.at(np.array([token]))[0])
        return self._weights.of(token) / self._weights.total / self._mass

    def _whole(self) -> Scores:
        """float64 scores of all probabilities, a copy."""
        whole = self._weights.over(self._weights.total * self._mass)
        return whole.put(self._changed, self._values / self._mass) if len(self._changed) else whole

    def _normalised(self, left: Scores) -> tuple[float, Law]:
        mass = left.total()
        if mass <= 0.0:
            return 0.0, self
        return mass, DenseLaw.of_probabilities(left.divided(mass))

    def minus(self, tokens: Ints, amounts: Floats) -> tuple[float, Law]:
        here = self.at(tokens)
        left = np.maximum(here - amounts, 0.0)
        mass = 1.0 - float(here.sum()) + float(left.sum())
        if mass < SUBTRACTABLE:
            return self._normalised(self._whole().put(tokens, left))
        # Most residuals are only weighed and never read (leaf-to-root walks make one per rejected node): no row is made.
        changed, values = tokens, left * self._mass
        if len(self._changed):
            earlier = ~_among(self._changed, np.sort(tokens))
            changed = np.concatenate([self._changed[earlier], tokens])
            values = np.concatenate([self._values[earlier], values])
            order = changed.argsort()
            changed, values = changed[order], values[order]
        return mass, DenseLaw(self._weights, changed, values, self._mass * mass)

    def minus_elsewhere(self, amount: float, spared: Ints) -> tuple[float, Law]:
        return self._normalised(self._whole().lowered(amount).put(spared, self.at(spared)))

    def entropy(self) -> float:
        return self._whole().entropy() if len(self._changed) else self._weights.entropy()

    def dense(self) -> Floats:
        return self._whole().host()

    def _likeliest(self, count: int) -> tuple[Ints, Floats]:
        """Ids of at least `count` tokens (all, if there are fewer) above all others, and scores of those not changed."""
        ids, scores = self._weights.scores.largest(min(count + len(self._changed), self.vocab_size))
        if not len(self._changed):
            return ids, scores
        kept = ~_among(ids, self._changed)
        return ids[kept], scores[kept]

    def top(self, count: int) -> tuple[Ints, Floats]:
        ids = np.concatenate([self._likeliest(count)[0], self._changed])
        p = self.at(ids)
        order = np.lexsort((ids, -p))[:count]
        order = order[p[order] > 0.0]
        return ids[order], p[order]

    def logs(self, ids: Ints) -> Floats:
        """log of the tokens' unnormalised probabilities: for gumbel_top."""
        if not len(self._changed):
            return self._weights.logs(ids)
        return self._overridden(ids, self._weights.logs(ids), log(self._values) + math.log(self._weights.total))

    def head(self, count: int) -> tuple[Ints, float]:
        """At least `count` tokens, every one that is not changed above the bound on `logs` of the others: for gumbel_top."""
        ids, bound = self._weights.near_largest(MARGIN)
        if len(self._changed):
            ids = ids[~_among(ids, self._changed)]
        if not count <= len(ids) <= LARGEST_HEAD:
            ids, scores = self._likeliest(max(HEAD, count))
            bound = float(self._weights.logs_of(scores[-1:])[0]) if len(ids) else -math.inf
        return np.concatenate([ids, self._changed]), bound

    def noisy_enough(self, key: int, threshold: int) -> Ints:
        """See `Scores.noisy_enough`."""
        return self._weights.scores.noisy_enough(key, threshold)

    def noisy_argmax(self, key: int) -> int:
        return int(gumbel_top(self, key, 1)[0])

    def noisy_top(self, key: int, count: int) -> Ints:
        return gumbel_top(self, key, count)


def law_from_vector(probabilities: Floats, *, device: str | None = None) -> Law:
    """A law from float64 [V] (sum 1 up to rounding): on the host, or dense on `device`."""
    if device is not None:
        return DenseLaw.of_probabilities(
            scores_of(torch.from_numpy(np.array(probabilities, dtype=np.float64)).to(device))
        )
    ids = np.flatnonzero(probabilities > 0.0)
    return SparseLaw(ids, np.asarray(probabilities, dtype=np.float64)[ids], len(probabilities))
