"""Compiled making and finding of marks (`marks.py`): where the intervals of frequent nodes begin and end."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np
from numba import carray

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_table import (
    CODES,
    ENTRIES,
    FURTHER_MARKS,
    MARKED,
    MARKS,
    MARKS_SHARE,
    WIDTH,
    compiled,
    pointer,
    shared_from,
    suffix_start,
)  # fmt: skip

# Codes of a suffix that marks know of: nodes deeper than that, match included, have none.
DEEPEST = 40
# The shortest run that is marked at all, and that of the further marks.
LEAST_RUN, FURTHER_RUN = 64, 512
# Half of the shortest run: one that reaches into a block of so many ranks covers the one before or the one behind.
BLOCK = LEAST_RUN // 2
# Blocks whose memory accesses overlap.
TOGETHER = 64


@compiled
def neighbours_share(table):
    """Codes that the suffix at each rank of the only segment shares with the one before: uint8 [N + 1], 0 at both ends.

    Only as exactly as runs of LEAST_RUN ranks can tell: where both blocks beside a block share no more than it does, each of
    its ranks has the block's least, and elsewhere none has more than the larger of the two.
    """
    entries, base, width = table[0, ENTRIES], table[0, CODES], table[0, WIDTH]
    blocks = (entries - 1) // BLOCK
    share = np.zeros(entries + 1, np.uint8)
    # What all of the ranks up to the next block's first share with the block's first.
    whole = np.zeros(blocks + 2, np.uint8)
    starts = np.empty(max(TOGETHER, BLOCK) + 1, np.int64)
    for first in range(0, blocks, TOGETHER):
        number = min(TOGETHER, blocks - first)
        for j in range(number + 1):
            fetch_rank(table, 0, (first + j) * BLOCK)
        for j in range(number + 1):
            starts[j] = suffix_start(table, 0, (first + j) * BLOCK)
            fetch_place(base, width, starts[j])
        for j in range(number):
            whole[first + j] = shared_from(table, 0, starts[j], starts[j + 1], np.int64(0), np.int64(DEEPEST))
    for block in range(blocks + 1):
        begin = block * BLOCK
        end = min(begin + BLOCK, entries - 1)
        before = np.int64(whole[block - 1]) if block > 0 else np.int64(0)
        most = max(before, np.int64(whole[block + 1]))
        if block < blocks and whole[block] >= most:
            share[begin + 1 : end + 1] = whole[block]
            continue
        # The last block is cut: what it shares is not known.
        most = most if block < blocks else np.int64(DEEPEST)
        for j in range(begin, end + 1):
            starts[j - begin] = suffix_start(table, 0, j)
            fetch_place(base, width, starts[j - begin])
        for j in range(begin, end):
            share[j + 1] = shared_from(table, 0, starts[j - begin], starts[j - begin + 1], np.int64(0), most)
    return share


@compiled
def marks_of(share, least):
    """(ranks uint32 [M], shares uint8 [M, 2]) of the marks for runs of `least` ranks or more, the first at rank 0.

    shares: with the suffix before; the least that neighbours share between this mark and the next.
    """
    entries = share.shape[0] - 1
    kept = np.zeros(entries + 1, np.uint8)
    # Ranks not yet followed by one that shares as little or less, in rising order of what they share.
    waiting = np.empty(DEEPEST + 2, np.int64)
    waits = 0
    for rank in range(entries + 1):
        # A run ends at the first rank that shares less than its codes: both it and its beginning are marked.
        while waits > 0 and share[waiting[waits - 1]] > share[rank]:
            waits -= 1
            if rank - waiting[waits] >= least:
                kept[waiting[waits]] = 1
        if waits > 0:
            if rank - waiting[waits - 1] >= least:
                kept[rank] = 1
            if share[waiting[waits - 1]] == share[rank]:
                waits -= 1
                if rank - waiting[waits] >= least:
                    kept[waiting[waits]] = 1
        waiting[waits] = rank
        waits += 1
    kept[0], kept[entries] = 1, 0
    number = 0
    for rank in range(entries):
        number += kept[rank]
    ranks, shares = np.empty(number, np.uint32), np.empty((number, 2), np.uint8)
    at, within = -1, np.uint8(255)
    for rank in range(entries):
        if kept[rank]:
            if at >= 0:
                shares[at, 1] = within
            at += 1
            ranks[at], shares[at, 0] = rank, share[rank]
            within = np.uint8(255)
        else:
            within = min(within, share[rank])
    shares[at, 1] = within
    return ranks, shares


@compiled
def marked(table, low, high, length, most, further):
    """The samples (ranks, shared) that the only segment's marks make in the interval [low, high) of a match of `length`.

    Each run between marks by its first and last rank.
    """
    columns = FURTHER_MARKS - MARKS if further else 0
    number = table[0, MARKED + columns]
    at_rank = carray(pointer(table[0, MARKS + columns]), (number,), np.uint32)
    shares = carray(pointer(table[0, MARKS_SHARE + columns]), (number, 2), np.uint8)
    left, right = np.int64(0), number
    while left < right:
        middle = (left + right) >> 1
        if at_rank[middle] < low:
            left = middle + 1
        else:
            right = middle
    # Where the match ends documents, the interval begins behind these; a frequent node that began there would be marked.
    begins = left < number and at_rank[left] == low
    left = left if begins else left - 1
    end = left + 1
    while end < number and at_rank[end] < high:
        end += 1
    ranks, shared = np.empty(2 * (end - left), np.int64), np.empty(2 * (end - left), np.int64)
    at = 0
    for i in range(left, end):
        ranks[at] = at_rank[i] if i > left else low
        if i > left:
            shared[at - 1] = min(most, np.int64(shares[i, 0]) - length)
        last = (np.int64(at_rank[i + 1]) if i + 1 < end else high) - 1
        if last > ranks[at]:
            shared[at] = min(most, np.int64(shares[i, 1]) - length) if i > left or begins else 0
            at += 1
            ranks[at] = last
        at += 1
    return ranks[:at], shared[:at]
