"""Gumbel-max over a row, exact and pruned: the noise of a vocabulary is hashed, and a handful of logarithms is taken.

`gumbel_top` returns what sorting all perturbed scores would, without taking two logarithms per token: the likeliest few
are perturbed first, and their scores bound from below the noise that any other token would need. That bound is an integer
threshold on the raw bits, which a handful of tokens pass.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from contracts.randomness import gumbel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HEAD = 64
LARGEST_HEAD = 2048
MARGIN = 6.0


class Perturbable(Protocol):
    """A law as this search sees it; logarithms of unnormalised probabilities, -inf for tokens that cannot be chosen."""

    vocab_size: int

    def head(self, count: int) -> tuple[Ints, float]:
        """At least `count` distinct tokens (all, if there are fewer), and an upper bound of `logs` of all others."""
        ...

    def logs(self, ids: Ints) -> Floats:
        """float64 [K]."""
        ...

    def noisy_enough(self, key: int, threshold: int) -> Ints:
        """Ids, int64 ascending, whose 52 random bits in the key's stream are at least `threshold`."""
        ...


def gumbel_top(law: Perturbable, key: int, count: int) -> Ints:
    """The `count` tokens with the largest log probability + noise of `key`, best first, ties to the lower id: int64.

    One token is a sample (Gumbel-max), several are a sample without replacement (Kool, van Hoof and Welling, "Stochastic
    beams and where to find them", ICML 2019). Fewer come back where fewer can be chosen. Only small vectors leave a device.
    """
    ids, bound = law.head(count)
    noisy = law.logs(ids) + gumbel(key, ids)
    if len(ids) < law.vocab_size and bound > -np.inf:
        # A token outside the head has log weight <= bound; to enter, its noise must lift it to the head's count-th best.
        needed = np.partition(noisy, len(noisy) - count)[len(noisy) - count] - bound
        threshold = max(int(np.exp(-np.exp(-needed)) * (1 - 1e-12) * 2.0**52) - 2, 0)
        # The head's own tokens are already in. (A set: np.isin costs more than all the rest here.)
        known = set(ids.tolist())
        hopeful = np.array(
            [token for token in law.noisy_enough(key, threshold).tolist() if token not in known], dtype=np.int64
        )
        ids, noisy = np.concatenate([ids, hopeful]), np.concatenate([noisy, law.logs(hopeful) + gumbel(key, hopeful)])
    order = np.lexsort((ids, -noisy))[:count]
    return ids[order[noisy[order] > -np.inf]]
