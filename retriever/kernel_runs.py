"""The compiled trie of sampled suffixes (`kernel_samples.py`): its nodes are runs of samples that share their beginning."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_samples import BEHIND, HALF, MATTERS, RANK, SHARED
from retriever.kernel_table import compiled, shared_from

# The samples that a node stands for, the one before them (-1: none), the level down to which it goes, its occurrences from
# the first to the last sample, the nodes above, below and beside it (-1: none).
FIRST, LAST, BEFORE, DEPTH, COUNT, ABOVE, CHILD, SIBLING, RUN_COLUMNS = range(9)
# A count is told from others in so many parts at least.
PARTS = 512


@compiled
def runs_of(table, samples, starts, number, most, leaves):
    """The trie of the samples: nodes int32 [*, RUN_COLUMNS], the root first.

    A node stands for its samples at all levels below its parent's, down to DEPTH: these are the intervals of Abouelhoda,
    Kurtz and Ohlebusch (J. Discrete Algorithms 2004) and, where `leaves` count, each sample beyond what it shares. Children
    are CHILD, SIBLING of CHILD, .... What matters in gaps is forgotten.
    """
    nodes = np.empty((2 * number + 1, RUN_COLUMNS), np.int32)
    waiting = np.empty(most + 2, np.int64)
    nodes[0, FIRST], nodes[0, BEFORE], nodes[0, DEPTH] = 0, -1, 0
    nodes[0, ABOVE], nodes[0, CHILD], nodes[0, SIBLING] = -1, -1, -1
    waiting[0] = 0
    made, top, node = 1, 0, 0
    before, at, shares = np.int64(-1), np.int64(0), np.int64(0)
    while True:
        above, shares = shares, np.int64(samples[at, SHARED])
        samples[at, MATTERS] = 0
        first, ahead, last = at, before, -1
        if leaves:
            known = max(above, shares)
            alone = shared_from(table, 0, starts[at], starts[at], known, most)
            if alone > known:
                nodes[made, FIRST], nodes[made, LAST], nodes[made, BEFORE] = at, at, before
                nodes[made, DEPTH], nodes[made, COUNT], nodes[made, CHILD] = alone, 1, -1
                last = made
                made += 1
        # Deepest first, all nodes end here that reach deeper than what the next sample shares; the root after the last.
        while nodes[node, DEPTH] > shares:
            nodes[node, LAST] = at
            first, ahead = np.int64(nodes[node, FIRST]), np.int64(nodes[node, BEFORE])
            nodes[node, COUNT] = samples[at, RANK] + 1 - samples[first, RANK]
            if last >= 0:
                nodes[last, ABOVE], nodes[last, SIBLING], nodes[node, CHILD] = node, nodes[node, CHILD], last
            last = node
            top -= 1
            if top < 0:
                return nodes[:made]
            node = waiting[top]
        if nodes[node, DEPTH] < shares:
            nodes[made, FIRST], nodes[made, BEFORE], nodes[made, DEPTH] = first, ahead, shares
            nodes[made, CHILD] = -1
            top += 1
            waiting[top] = made
            node = made
            made += 1
        if last >= 0:
            nodes[last, ABOVE], nodes[last, SIBLING], nodes[node, CHILD] = node, nodes[node, CHILD], last
        before, at = at, np.int64(samples[at, BEHIND])


@compiled
def bar(nodes, budget, least):
    """The highest count of at least `least` that `budget` trie nodes or more reach, 0 where so many do not reach `least`."""
    # Counts from `low` to below `high` are told apart by parts of 1 << bits; those from `high` on are `reached`.
    low, high, reached = np.int64(0), np.int64(nodes[0, COUNT] + 1), np.int64(0)
    while True:
        bits = 0
        while (high - low) >> bits > 2 * PARTS:
            bits += 1
        reach = np.zeros(((high - low - 1) >> bits) + 1, np.int64)
        for node in range(1, nodes.shape[0]):
            count = nodes[node, COUNT]
            if low <= count < high and count >= least:
                reach[(count - low) >> bits] += nodes[node, DEPTH] - nodes[nodes[node, ABOVE], DEPTH]
        part = reach.shape[0]
        while reached < budget and part > 0:
            part -= 1
            reached += reach[part]
        if reached < budget:
            return np.int64(0)
        low += part << bits
        if bits == 0 or low + (1 << bits) <= least:
            return max(least, low)
        high = min(high, low + (1 << bits))
        reached -= reach[part]


@compiled
def gaps_of(samples, nodes, least):
    """Set how deep nodes that may have `least` occurrences end and begin in gaps: (gaps [*], number of them set).

    Samples that are the end of no such node, and do not stand beside one, are left out of the chain.
    """
    gaps, found = np.empty(2 * nodes.shape[0], np.int64), 0
    needed = np.zeros(samples.shape[0], np.bool_)
    for node in range(1, nodes.shape[0]):
        first, last, before = nodes[node, FIRST], nodes[node, LAST], nodes[node, BEFORE]
        depth, behind = nodes[node, DEPTH], samples[last, BEHIND]
        end = samples[behind, RANK] if behind >= 0 else samples[last, RANK] + 1
        begin = samples[before, RANK] if before >= 0 else -1
        if end - begin - 1 < least:
            continue
        needed[first], needed[last] = True, True
        if behind >= 0:
            needed[behind] = True
            matters = samples[last, MATTERS]
            if matters == 0:
                gaps[found] = last
                found += 1
            samples[last, MATTERS] = max(matters & ((1 << HALF) - 1), depth) | (matters >> HALF << HALF)
        if before >= 0:
            needed[before] = True
            matters = samples[before, MATTERS]
            if matters == 0:
                gaps[found] = before
                found += 1
            samples[before, MATTERS] = (matters & ((1 << HALF) - 1)) | max(matters >> HALF, depth) << HALF
    at = np.int64(0)
    while samples[at, BEHIND] >= 0:
        behind, shared = np.int64(samples[at, BEHIND]), samples[at, SHARED]
        while not needed[behind] and samples[behind, BEHIND] >= 0:
            shared = min(shared, samples[behind, SHARED])
            behind = np.int64(samples[behind, BEHIND])
        samples[at, BEHIND], samples[at, SHARED] = behind, shared
        at = behind
    return gaps, found
