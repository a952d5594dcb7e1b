"""Which nodes of a match's trie are frequent: guessed from samples, then measured, until none can have been missed."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_intervals import COUNT, DEPTH, LOWS, NODE, measure
from retriever.kernel_joint import joint
from retriever.kernel_samples import ends_of, most_hidden, refined, sample_trie
from retriever.kernel_table import compiled

# Samples of a match over the budget, at least, for one segment and for each further; and how much closer they come at most in
# the next turn, as a power of two.
SAMPLES, FURTHER_SAMPLES, CLOSER = 8, 4, 3
# Nodes hit less often are not guessed: closer samples tell more of them.
LEAST_HITS = 2
# Rows measured together.
TOGETHER = 256


@compiled
def _power(number):
    """The logarithm of the largest power of two up to a number, 0 for less than two."""
    bits = np.int64(0)
    while number >= 2:
        number >>= 1
        bits += 1
    return bits


@compiled
def _weights(sampling, order, trie):
    """How many ranks the samples of each node stand for: each for those up to the next of its segment, the last for itself."""
    first, ranks, _, _ = sampling
    who, segment, _, _ = order
    until = np.zeros(who.shape[0] + 1, np.int64)
    for at in range(who.shape[0]):
        i = who[at]
        until[at + 1] = until[at] + (ranks[i + 1] - ranks[i] if i + 1 < first[segment[at] + 1] else 1)
    begin, end = trie[0], trie[1]
    weight = np.empty(begin.shape[0], np.int64)
    for node in range(begin.shape[0]):
        weight[node] = until[end[node]] - until[begin[node]]
    return weight


@compiled
def _guessed(trie, weight, budget, bits):
    """The likeliest nodes, all depths of each: (its first row, or -1, of each node; how many rows there are).

    About `budget` of them, up to twice as many; fewer where samples tell of no more.
    """
    depth, above, root = trie[2], trie[3], trie[6]
    nodes = depth.shape[0]
    bar = (weight[root] >> bits) + 1
    at_hits = np.zeros(bar + 1, np.int64)
    for node in range(nodes):
        if node != root:
            at_hits[weight[node] >> bits] += depth[node] - depth[above[node]]
    reach = np.int64(0)
    while reach < budget and bar > LEAST_HITS:
        bar -= 1
        reach += at_hits[bar]
    row, number = np.full(nodes, -1), 0
    for ties in range(2):
        for node in range(nodes):
            hits = weight[node] >> bits
            if node == root or (hits != bar if ties else hits <= bar):
                continue
            levels = depth[node] - depth[above[node]]
            if levels > 0 and number + levels <= 2 * budget and (number < budget or not ties):
                row[node] = number
                number += levels
    return row, number


@compiled
def _put(rows, trie, row, node):
    """Write NODE and DEPTH of a node's rows; rows, longer where they were too few, and how many there are now."""
    depth, above = trie[2], trie[3]
    levels = depth[node] - depth[above[node]]
    if row + levels > rows.shape[0]:
        longer = np.empty((2 * (row + levels), rows.shape[1]), np.int64)
        longer[:row] = rows[:row]
        rows = longer
    for level in range(levels):
        rows[row + level, NODE], rows[row + level, DEPTH] = node, depth[above[node]] + level + 1
    return rows, row + levels


@compiled
def _complete(table, sampling, order, trie, length, weight, hidden, least, rows, number, row):
    """Measure what else can have a count of `least`, level by level from the root; the rows, `row` of each node filled in."""
    depth, above, child, sibling, root = trie[2], trie[3], trie[4], trie[5], trie[6]
    nodes = depth.shape[0]
    measured = np.zeros(nodes, np.int64)
    for node in range(nodes):
        if row[node] >= 0:
            measured[node] = depth[node] - depth[above[node]]
    waiting, held = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
    room = max(np.int64(TOGETHER), depth.max())
    which = np.empty(room, np.int64)
    waits = 0
    node = child[root]
    while node >= 0:
        waiting[waits] = node
        waits += 1
        node = sibling[node]
    while waits > 0:
        asked, holds = 0, 0
        while waits > 0:
            node = waiting[waits - 1]
            levels = depth[node] - depth[above[node]]
            if asked + levels > room:
                break
            waits -= 1
            known = measured[node]
            if levels == 0 or (known > 0 and rows[row[node] + known - 1, COUNT] < least):
                continue
            if known == levels:
                node = child[node]
                while node >= 0:
                    waiting[waits] = node
                    waits += 1
                    node = sibling[node]
                continue
            if known == 0:
                if weight[node] + hidden < least:
                    continue
                row[node] = number
                rows, number = _put(rows, trie, number, node)
            # A node's first depth alone, then all others.
            measured[node] = 1 if known == 0 else levels
            for level in range(known, measured[node]):
                which[asked] = row[node] + level
                asked += 1
            held[holds] = node
            holds += 1
        measure(table, sampling, order, trie, length, rows, which, asked, least)
        for i in range(holds):
            waiting[waits] = held[i]
            waits += 1
    for node in range(nodes):
        if row[node] >= 0:
            for level in range(measured[node], depth[node] - depth[above[node]]):
                rows[row[node] + level, COUNT] = 0
    return rows


@compiled
def frequent(table, low, high, length, most, budget):
    """The `budget` most frequent nodes and more, below intervals none of which is empty.

    Returns (sampling, order, trie, weight, least, row, rows): the first `budget` nodes have `least` occurrences or more, and
    all nodes that have stand in `rows` from row[node] on, one row a depth. Where `rows` is empty, the weights are the counts.
    """
    segments = table.shape[0]
    total = (high - low).sum()
    bits = _power(total // (budget * (SAMPLES + FURTHER_SAMPLES * (segments - 1))))
    sampling = refined(table, ends_of(table, low, high, length, most), length, most, bits)
    while True:
        order = joint(table, sampling, most)
        trie = sample_trie(table, sampling[2], order[0], order[1], order[2], most)
        weight = _weights(sampling, order, trie)
        hidden = most_hidden(sampling, most)
        least = np.int64(1)
        rows = np.empty((0, LOWS + 2 * segments), np.int64)
        if hidden == 0:
            return sampling, order, trie, weight, least, np.empty(0, np.int64), rows
        row, number = _guessed(trie, weight, budget, bits)
        if number >= budget:
            rows = np.empty((2 * number, LOWS + 2 * segments), np.int64)
            for node in range(row.shape[0]):
                if row[node] >= 0:
                    rows, _ = _put(rows, trie, row[node], node)
            measure(table, sampling, order, trie, length, rows, np.arange(number), number, np.int64(0))
            least = np.sort(rows[:number, COUNT])[number - budget]
            if hidden < least:
                rows = _complete(table, sampling, order, trie, length, weight, hidden, least, rows, number, row)
                return sampling, order, trie, weight, least, row, rows
        bits = max(np.int64(0), bits - CLOSER, min(bits - 1, _power(least // segments)))
        sampling = refined(table, sampling, length, most, bits)
