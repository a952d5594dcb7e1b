"""The compiled walk of a match in one segment: over all of its suffixes, or over those that tell of the frequent nodes."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever import kernel_frontier
from retriever.kernel_children import has_more
from retriever.kernel_frontier import enter
from retriever.kernel_runs import ABOVE, CHILD, COUNT, DEPTH, FIRST, LAST, SIBLING, bar, gaps_of, runs_of
from retriever.kernel_samples import RANK, by_shares, every, look_up, refined
from retriever.kernel_shares import BLOCK_BITS, knows
from retriever.kernel_table import code_at, compiled, token_of

# Up to so many suffixes are all read.
ALL_READ = 1024
# Samples taken first, of the text and by shares, and at most: twice as many each time.
FEW_READ, FEW_SHARED, MOST_SAMPLES = 512, 1024, 4096
# Matches from which shares are asked: a few hundred samples.
WIDE = 4096
# Once gaps are narrowed to so many ranks, nodes are counted again and fewer matter.
NARROW = 16
# Ranks and counts are kept in 32 bits.
WIDEST = 1 << 31


@compiled
def _by_shares(table, low, high, length, max_depth, budget):
    """Samples by shares, more and more: (samples, starts, number, nodes, least, stride); least 0 where none suffice."""
    total = high - low
    bits = np.int64(BLOCK_BITS)
    while total >> bits > FEW_SHARED:
        bits += 1
    while True:
        samples, starts, number = by_shares(table, low, high, bits, length, max_depth)
        nodes = runs_of(table, samples, starts, number, max_depth, False)
        least = bar(nodes, budget, np.int64(2) << bits)
        if least > 0 or bits == BLOCK_BITS or total >> (bits - 1) > MOST_SAMPLES:
            return samples, starts, number, nodes, least, np.int64(1) << bits
        bits -= 1


@compiled
def _by_text(table, low, high, length, max_depth, budget, known):
    """Samples of the text, closer than shares where these are known, more and more; as `_by_shares`."""
    total, aimed = high - low, np.int64(FEW_READ)
    while known and -(-total // aimed) >= 1 << BLOCK_BITS:
        aimed *= 2
    while True:
        stride = -(-total // aimed) if total > ALL_READ else np.int64(1)
        samples, starts, number = every(table, low, high, stride, length, max_depth)
        nodes = runs_of(table, samples, starts, number, max_depth, stride == 1)
        least = np.int64(1) if stride == 1 else bar(nodes, budget, 2 * stride)
        aimed *= 2
        if least > 0 or aimed > MOST_SAMPLES:
            return samples, starts, number, nodes, least, stride


@compiled
def _frequent(table, low, high, length, max_depth, budget):
    """The trie's frequent nodes: (samples, starts, nodes, least). `budget` trie nodes or more have `least` occurrences.

    All nodes of `least` occurrences are among `nodes`, exactly counted. least is 0 where samples do not tell so many apart.
    """
    known = knows(table, length + max_depth)
    least = np.int64(0)
    if known and high - low >= WIDE:
        samples, starts, number, nodes, least, stride = _by_shares(table, low, high, length, max_depth, budget)
    if least == 0:
        samples, starts, number, nodes, least, stride = _by_text(table, low, high, length, max_depth, budget, known)
    while stride > 1 and least > 0:
        stride = np.int64(NARROW if stride > NARROW else 1)
        gaps, found = gaps_of(samples, nodes, least)
        samples, starts, number = refined(
            table, samples, starts, number, gaps, found, stride, known, low, length, max_depth
        )
        nodes = runs_of(table, samples, starts, number, max_depth, False)
        least = bar(nodes, budget, least)
    firsts, found = np.empty(nodes.shape[0], np.int64), 0
    for node in range(nodes.shape[0]):
        if nodes[node, COUNT] >= least > 0:
            firsts[found] = nodes[node, FIRST]
            found += 1
    look_up(table, samples, starts, firsts, found, low, length)
    return samples, starts, nodes, least


@compiled
def emit(table, samples, starts, nodes, least, max_depth, budget, tokens, parents, counts, depths, begins, ends, seen):
    """Emit up to `budget` nodes of `least` occurrences, best first; their number.

    Mutates the four output rows [budget] and, of the root in row 0 and of emitted node r in row r + 1, the first sample's
    rank and the last one's, a rank further (begins, ends [budget + 1]), and what its emitted children count (seen, zeros).
    """
    rows = np.empty((budget + 1, kernel_frontier.NODE_COLUMNS), np.int64)
    frontier, free = np.empty(budget + 1, np.int64), np.arange(budget + 1)
    waiting, emitted = 0, 0
    here, below = np.int64(0), np.int64(0)
    begins[0], ends[0] = samples[nodes[0, FIRST], RANK], samples[nodes[0, LAST], RANK] + 1
    while emitted < budget:
        # A node goes on as one until its deepest level.
        along = below < nodes[here, DEPTH]
        c = here if along else np.int64(nodes[here, CHILD])
        left = budget - emitted
        while c >= 0 and below < max_depth:
            count = np.int64(nodes[c, COUNT])
            if count >= (rows[frontier[0], kernel_frontier.COUNT] if waiting == left else least):
                row = free[waiting]
                rows[row, kernel_frontier.COUNT] = count
                rows[row, kernel_frontier.TOKEN] = token_of(
                    table, 0, code_at(table, 0, starts[nodes[c, FIRST]] + below)
                )
                rows[row, kernel_frontier.DEPTH] = below + 1
                rows[row, kernel_frontier.PARENT] = emitted - 1
                rows[row, kernel_frontier.NODE] = c
                entered = enter(rows, frontier, free, waiting, left)
                waiting = entered if entered >= 0 else waiting
            c = np.int64(-1) if along else np.int64(nodes[c, SIBLING])
        if waiting == 0:
            break
        waiting -= 1
        row = frontier[waiting]
        free[waiting] = row
        parent = rows[row, kernel_frontier.PARENT]
        here, below = rows[row, kernel_frontier.NODE], rows[row, kernel_frontier.DEPTH]
        tokens[emitted], parents[emitted] = rows[row, kernel_frontier.TOKEN], parent
        counts[emitted], depths[emitted] = rows[row, kernel_frontier.COUNT], below
        emitted += 1
        seen[parent + 1] += rows[row, kernel_frontier.COUNT]
        begins[emitted], ends[emitted] = samples[nodes[here, FIRST], RANK], samples[nodes[here, LAST], RANK] + 1
    return emitted


@compiled
def levels_of(nodes):
    """How many trie nodes the runs stand for: all there are where every suffix was read."""
    levels = np.int64(0)
    for node in range(1, nodes.shape[0]):
        levels += nodes[node, DEPTH] - nodes[nodes[node, ABOVE], DEPTH]
    return levels


@compiled
def best_of_one(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """Emit up to `budget` trie nodes below the interval [low, high), best first; returns (number, truncated).

    Mutates the four output rows [budget]. The table has the one segment's row. The number is -1, and nothing is emitted,
    where samples do not tell of enough nodes.
    """
    if high - low >= WIDEST:
        return -1, False
    samples, starts, nodes, least = _frequent(table, low, high, length, max_depth, budget)
    if least == 0:
        return -1, False
    begins, ends = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    seen = np.zeros(budget + 1, np.int64)
    emitted = emit(
        table, samples, starts, nodes, least, max_depth, budget, tokens, parents, counts, depths, begins, ends, seen
    )
    if high - low <= ALL_READ:
        return emitted, emitted < levels_of(nodes)
    here, there, met = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.int64)
    for r in range(emitted + 1):
        below = np.int64(0) if r == 0 else depths[r - 1]
        here[0], there[0], met[0] = low + begins[r], low + ends[r], seen[r]
        if below < max_depth and has_more(table, here, there, length + below, met):
            return emitted, True
    return emitted, False
