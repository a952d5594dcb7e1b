"""Counter-based randomness: a coin is a pure function of its key, so batching, placement and retries change nothing.

A *key* is 64 bits hashed from a tuple that names the coin; a *stream* is SplitMix64 at random access (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, section 5): element i of key k is
``mix64(k + (i + 1) * GOLDEN)``. The arithmetic is modulo 2^64 and so gives the same bits in numpy and in torch int64.

Two kinds of key (docs/decisions/0002-randomness.md):

* `sample_key(seed, position)` drives Gumbel-max sampling of the target. It names an absolute position and nothing about
  the proposals, so the sampled text for a seed does not depend on what was proposed.
* `coin_key(seed, frontier, source, purpose, draw)` drives everything else (draft, accept, residual). It names the
  frontier at the round's *start*: keyed by position, a coin would be read again by a later round and verifiers that look
  at a whole block would be biased.
"""

from __future__ import annotations

import hashlib
import struct
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

GOLDEN = 0x9E3779B97F4A7C15
MASK64 = (1 << 64) - 1
MAX_SEED = (1 << 64) - 1


class Purpose(StrEnum):
    """What a coin decides. Streams of different purposes never meet."""

    DRAFT = "draft"
    ACCEPT = "accept"
    RESIDUAL = "residual"
    RESAMPLE = "resample"


def _key(domain: bytes, *parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8, person=domain.ljust(16, b"\0"))
    for part in parts:
        digest.update(struct.pack("<I", len(part)))
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value & MASK64)


def sample_key(seed: int, position: int) -> int:
    """Key of the target-sampling noise for the token at absolute `position` (0-based index in the sequence)."""
    return _key(b"dp.sample", _u64(seed), _u64(position))


def coin_key(seed: int, frontier: int, source: str, purpose: Purpose, draw: int) -> int:
    """Key of one coin.

    `frontier`: published length at the round's start. `source`: source id, or the verifier's own name for residual coins.
    `draw`: index of the coin within (round, source, purpose); callers number them in a documented, payload-independent way.
    """
    return _key(b"dp.coin", _u64(seed), _u64(frontier), source.encode(), purpose.value.encode(), _u64(draw))


def mix64(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The SplitMix64 finaliser, elementwise over uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits64(key: int, index: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """Elements `index` (integers >= 0) of the key's stream: uint64, same shape."""
    i = np.asarray(index).astype(np.uint64)
    with np.errstate(over="ignore"):
        return mix64(np.uint64(key) + (i + np.uint64(1)) * np.uint64(GOLDEN))


def bits64_scalar(key: int, index: int = 0) -> int:
    """One element of the key's stream as a Python int; equal to `bits64(key, index)`."""
    x = (key + (index + 1) * GOLDEN) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def uniform(key: int, index: int = 0) -> float:
    """One float64 in the open interval (0, 1): 52 random bits plus a half, so neither end can be reached by rounding."""
    return ((bits64_scalar(key, index) >> 12) + 0.5) * 2.0**-52


def uniforms(key: int, index: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`uniform` elementwise: float64, same shape as `index`."""
    return ((bits64(key, index) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def gumbel(key: int, token_ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise of the given token ids: float64, finite, within (-3.6, 36.8)."""
    return -np.log(-np.log(uniforms(key, token_ids)))


class Chooser(Protocol):
    """The only way selection code touches chance. Production coins and exhaustive enumeration both implement it."""

    def bernoulli(self, probability: float, purpose: Purpose, source: str, draw: int) -> bool:
        """True with the given probability; never True at 0, never False at 1."""
        ...

    def categorical(self, probabilities: npt.NDArray[np.float64], purpose: Purpose, source: str, draw: int) -> int:
        """An index drawn from `probabilities` float64 [V], sum 1; never an index of probability 0."""
        ...

    def gumbel_argmax(self, log_probs: npt.NDArray[np.float64], position: int) -> int:
        """argmax of log_probs [V] plus the target-sampling noise of `position`; a sample from exp(log_probs)."""
        ...


@runtime_checkable
class KeyedChooser(Chooser, Protocol):
    """A chooser whose coins are named by keys, so that a device can make the same noise itself."""

    def coin_key(self, purpose: Purpose, source: str, draw: int) -> int:
        """Key of the coin that `categorical` would use."""
        ...

    def sample_key(self, position: int) -> int:
        """Key of the noise that `gumbel_argmax` would use."""
        ...


class CoinChooser:
    """Coins of one round: keys from (seed, frontier at the round's start, source, purpose, draw)."""

    def __init__(self, seed: int, frontier: int) -> None:
        self._seed = seed
        self._frontier = frontier

    def coin_key(self, purpose: Purpose, source: str, draw: int) -> int:
        """Key of the coin (purpose, source, draw) of this round."""
        return coin_key(self._seed, self._frontier, source, purpose, draw)

    def sample_key(self, position: int) -> int:
        """Key of the target-sampling noise of `position`."""
        return sample_key(self._seed, position)

    def bernoulli(self, probability: float, purpose: Purpose, source: str, draw: int) -> bool:
        """Compares an open-interval uniform with `probability`, so 0 is never accepted and 1 always is."""
        return uniform(coin_key(self._seed, self._frontier, source, purpose, draw)) < probability

    def categorical(self, probabilities: npt.NDArray[np.float64], purpose: Purpose, source: str, draw: int) -> int:
        """Gumbel-max over the support: one rounding moves at most one near-tie, never the whole draw."""
        return _gumbel_argmax_probs(probabilities, coin_key(self._seed, self._frontier, source, purpose, draw))

    def gumbel_argmax(self, log_probs: npt.NDArray[np.float64], position: int) -> int:
        """Sample of exp(log_probs) with the position's own noise; -inf entries are never chosen."""
        support = np.flatnonzero(log_probs > -np.inf)
        noisy = log_probs[support] + gumbel(sample_key(self._seed, position), support)
        return int(support[int(np.argmax(noisy))])


def _gumbel_argmax_probs(probabilities: npt.NDArray[np.float64], key: int) -> int:
    support = np.flatnonzero(probabilities > 0.0)
    noisy = np.log(probabilities[support]) + gumbel(key, support)
    return int(support[int(np.argmax(noisy))])
