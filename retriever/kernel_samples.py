"""Compiled samples of a match's suffixes, from which the intervals of all its frequent nodes follow.

Suffixes of an interval stand in order, so what two of them share, all between them share at least. Samples a stride apart
thus form a trie (`kernel_runs.py`) in which no node of two strides is missing, and a node's ends are known to a stride. Only
where such an end matters is the gap between two samples halved, all gaps in turn, so that their memory accesses overlap.
What samples share comes from the segment's shares (`shares.py`) where their ranks are among those, else from the text.

Samples are two arrays: int32 [room, SAMPLE_COLUMNS], row 0 the first of the interval, and starts, int64 [room]: where a
sample's continuation begins (-1: not looked up). They are tens of kilobytes, so that they stay in the nearest caches.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_shares import BLOCK_BITS, least_share
from retriever.kernel_table import CODES, WIDTH, compiled, shared_from, suffix_start

# Its rank within the interval, the row of the sample behind it (-1: none), what the two share, and how deep nodes that
# matter end (low half) or begin (high half) in the gap between the two.
RANK, BEHIND, SHARED, MATTERS, SAMPLE_COLUMNS = range(5)
HALF = 16
# Room for samples that refinement adds, as often as there are first ones.
SPARE = 3
BLOCK = 1 << BLOCK_BITS


@compiled
def look_up(table, samples, starts, rows, number, low, length):
    """Set where the continuations of samples rows[:number] begin; the memory there is on its way."""
    base, width = table[0, CODES], table[0, WIDTH]
    for turn in range(number):
        fetch_rank(table, 0, low + samples[rows[turn], RANK])
    for turn in range(number):
        i = rows[turn]
        if starts[i] < 0:
            starts[i] = suffix_start(table, 0, low + samples[i, RANK]) + length
            fetch_place(base, width, starts[i])


@compiled
def chain(table, samples, starts, number, most):
    """Put each of the first samples before the next, and set what the two share."""
    for i in range(number - 1):
        samples[i, BEHIND] = i + 1
        samples[i, SHARED] = shared_from(table, 0, starts[i], starts[i + 1], np.int64(0), most)
    samples[number - 1, BEHIND], samples[number - 1, SHARED] = -1, -1


@compiled
def every(table, low, high, stride, length, most):
    """Samples `stride` ranks apart of the only segment's [low, high), and its last rank: (samples, starts, number)."""
    base, width = table[0, CODES], table[0, WIDTH]
    number = (high - low + stride - 2) // stride + 1
    room = number if stride == 1 else SPARE * number
    samples, starts = np.empty((room, SAMPLE_COLUMNS), np.int32), np.empty(room, np.int64)
    for i in range(number):
        rank = min(i * stride, high - low - 1)
        samples[i, RANK] = rank
        fetch_rank(table, 0, low + rank)
    for i in range(number):
        starts[i] = suffix_start(table, 0, low + samples[i, RANK]) + length
        fetch_place(base, width, starts[i])
    chain(table, samples, starts, number, most)
    return samples, starts, number


@compiled
def by_shares(table, low, high, bits, length, most):
    """Samples of [low, high) at its ends and at multiples of 1 << bits, itself one of 16: (samples, starts, number)."""
    first, last = (low >> bits) + 1, (high - 2) >> bits
    number = last - first + 3
    samples, starts = np.empty((SPARE * number, SAMPLE_COLUMNS), np.int32), np.full(SPARE * number, -1, np.int64)
    for i in range(1, number - 1):
        rank = (first + i - 1) << bits
        samples[i, RANK], samples[i, BEHIND] = rank - low, i + 1
        if i < number - 2:
            samples[i, SHARED] = min(most, least_share(table, rank, rank + (1 << bits)) - length)
    samples[0, RANK], samples[0, BEHIND] = 0, 1
    samples[number - 1, RANK], samples[number - 1, BEHIND], samples[number - 1, SHARED] = high - 1 - low, -1, -1
    look_up(table, samples, starts, np.array([0, 1, number - 2, number - 1]), 4, low, length)
    for i in (0, number - 2):
        samples[i, SHARED] = shared_from(table, 0, starts[i], starts[i + 1], np.int64(0), most)
    return samples, starts, number


@compiled
def _ending(samples, i):
    """How deep nodes that matter end in the gap behind a sample, 0 for none."""
    return np.int64(samples[i, MATTERS] & ((1 << HALF) - 1))


@compiled
def _beginning(samples, i):
    """How deep nodes that matter begin in the gap behind a sample, 0 for none."""
    return np.int64(samples[i, MATTERS] >> HALF)


@compiled
def _hides(samples, i, wide):
    """Whether the gap behind a sample is wider than that and still hides an end that matters."""
    return samples[samples[i, BEHIND], RANK] - samples[i, RANK] > wide and samples[i, SHARED] < max(
        _ending(samples, i), _beginning(samples, i)
    )


@compiled
def refined(table, samples, starts, number, gaps, found, wide, known, low, length, most):
    """Halve the first `found` gaps (of samples [*] behind which they lie) until none that matters is wider than that.

    known: whether shares may be asked. Returns (samples, starts, number): the rows may have moved.
    """
    live = np.empty(2 * found + 1, np.int64)
    kept = 0
    for turn in range(found):
        if _hides(samples, gaps[turn], wide):
            live[kept] = gaps[turn]
            kept += 1
    while kept > 0:
        if number + kept > samples.shape[0]:
            more = np.empty((2 * (number + kept), SAMPLE_COLUMNS), np.int32)
            more[:number] = samples[:number]
            more_starts = np.empty(2 * (number + kept), np.int64)
            more_starts[:number] = starts[:number]
            samples, starts = more, more_starts
        # Samples whose text is read, in gaps that shares do not span: the middle, and the ends that matter.
        read, reads = np.empty(3 * kept, np.int64), 0
        for turn in range(kept):
            i, middle = live[turn], number + turn
            behind = samples[i, BEHIND]
            rank, end = low + samples[i, RANK], low + samples[behind, RANK]
            starts[middle] = -1
            if known and (rank | end) & (BLOCK - 1) == 0 and end - rank > BLOCK:
                samples[middle, RANK] = ((rank + end) >> 1 & -BLOCK) - low
                continue
            samples[middle, RANK] = ((rank + end) >> 1) - low
            read[reads] = middle
            reads += 1
            if _ending(samples, i) > samples[i, SHARED]:
                read[reads] = i
                reads += 1
            if _beginning(samples, i) > samples[i, SHARED]:
                read[reads] = behind
                reads += 1
        look_up(table, samples, starts, read, reads, low, length)
        still = np.empty(2 * kept, np.int64)
        again = 0
        for turn in range(kept):
            i, middle = live[turn], number + turn
            behind, shares = np.int64(samples[i, BEHIND]), np.int64(samples[i, SHARED])
            ending, beginning = _ending(samples, i), _beginning(samples, i)
            rank = low + samples[middle, RANK]
            # Of the two one is what the ends share. Where nothing that matters begins, or ends, the other one may be set too
            # low: that parts none but nodes which lie within the gap or reach into it from where it does not matter.
            left, right = shares, shares
            if ending > shares:
                if starts[middle] >= 0:
                    left = shared_from(table, 0, starts[i], starts[middle], shares, most)
                else:
                    left = min(most, least_share(table, low + samples[i, RANK], rank) - length)
            if beginning > shares and left == shares:
                if starts[middle] >= 0:
                    right = shared_from(table, 0, starts[middle], starts[behind], shares, most)
                else:
                    right = min(most, least_share(table, rank, low + samples[behind, RANK]) - length)
            samples[middle, BEHIND], samples[i, BEHIND] = behind, middle
            samples[middle, SHARED], samples[i, SHARED] = right, left
            # A node that lies within the gap is too small to matter.
            samples[middle, MATTERS] = beginning << HALF | min(ending, left)
            samples[i, MATTERS] = min(beginning, right) << HALF | ending
            if _hides(samples, i, wide):
                still[again] = i
                again += 1
            if _hides(samples, middle, wide):
                still[again] = middle
                again += 1
        number += kept
        live, kept = still, again
    return samples, starts, number
