"""Compiled search for the ends of many runs at once: their steps are taken in turn, so that their memory accesses overlap.

One binary search waits for memory at every step; a hundred of them, step by step side by side, wait hardly longer.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_code, fetch_rank, fetch_signpost, signpost
from retriever.kernel_table import SIGNPOST_DEPTH, SIGNPOST_SPACING_BITS, code_at, compiled, suffix_start

# Fewer searches than these cut each range into 8 or 4 parts a step instead of 2: the accesses overlap then too.
FEW, SOME = 6, 24


@compiled
def _between_signposts(table, segment, left, right, offset, code):
    """The narrower [left, right] that signposts leave for the first rank whose code at `offset` is at least `code`."""
    bits = table[segment, SIGNPOST_SPACING_BITS]
    first, end = (left + (1 << bits) - 1) >> bits, (right + (1 << bits) - 1) >> bits
    while first < end:
        middle = (first + end) >> 1
        if signpost(table, segment, middle, offset) < code:
            first = middle + 1
            left = (middle << bits) + 1
        else:
            end = middle
            right = middle << bits
    return left, right


@compiled
def find_edges(table, segments, lefts, rights, codes, number, offset, live):
    """Set lefts[i] to the first rank in [lefts[i], rights[i]) whose code at `offset` is at least codes[i], for i < number.

    All int64 [number or more]; rights and live are scratch.
    """
    for i in range(number):
        if lefts[i] < rights[i]:
            fetch_signpost(table, segments[i], (lefts[i] + rights[i]) >> 1)
    remaining = 0
    for i in range(number):
        if lefts[i] < rights[i] and offset < table[segments[i], SIGNPOST_DEPTH]:
            lefts[i], rights[i] = _between_signposts(table, segments[i], lefts[i], rights[i], offset, codes[i])
        if lefts[i] < rights[i]:
            live[remaining] = i
            remaining += 1
    while remaining > 0:
        parts = 8 if remaining < FEW else 4 if remaining < SOME else 2
        for turn in range(remaining):
            i = live[turn]
            for part in range(1, parts):
                fetch_rank(table, segments[i], lefts[i] + (rights[i] - lefts[i]) * part // parts)
        for turn in range(remaining):
            i = live[turn]
            for part in range(1, parts):
                fetch_code(table, segments[i], lefts[i] + (rights[i] - lefts[i]) * part // parts, offset)
        kept = 0
        for turn in range(remaining):
            i = live[turn]
            left, size = lefts[i], rights[i] - lefts[i]
            for part in range(1, parts):
                rank = left + size * part // parts
                if code_at(table, segments[i], suffix_start(table, segments[i], rank) + offset) >= codes[i]:
                    rights[i] = rank
                    break
                lefts[i] = rank + 1
            if lefts[i] < rights[i]:
                live[kept] = i
                kept += 1
        remaining = kept
    return np.int64(number)
