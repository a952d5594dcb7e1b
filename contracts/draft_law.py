"""Sparse draft laws: the exact distribution that a proposer drew from, bit for bit, on a truncated support.

A law is a list of (token id, integer weight) whose weights sum to exactly 2^32 (docs/decisions/0003-draft-laws.md). The
proposer *defines* its law by these integers and draws from them by integer comparison, so what travels is the true law
and "not normalised" is a sharp test. Scores and frequencies travel elsewhere and are never read as probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument

TOTAL = 1 << 32
MAX_SUPPORT = 4096


@dataclass(frozen=True, eq=False)
class DraftLaw:
    """token_ids int64 [S], strictly ascending; weights int64 [S], each in [1, 2^32], summing to 2^32."""

    token_ids: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, DraftLaw)
            and np.array_equal(self.token_ids, other.token_ids)
            and np.array_equal(self.weights, other.weights)
        )

    def __hash__(self) -> int:
        return hash((self.token_ids.tobytes(), self.weights.tobytes()))

    def weight(self, token_id: int) -> int:
        """The token's integer weight; 0 off the support."""
        i = int(np.searchsorted(self.token_ids, token_id))
        if i < len(self.token_ids) and int(self.token_ids[i]) == token_id:
            return int(self.weights[i])
        return 0

    def probability(self, token_id: int) -> float:
        """weight / 2^32, exact in float64."""
        return self.weight(token_id) / TOTAL

    def dense(self, vocab_size: int) -> npt.NDArray[np.float64]:
        """float64 [vocab_size] probabilities."""
        out = np.zeros(vocab_size, dtype=np.float64)
        out[self.token_ids] = self.weights / TOTAL
        return out

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(token id, weight) in ascending token order."""
        return zip(self.token_ids.tolist(), self.weights.tolist(), strict=True)

    def draw(self, bits32: int) -> int:
        """The token whose cumulative weight interval holds `bits32`, an integer in [0, 2^32)."""
        return int(self.token_ids[int(np.searchsorted(np.cumsum(self.weights), bits32, side="right"))])


def law_from_probabilities(token_ids: npt.ArrayLike, probabilities: npt.ArrayLike, *, support: int = 64) -> DraftLaw:
    """Defines a law from the `support` likeliest of the given tokens, by largest remainders; ties to the lower token id.

    token_ids: int [K], unique. probabilities: float [K], non-negative, any positive sum. Tokens whose share rounds to
    zero leave the support. Raises InvalidArgument on NaN, infinity, negative values or an all-zero vector.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    p = np.asarray(probabilities, dtype=np.float64)
    if ids.shape != p.shape or ids.ndim != 1 or len(ids) == 0:
        raise InvalidArgument("law", f"token_ids {ids.shape} and probabilities {p.shape} must be equal, 1-D, not empty")
    if not np.all(np.isfinite(p)) or np.any(p < 0.0) or p.sum() <= 0.0:
        raise InvalidArgument("law.probabilities", "must be finite, non-negative and not all zero")
    if not 1 <= support <= MAX_SUPPORT:
        raise InvalidArgument("law.support", f"{support} is outside [1, {MAX_SUPPORT}]")
    top = np.lexsort((ids, -p))[:support]
    top = top[p[top] > 0.0]
    ids, p = ids[top], p[top]
    shares = p / p.sum() * TOTAL
    weights = np.floor(shares).astype(np.int64)
    missing = TOTAL - int(weights.sum())
    by_remainder = np.lexsort((ids, -(shares - weights)))
    weights[by_remainder[np.arange(missing) % len(ids)]] += 1 if missing else 0
    keep = weights > 0
    ids, weights = ids[keep], weights[keep]
    weights[int(np.argmax(weights))] += TOTAL - int(weights.sum())
    order = np.argsort(ids)
    return DraftLaw(ids[order], weights[order])


def check_law(law: DraftLaw, *, vocab_size: int, field: str = "law") -> None:
    """Raises InvalidArgument naming `field` unless the law is a law over [0, vocab_size)."""
    ids, weights = law.token_ids, law.weights
    if ids.ndim != 1 or ids.shape != weights.shape or not 1 <= len(ids) <= MAX_SUPPORT:
        raise InvalidArgument(
            field, f"support of {ids.size} tokens with {weights.size} weights; 1 to {MAX_SUPPORT} allowed"
        )
    if int(ids[0]) < 0 or int(ids[-1]) >= vocab_size or np.any(np.diff(ids) <= 0):
        raise InvalidArgument(f"{field}.token_ids", f"must be strictly ascending within [0, {vocab_size})")
    if np.any(weights < 1) or np.any(weights > TOTAL):
        raise InvalidArgument(f"{field}.weights", f"each must be within [1, {TOTAL}]")
    total = sum(weights.tolist())
    if total != TOTAL:
        raise InvalidArgument(f"{field}.weights", f"not normalised: they sum to {total}, not {TOTAL}")
