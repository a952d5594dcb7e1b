"""Compiled making and reading of shares (`shares.py`): what suffixes at ranks that are multiples of 16 have in common."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np
from numba import carray

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_table import (
    COARSE_SHARES,
    CODES,
    ENTRIES,
    FINE_SHARES,
    WIDTH,
    compiled,
    pointer,
    shared_from,
    suffix_start,
)

# Ranks from one suffix to the next, and of those the coarse shares span so many.
BLOCK_BITS, COARSER_BITS = 4, 6
COARSE_BITS = BLOCK_BITS + COARSER_BITS
# No share tells of more codes.
MOST_SHARED = 255
# Suffixes whose memory accesses overlap.
TOGETHER = 64


@compiled
def fine_shares(table):
    """`Shares.fine` of the table's only segment."""
    base, width = table[0, CODES], table[0, WIDTH]
    blocks = (table[0, ENTRIES] - 1) >> BLOCK_BITS
    shares = np.empty(blocks, np.uint8)
    starts = np.empty(TOGETHER + 1, np.int64)
    for first in range(0, blocks, TOGETHER):
        number = min(TOGETHER, blocks - first)
        for j in range(number + 1):
            fetch_rank(table, 0, (first + j) << BLOCK_BITS)
        for j in range(number + 1):
            starts[j] = suffix_start(table, 0, (first + j) << BLOCK_BITS)
            fetch_place(base, width, starts[j])
        for j in range(number):
            shares[first + j] = shared_from(table, 0, starts[j], starts[j + 1], np.int64(0), np.int64(MOST_SHARED))
    return shares


@compiled
def knows(table, codes):
    """Whether the only segment has shares that tell of so many codes."""
    return table[0, FINE_SHARES] != 0 and codes <= MOST_SHARED


@compiled
def least_share(table, low, high):
    """Codes that the only segment's suffixes at two ranks, multiples of 16, the first below the second, share."""
    least = np.int64(MOST_SHARED)
    begin, end = low >> BLOCK_BITS, high >> BLOCK_BITS
    if (low | high) & ((1 << COARSE_BITS) - 1) == 0:
        begin, end = low >> COARSE_BITS, high >> COARSE_BITS
        shares = carray(pointer(table[0, COARSE_SHARES]), (end,), np.uint8)
    else:
        shares = carray(pointer(table[0, FINE_SHARES]), (end,), np.uint8)
    for i in range(begin, end):
        least = min(least, np.int64(shares[i]))
    return least
