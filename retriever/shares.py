"""Shares: how many codes every 16th suffix has in common with the 16th after it; wide matches then need few suffixes read.

They are longest common prefixes as Manber and Myers (SIAM J. Comput. 1993) keep them, but of suffixes 16 ranks apart; the
least of 64 at a time stands beside them. What any two of these suffixes share is the least between them.

They are a function of the segment's arrays and are made when it is opened, as signposts are, so no file, digest or release
depends on them, and an answer does not either. They cost 1/16 of a byte a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever import kernel_shares, kernel_table

# A smaller segment has hardly any match so wide.
LEAST_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """fine: uint8 [(N - 1) // 16], what the suffixes at ranks 16 m and 16 (m + 1) share, 255 for that and more.

    coarse: uint8 [fine // 64], the least of each 64 of them.
    """

    fine: NDArray[np.uint8]
    coarse: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.fine.nbytes + self.coarse.nbytes


def shares_of(
    codes: NDArray[np.generic],
    offsets_low: NDArray[np.uint32],
    offsets_high: NDArray[np.uint8],
    *,
    least_tokens: int = LEAST_TOKENS,
) -> Shares | None:
    """The shares of a segment's arrays (see `segment.Segment`), None below least_tokens."""
    if offsets_low.shape[0] < max(2, least_tokens):
        return None
    table = np.zeros((1, kernel_table.COLUMNS), np.int64)
    kernel_table.put_arrays(table[0], codes, offsets_low, offsets_high)
    return shares_over(kernel_shares.fine_shares(table))


def shares_over(fine: NDArray[np.uint8]) -> Shares:
    """The shares whose fine ones these are."""
    coarse = fine[: fine.shape[0] >> kernel_shares.COARSER_BITS << kernel_shares.COARSER_BITS]
    made = Shares(fine, coarse.reshape(-1, 1 << kernel_shares.COARSER_BITS).min(axis=1))
    made.fine.flags.writeable = made.coarse.flags.writeable = False
    return made
