"""Signposts: the first codes of every 128th suffix, side by side, so that a search's first steps stay in one small array.

They are a function of the segment's arrays and are made when it is opened, so no file, digest or release depends on them,
and an answer does not either. At two bytes a code they cost 8 * 2 / 128 = 0.125 bytes a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SPACING_BITS = 7
DEPTH = 8
# A smaller segment fits the processor's caches as it is.
LEAST_TOKENS = 1 << 15
_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Signposts:
    """codes: the segment's dtype [M, depth]; row m starts the suffix of rank m << spacing_bits; 0 beyond the last code."""

    codes: NDArray[np.generic]
    spacing_bits: int


def signposts_of(
    codes: NDArray[np.generic],
    offsets_low: NDArray[np.uint32],
    offsets_high: NDArray[np.uint8],
    *,
    spacing_bits: int = SPACING_BITS,
    depth: int = DEPTH,
    least_tokens: int = LEAST_TOKENS,
) -> Signposts | None:
    """The signposts of a segment's arrays (see `segment.Segment`), None below least_tokens."""
    if offsets_low.shape[0] < max(1, least_tokens):
        return None
    spacing = 1 << spacing_bits
    low, high = offsets_low[::spacing], offsets_high[::spacing]
    out = np.zeros((low.shape[0], depth), codes.dtype)
    for at in range(0, low.shape[0], _AT_ONCE):
        starts = low[at : at + _AT_ONCE].astype(np.int64)
        if high.shape[0]:
            starts |= high[at : at + _AT_ONCE].astype(np.int64) << 32
        places = starts[:, None] + np.arange(depth)
        within = places < codes.shape[0]
        out[at : at + _AT_ONCE] = np.where(within, codes[np.where(within, places, 0)], 0)
    out.flags.writeable = False
    return Signposts(out, spacing_bits)
