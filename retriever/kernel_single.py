"""The compiled walk of a match in one segment whose every frequent node's interval is known without a search.

Suffixes of the interval, or those where frequent nodes begin and end (`marks.py`), form a trie by what neighbours share. A
node of it is a run of them, and its count the distance of the run's ends.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_children import has_more
from retriever.kernel_marks import DEEPEST, FURTHER_RUN, LEAST_RUN, marked
from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_table import (
    CODES,
    FURTHER_MARKED,
    MARKED,
    WIDTH,
    code_at,
    compiled,
    shared_from,
    suffix_start,
    token_of,
)

# Up to so many suffixes are all read.
ALL_READ = 256
# A level of counts is told from others to this part of the matches.
PARTS = 1024
# Counts of 64 nodes are mostly above the one part of the matches, and seldom all above the other.
FREQUENT, SELDOM = 256, 64


@compiled
def place_of(frontier, waiting, count, token, depth, parent, slot):
    """Where a newcomer stands among the waiting nodes, the best of which stands last."""
    place = waiting
    while place > 0:
        other = frontier[place - 1]
        if count[other] != count[slot]:
            worse = count[other] < count[slot]
        elif token[other] != token[slot]:
            worse = token[other] > token[slot]
        elif depth[other] != depth[slot]:
            worse = depth[other] > depth[slot]
        else:
            worse = parent[other] > parent[slot]
        if worse:
            break
        place -= 1
    return place


@compiled
def _read(table, low, high, length, most):
    """All suffixes of the interval: (ranks, where their continuations begin, what each shares with the next)."""
    base, width = table[0, CODES], table[0, WIDTH]
    number = high - low
    ranks, starts, shared = np.empty(number, np.int64), np.empty(number, np.int64), np.empty(number, np.int64)
    for i in range(number):
        ranks[i] = low + i
        starts[i] = suffix_start(table, 0, low + i) + length
        fetch_place(base, width, starts[i])
    for i in range(number - 1):
        shared[i] = shared_from(table, 0, starts[i], starts[i + 1], np.int64(0), most)
    return ranks, starts, shared


@compiled
def _trie(table, starts, shared, total, most, leaves):
    """The trie of `total` suffixes: (begin, end, depth, above, child, sibling), int64 [*] each, and its root.

    A node stands for the suffixes begin to end at all depths above that of its parent, up to `depth`: none where a document
    ends there, or for one suffix where `leaves` do not count. Its children are child, sibling of child, ..., -1 at the end.
    """
    room = 2 * total + 1
    begin, end, depth = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    above, child, sibling = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    open_nodes = np.empty(most + 2, np.int64)
    number, opened, node = 0, 0, 0
    shares = np.int64(0)
    for at in range(total):
        before = shares
        shares = shared[at] if at + 1 < total else np.int64(-1)
        node = number
        begin[node], end[node], child[node] = at, at + 1, -1
        depth[node] = max(before, shares)
        if leaves:
            depth[node] = shared_from(table, 0, starts[at], starts[at], depth[node], most)
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
            begin[number], depth[number], child[number] = begin[node], shares, -1
            open_nodes[opened] = number
            opened += 1
            number += 1
        parent = open_nodes[opened - 1]
        above[node], sibling[node], child[parent] = parent, child[parent], node
    if depth[node] > 0:
        begin[number], end[number], depth[number], child[number] = 0, total, 0, node
        above[node], sibling[node] = number, -1
        node = number
        number += 1
    above[node] = -1
    return (
        begin[:number], end[:number], depth[:number], above[:number], child[:number], sibling[:number], np.int64(node),
    )  # fmt: skip


@compiled
def _bar(ranks, trie, budget, least):
    """A count of at least `least` that `budget` nodes or more reach, 0 where so many do not reach `least`."""
    begin, end, depth, above, _, _, root = trie
    total = ranks[end[root] - 1] + 1 - ranks[0]
    reach = np.zeros(PARTS + 1, np.int64)
    for node in range(begin.shape[0]):
        count = ranks[end[node] - 1] + 1 - ranks[begin[node]]
        if node != root and count >= least:
            reach[count * PARTS // total] += depth[node] - depth[above[node]]
    part, reached = np.int64(PARTS + 1), np.int64(0)
    while reached < budget and part > 0:
        part -= 1
        reached += reach[part]
    # The least count whose part it is.
    return max(least, -(-part * total // PARTS)) if reached >= budget else np.int64(0)


@compiled
def _starts(table, ranks, begin, end, least, length):
    """Where the first suffix of each node of `least` occurrences or more continues; the memory there is on its way."""
    base, width = table[0, CODES], table[0, WIDTH]
    starts = np.empty(ranks.shape[0], np.int64)
    frequent, number = np.empty(begin.shape[0], np.int64), 0
    for node in range(begin.shape[0]):
        if ranks[end[node] - 1] + 1 - ranks[begin[node]] >= least:
            frequent[number] = begin[node]
            fetch_rank(table, 0, ranks[begin[node]])
            number += 1
    for i in range(number):
        starts[frequent[i]] = suffix_start(table, 0, ranks[frequent[i]]) + length
        fetch_place(base, width, starts[frequent[i]])
    return starts


@compiled
def best_of_one(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """Emit up to `budget` trie nodes below the interval [low, high), best first; returns (number, truncated).

    Mutates the four output rows [budget]. The table has the one segment's row. The number is -1, and nothing is emitted,
    where neither all suffixes are to be read nor marks tell of enough nodes.
    """
    total = high - low
    least = np.int64(0)
    if total <= ALL_READ:
        ranks, starts, shared = _read(table, low, high, length, max_depth)
        trie = _trie(table, starts, shared, total, max_depth, True)
        least = np.int64(1)
    else:
        if total < SELDOM * LEAST_RUN or table[0, MARKED] == 0 or length + max_depth > DEEPEST:
            return -1, False
        further = table[0, FURTHER_MARKED] > 0 and total >= FREQUENT * FURTHER_RUN
        while True:
            ranks, shared = marked(table, low, high, length, max_depth, further)
            trie = _trie(table, shared, shared, ranks.shape[0], max_depth, False)
            least = _bar(ranks, trie, budget, np.int64(FURTHER_RUN if further else LEAST_RUN))
            if least > 0:
                starts = _starts(table, ranks, trie[0], trie[1], least, length)
                break
            if not further:
                return -1, False
            further = False
    begin, end, deepest, _, child, sibling, root = trie
    # A slot more than the frontier has: for the newcomer.
    token, count, node = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    depth, parent = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    # frontier[:waiting] are the waiting nodes' slots, the best last; free[waiting:] are the unused ones.
    frontier, free = np.empty(budget + 1, np.int64), np.arange(budget + 1)
    # Row 0 is the root, row r + 1 the emitted node r.
    whole_low, whole_high = np.empty((budget + 1, 1), np.int64), np.empty((budget + 1, 1), np.int64)
    seen = np.zeros((budget + 1, 1), np.int64)
    whole_low[0, 0], whole_high[0, 0] = low, high
    waiting, emitted = 0, 0
    here, below = root, np.int64(0)
    while emitted < budget:
        # A node goes on as one until its deepest level.
        along = below < deepest[here]
        c = here if along else child[here]
        left = budget - emitted
        while c >= 0 and below < max_depth:
            slot = free[waiting]
            count[slot] = ranks[end[c] - 1] + 1 - ranks[begin[c]]
            if below < deepest[c] and count[slot] >= (count[frontier[0]] if waiting == left else least):
                token[slot] = token_of(table, 0, code_at(table, 0, starts[begin[c]] + below))
                node[slot], depth[slot], parent[slot] = c, below + 1, emitted - 1
                place = place_of(frontier, waiting, count, token, depth, parent, slot)
                if waiting < left:
                    for j in range(waiting, place, -1):
                        frontier[j] = frontier[j - 1]
                    frontier[place] = slot
                    waiting += 1
                elif place > 0:
                    free[waiting] = frontier[0]
                    for j in range(place - 1):
                        frontier[j] = frontier[j + 1]
                    frontier[place - 1] = slot
            c = np.int64(-1) if along else sibling[c]
        if waiting == 0:
            break
        waiting -= 1
        slot = frontier[waiting]
        free[waiting] = slot
        tokens[emitted], parents[emitted] = token[slot], parent[slot]
        counts[emitted], depths[emitted] = count[slot], depth[slot]
        here, below = node[slot], depth[slot]
        emitted += 1
        seen[parent[slot] + 1, 0] += count[slot]
        whole_low[emitted, 0], whole_high[emitted, 0] = ranks[begin[here]], ranks[end[here] - 1] + 1
    for r in range(emitted + 1):
        below = np.int64(0) if r == 0 else depths[r - 1]
        if below < max_depth and has_more(table, whole_low[r], whole_high[r], length + below, seen[r]):
            return emitted, True
    return emitted, False
