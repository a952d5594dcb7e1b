"""The proposer's side of each pair: how the children of a node are drawn from a law, and with which coins.

How many children a node gets is fixed before any is drawn (docs/decisions/0004-merging.md). One coin per child: purpose
DRAFT, numbered by the child's index in its proposal, which follows from the planned shape alone.

| relation | function | verifier |
|---|---|---|
| independent | `draw_independent` | rejection, block, spectr, specinfer |
| without_replacement | `draw_without_replacement` | sequoia, traversal |
| shared_noise | `draw_shared_noise` | gumbel_coupled, membership |
| beam | `extend_beam` | membership, greedy, typical: a beam's tokens are no samples of q |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from contracts.draft_law import DraftLaw
from contracts.errors import InvalidArgument
from contracts.randomness import Purpose, bits64_scalar, coin_key, gumbel, sample_key

_SPACE = 1 << 64


class DrawCoins(Protocol):
    """The only way drawing code touches chance. Production coins and exhaustive enumeration both implement it."""

    def below(self, weights: npt.NDArray[np.int64], draw: int) -> int:
        """An index drawn in proportion to positive integer `weights` [S] (sum at most 2^32), by the coin `draw`."""
        ...


class DraftCoins:
    """Coins of one source in one round, keyed like every coin (contracts/randomness.py)."""

    def __init__(self, seed: int, frontier: int, source: str) -> None:
        self._seed = seed
        self._frontier = frontier
        self._source = source

    def below(self, weights: npt.NDArray[np.int64], draw: int) -> int:
        """Exact for every total: a 64-bit element is used modulo the total unless it lies in the last, partial period."""
        bounds = np.cumsum(weights)
        total = int(bounds[-1])
        key = coin_key(self._seed, self._frontier, self._source, Purpose.DRAFT, draw)
        limit = _SPACE - _SPACE % total
        index = 0
        while (bits := bits64_scalar(key, index)) >= limit:
            index += 1
        return int(np.searchsorted(bounds, bits % total, side="right"))


def draw_independent(law: DraftLaw, count: int, coins: DrawCoins, *, first_draw: int) -> tuple[int, ...]:
    """`count` draws from `law`, repeats possible; child j uses coin `first_draw + j`."""
    return tuple(int(law.token_ids[coins.below(law.weights, first_draw + j)]) for j in range(count))


def draw_without_replacement(
    law: DraftLaw, count: int, coins: DrawCoins, *, first_draw: int, vocab_size: int
) -> tuple[int, ...]:
    """`count` different tokens: each from `law` without the earlier ones, and uniform over the untried tokens of the
    vocabulary once the law is exhausted (Sequoia, arXiv 2402.12374, algorithm 2). Raises InvalidArgument where the
    vocabulary is smaller than `count`.
    """
    if count > vocab_size:
        raise InvalidArgument("count", f"{count} different tokens of a vocabulary of {vocab_size}")
    ids, weights = law.token_ids.copy(), law.weights.copy()
    drawn: list[int] = []
    for j in range(count):
        if len(ids) == 0:
            ids = np.setdiff1d(np.arange(vocab_size), np.array(drawn))
            weights = np.ones(len(ids), dtype=np.int64)
        i = coins.below(weights, first_draw + j)
        drawn.append(int(ids[i]))
        ids, weights = np.delete(ids, i), np.delete(weights, i)
    return tuple(drawn)


def draw_shared_noise(
    token_ids: npt.ArrayLike, log_probs: npt.ArrayLike, count: int, *, seed: int, position: int
) -> tuple[int, ...]:
    """The `count` tokens with the largest log q + noise, best first, by the target-sampling noise of `position`.

    token_ids: int [K]; log_probs: float [K], any constant added. `position`: the absolute position of the children.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    noisy = np.asarray(log_probs, dtype=np.float64) + gumbel(sample_key(seed, position), ids)
    return tuple(ids[np.lexsort((ids, -noisy))[:count]].tolist())


def extend_beam(
    scores: Sequence[float], candidates: Sequence[Mapping[int, float]], width: int
) -> tuple[tuple[int, int, float], ...]:
    """One step of a beam: the `width` best (beam index, token, score) by score plus log-probability, ties to the lower
    beam index and token. candidates[b]: token id to log q after beam b.
    """
    grown = [
        (index, token, score + log_q)
        for index, (score, options) in enumerate(zip(scores, candidates, strict=True))
        for token, log_q in options.items()
    ]
    return tuple(sorted(grown, key=lambda item: (-item[2], item[0], item[1]))[:width])
