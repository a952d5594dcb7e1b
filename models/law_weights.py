"""Unnormalised probabilities of a row: what a law's arithmetic needs to know of logits and of probabilities alike."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from models.law_scores import Scores

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def log(values: Floats) -> Floats:
    """Natural logarithm, -inf at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))


class Weights(Protocol):
    """Weights w >= 0 of all tokens, float64, of sum `total`. Logarithms are natural."""

    scores: Scores

    @property
    def total(self) -> float: ...

    def at(self, ids: Ints) -> Floats:
        """Weights of `ids`."""
        ...

    def of(self, token: int) -> float:
        """Weight of one token."""
        ...

    def logs(self, ids: Ints) -> Floats:
        """log w of `ids`, -inf where w is 0."""
        ...

    def logs_of(self, scores: Floats) -> Floats:
        """log w of tokens with these scores."""
        ...

    def near_largest(self, nats: float) -> tuple[Ints, float]:
        """The tokens whose log w is at least the largest less `nats`, ascending, and a bound for all other tokens'."""
        ...

    def over(self, divisor: float) -> Scores:
        """w / divisor as float64 scores, a copy."""
        ...

    def entropy(self) -> float:
        """Of w / total, nats."""
        ...


class LogitWeights:
    """w = exp((logit - top) / temperature), the largest weight being 1; 0 below exp(SMALLEST) in `over` alone.

    scores: float32 logits without NaN and +inf, with a finite top.
    """

    def __init__(self, scores: Scores, temperature: float) -> None:
        self.scores = scores
        self._temperature = temperature

    @cached_property
    def _sums(self) -> tuple[float, float]:
        return self.scores.exp_sums(self._temperature)

    @property
    def total(self) -> float:
        return self._sums[0]

    def at(self, ids: Ints) -> Floats:
        return np.asarray(np.exp(self.logs(ids)))

    def of(self, token: int) -> float:
        return math.exp((self.scores.of(token) - self.scores.top) / self._temperature)

    def logs(self, ids: Ints) -> Floats:
        return self.logs_of(self.scores.at(ids))

    def logs_of(self, scores: Floats) -> Floats:
        return np.asarray((scores - self.scores.top) / self._temperature)

    def near_largest(self, nats: float) -> tuple[Ints, float]:
        floor = self.scores.top - nats * self._temperature
        return self.scores.at_least(floor), (floor - self.scores.top) / self._temperature

    def over(self, divisor: float) -> Scores:
        return self.scores.normalised(self._temperature, divisor)

    def entropy(self) -> float:
        total, weighted = self._sums
        return math.log(total) - weighted / total


class ProbabilityWeights:
    """w = p, float64 scores >= 0 of sum 1 up to rounding."""

    total = 1.0

    def __init__(self, scores: Scores) -> None:
        self.scores = scores

    def at(self, ids: Ints) -> Floats:
        return self.scores.at(ids)

    def of(self, token: int) -> float:
        return self.scores.of(token)

    def logs(self, ids: Ints) -> Floats:
        return log(self.scores.at(ids))

    def logs_of(self, scores: Floats) -> Floats:
        return log(scores)

    def near_largest(self, nats: float) -> tuple[Ints, float]:
        floor = self.scores.top * math.exp(-nats)
        return self.scores.at_least(floor), math.log(floor)

    def over(self, divisor: float) -> Scores:
        return self.scores.divided(divisor)

    def entropy(self) -> float:
        return self.scores.entropy()
