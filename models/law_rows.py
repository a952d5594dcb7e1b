"""One next-token law as an immutable value, in two forms that give the same results.

`SparseLaw` lives on the host as (ids, probabilities): the reference, and what truncation leaves. `DenseLaw` covers the
whole vocabulary and stays on the device; only scalars and the entries asked for leave it. Both hold float64
probabilities that sum to 1 up to rounding. What a verifier does to a law is one operation: take mass away from some
tokens and renormalise what is left (`minus`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.randomness import Chooser, CoinChooser, KeyedChooser, Purpose, gumbel
from models.law_kernels import exp_sums, normalised, values_at
from models.law_noise import MARGIN, gumbel_top

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# 1 - sum p keeps twelve digits down to this.
SUBTRACTABLE = 1e-3


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


def _log(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(values))


class DenseLaw:
    """Either `probabilities` float64 [V] on a device (or what makes them when first needed), or `logits` float32 [V] there.

    Logits are without NaN and +inf, `top` their finite maximum (found if not given). Their probabilities are made only
    where the whole row is needed: single tokens and the entropy take one sum over it.
    """

    def __init__(
        self,
        probabilities: Tensor | Callable[[], Tensor] | None = None,
        *,
        logits: Tensor | None = None,
        top: float | None = None,
        temperature: float = 1.0,
        vocab_size: int = 0,
    ) -> None:
        self._make = probabilities
        self._logits = logits
        self._temperature = temperature
        if logits is not None:
            self._top = float(logits.amax()) if top is None else top
            vocab_size = int(logits.shape[0])
        self.vocab_size = vocab_size or len(self.probabilities)

    @cached_property
    def _sums(self) -> tuple[float, float]:
        assert self._logits is not None
        return exp_sums(self._logits, self._top, self._temperature)

    @cached_property
    def probabilities(self) -> Tensor:
        """float64 [V] on the device."""
        if self._logits is not None:
            return normalised(self._logits, self._top, self._temperature, self._sums[0])
        assert self._make is not None
        return self._make if isinstance(self._make, Tensor) else self._make()

    def at(self, tokens: Ints) -> Floats:
        if self._logits is None:
            return values_at(self.probabilities, tokens)
        return np.asarray(np.exp((values_at(self._logits, tokens) - self._top) / self._temperature) / self._sums[0])

    def of(self, token: int) -> float:
        return float(self.at(np.array([token]))[0])

    def _index(self, tokens: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(tokens)).to(self.probabilities.device)

    def _with(self, tokens: Ints, values: Floats, mass: float) -> Tensor:
        """A new float64 [V]: this law's probabilities, `values` at `tokens`, all divided by `mass`."""
        if self._logits is None:
            out = self.probabilities / mass
        else:
            out = normalised(self._logits, self._top, self._temperature, self._sums[0] * mass)
        out[torch.from_numpy(np.ascontiguousarray(tokens)).to(out.device)] = torch.from_numpy(values / mass).to(
            out.device
        )
        return out

    def _normalised(self, left: Tensor) -> tuple[float, Law]:
        mass = float(left.sum())
        if mass <= 0.0:
            return 0.0, self
        return mass, DenseLaw(left.div_(mass))

    def minus(self, tokens: Ints, amounts: Floats) -> tuple[float, Law]:
        here = self.at(tokens)
        left = np.maximum(here - amounts, 0.0)
        untouched = 1.0 - float(here.sum())
        if untouched < SUBTRACTABLE:
            return self._normalised(self._with(tokens, left, 1.0))
        mass = untouched + float(left.sum())
        # Most residuals are only weighed and never read: leaf-to-root walks make one per rejected node.
        return mass, DenseLaw(lambda: self._with(tokens, left, mass), vocab_size=self.vocab_size)

    def minus_elsewhere(self, amount: float, spared: Ints) -> tuple[float, Law]:
        where = self._index(spared)
        left = (self.probabilities - amount).clamp_(min=0.0)
        left[where] = self.probabilities[where]
        return self._normalised(left)

    def entropy(self) -> float:
        if self._logits is None:
            return float(torch.special.entr(self.probabilities).sum())
        total, weighted = self._sums
        return math.log(total) - weighted / total

    def dense(self) -> Floats:
        return np.asarray(self.probabilities.cpu().numpy())

    def top(self, count: int) -> tuple[Ints, Floats]:
        p = self.probabilities
        values = torch.topk(p, min(count, self.vocab_size)).values
        # Every token tied with the last one comes along, so that the lower ids can win.
        ids = (p >= values[-1]).logical_and_(p > 0.0).nonzero().squeeze(1)
        host_ids, host = ids.cpu().numpy(), p[ids].cpu().numpy()
        order = np.lexsort((host_ids, -host))[:count]
        return host_ids[order], host[order]

    def noisy_argmax(self, key: int) -> int:
        return int(self.noisy_top(key, 1)[0])

    def noisy_top(self, key: int, count: int) -> Ints:
        if self._logits is None:
            floor = float(self.probabilities.amax()) * math.exp(-MARGIN)
            return gumbel_top(self.probabilities, key, count, _log, floor)
        temperature = self._temperature
        return gumbel_top(self._logits, key, count, lambda x: x / temperature, self._top - MARGIN * temperature)


def law_from_vector(probabilities: Floats, *, device: str | None = None) -> Law:
    """A law from float64 [V] (sum 1 up to rounding): on the host, or dense on `device`."""
    if device is not None:
        return DenseLaw(torch.from_numpy(np.array(probabilities, dtype=np.float64)).to(device))
    ids = np.flatnonzero(probabilities > 0.0)
    return SparseLaw(ids, np.asarray(probabilities, dtype=np.float64)[ids], len(probabilities))
