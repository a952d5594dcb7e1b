"""Samples of a match: suffixes at ranks a stride apart in each segment, and how many codes each shares with the next.

The samples of an interval are sorted as its suffixes are, so a node of the match's trie that samples hit is a run of them. A
node that no sample hits lies between neighbours in every segment, so it is no more frequent than their distances together.

A *sampling* is (first, ranks, starts, shared): first [S + 1] says where a segment's samples begin, and of sample i, int64 [M]
each, ranks[i] is its rank, starts[i] where its continuation begins in the segment's codes, and shared[i] how many codes that
has in common with the next sample's of the segment, up to `most`; 0 for the last. Two continuations never share a document's
end. Each segment's first and last rank are samples.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_table import CODES, WIDTH, compiled, shared_from, suffix_start


@compiled
def _read(table, first, ranks, starts, shared, length, most):
    """Fill in the starts that are -1, and the shares of neighbours, of which shared[i] codes are known to be."""
    for s in range(table.shape[0]):
        base, width = table[s, CODES], table[s, WIDTH]
        for i in range(first[s], first[s + 1]):
            if starts[i] < 0:
                fetch_rank(table, s, ranks[i])
        for i in range(first[s], first[s + 1]):
            if starts[i] < 0:
                starts[i] = suffix_start(table, s, ranks[i]) + length
                fetch_place(base, width, starts[i])
    for s in range(table.shape[0]):
        for i in range(first[s], first[s + 1] - 1):
            shared[i] = shared_from(table, s, starts[i], starts[i + 1], shared[i], most)


@compiled
def ends_of(table, low, high, length, most):
    """The sampling of intervals, none of them empty, by their first and last ranks alone."""
    segments = table.shape[0]
    first = np.empty(segments + 1, np.int64)
    ranks = np.empty(2 * segments, np.int64)
    number = 0
    for s in range(segments):
        first[s] = number
        ranks[number] = low[s]
        number += 1
        if high[s] - low[s] > 1:
            ranks[number] = high[s] - 1
            number += 1
    first[segments] = number
    starts, shared = np.full(number, -1), np.zeros(number, np.int64)
    _read(table, first, ranks[:number], starts, shared, length, most)
    return first, ranks[:number], starts, shared


@compiled
def refined(table, sampling, length, most, bits):
    """The sampling with the multiples of 1 << bits put in where neighbours do not agree all the way."""
    old_first, old_ranks, old_starts, old_shared = sampling
    segments = table.shape[0]
    total = old_ranks.shape[0]
    for s in range(segments):
        for i in range(old_first[s], old_first[s + 1] - 1):
            if old_shared[i] < most:
                total += max(0, ((old_ranks[i + 1] - 1) >> bits) - (old_ranks[i] >> bits))
    first = np.empty(segments + 1, np.int64)
    ranks, starts, shared = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    at = 0
    for s in range(segments):
        first[s] = at
        for i in range(old_first[s], old_first[s + 1]):
            ranks[at], starts[at], shared[at] = old_ranks[i], old_starts[i], old_shared[i]
            at += 1
            if i + 1 < old_first[s + 1] and old_shared[i] < most:
                for multiple in range((old_ranks[i] >> bits) + 1, ((old_ranks[i + 1] - 1) >> bits) + 1):
                    ranks[at], starts[at], shared[at] = multiple << bits, -1, old_shared[i]
                    at += 1
    first[segments] = at
    _read(table, first, ranks, starts, shared, length, most)
    return first, ranks, starts, shared


@compiled
def most_hidden(sampling, most):
    """No node that no sample hits is more frequent than this, and none that samples hit is so much more than they tell."""
    first, ranks, _, shared = sampling
    hidden = np.int64(0)
    for s in range(first.shape[0] - 1):
        widest = np.int64(0)
        for i in range(first[s], first[s + 1] - 1):
            if shared[i] < most:
                widest = max(widest, ranks[i + 1] - ranks[i] - 1)
        hidden += widest
    return hidden


@compiled
def sample_trie(table, starts, who, segment, shared, most):
    """The trie of samples who [M] of segment [M] in the order of their continuations, neighbours of which share `shared`.

    Returns (begin, end, depth, above, child, sibling), int64 [*] each, and the root. A node stands for the samples begin to
    end at all depths above that of its parent, up to `depth`: none where a document ends there. Its children are child,
    sibling of child, ..., -1 at the end.
    """
    total = who.shape[0]
    room = 2 * total + 1
    begin, end, depth = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    above, child, sibling = np.full(room, -1), np.full(room, -1), np.full(room, -1)
    open_nodes = np.empty(most + 2, np.int64)
    number, opened, node = 0, 0, 0
    for at in range(total):
        s = segment[at]
        own = starts[who[at]]
        shares = shared[at] if at + 1 < total else np.int64(-1)
        node = number
        begin[node], end[node] = at, at + 1
        depth[node] = shared_from(table, s, own, own, max(np.int64(0), shares), most)
        number += 1
        while opened > 0 and depth[open_nodes[opened - 1]] > shares:
            opened -= 1
            parent = open_nodes[opened]
            above[node], sibling[node], child[parent] = parent, child[parent], node
            end[parent] = at + 1
            node = parent
        if at + 1 == total:
            break
        if opened == 0 or depth[open_nodes[opened - 1]] < shares:
            begin[number], depth[number] = begin[node], shares
            open_nodes[opened] = number
            opened += 1
            number += 1
        parent = open_nodes[opened - 1]
        above[node], sibling[node], child[parent] = parent, child[parent], node
    if depth[node] > 0:
        begin[number], end[number], depth[number] = 0, total, 0
        above[node], child[number] = number, node
        node = number
        number += 1
    return (
        begin[:number], end[:number], depth[:number], above[:number], child[:number], sibling[:number], np.int64(node),
    )  # fmt: skip
