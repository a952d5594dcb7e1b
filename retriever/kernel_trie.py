"""The compiled walk: continuation tries below the intervals of a match, over all segments at once.

A trie node is one interval per segment, and its count is the sum of their sizes. Declared order: see `trie.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_children import children, children_scratch, has_more
from retriever.kernel_frequent import frequent
from retriever.kernel_intervals import COUNT, LOWS
from retriever.kernel_ranks import edge
from retriever.kernel_table import ABOVE_ALL, code_at, code_of, compiled, token_of


@compiled
def _place(order, waiting, count, token, depth, parent, slot):
    """Where a newcomer stands among the waiting nodes, the first of which comes last."""
    place = waiting
    while place > 0:
        other = order[place - 1]
        if count[other] != count[slot]:
            after = count[other] > count[slot]
        elif token[other] != token[slot]:
            after = token[other] < token[slot]
        elif depth[other] != depth[slot]:
            after = depth[other] < depth[slot]
        else:
            after = parent[other] < parent[slot]
        if not after:
            break
        place -= 1
    return place


@compiled
def best_first(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """Emit up to `budget` trie nodes below the intervals, best first; returns (number, truncated).

    Mutates the four output rows [budget]. What can be emitted is found beforehand (`kernel_frequent.py`), so that only counts
    are looked at here. The frontier keeps no more nodes than can still be emitted.
    """
    active = np.flatnonzero(low < high)
    table, low, high = table[active], low[active], high[active]
    segments = table.shape[0]
    sampling, order, trie, weight, least, row, rows = frequent(table, low, high, length, max_depth, budget)
    _, ranks, starts, _ = sampling
    who, segment, _, until = order
    begin, end, deepest, above, child, sibling, root = trie
    exact = rows.shape[0] == 0
    # A slot more than the frontier has: for the newcomer.
    token, count, node = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    depth, parent = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    # frontier[:waiting] are the waiting nodes' slots, the best last; free[waiting:] are the unused ones.
    frontier, free = np.empty(budget + 1, np.int64), np.arange(budget + 1)
    emitted_node = np.empty(budget, np.int64)
    waiting, emitted = 0, 0
    here, below = root, np.int64(0)
    while emitted < budget:
        # A node goes on as one until its deepest level.
        along = below < deepest[here]
        c = here if along else child[here]
        left = budget - emitted
        while c >= 0 and below < max_depth:
            slot = free[waiting]
            if exact:
                count[slot] = weight[c]
            else:
                count[slot] = rows[row[c] + below - deepest[above[c]], COUNT] if row[c] >= 0 else 0
            if below < deepest[c] and count[slot] >= (count[frontier[0]] if waiting == left else least):
                s = segment[begin[c]]
                token[slot] = token_of(table, s, code_at(table, s, starts[who[begin[c]]] + below))
                node[slot], depth[slot], parent[slot] = c, below + 1, emitted - 1
                place = _place(frontier, waiting, count, token, depth, parent, slot)
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
        emitted_node[emitted] = node[slot]
        here, below = node[slot], depth[slot]
        emitted += 1
    # Row 0 is the root, row r + 1 the emitted node r.
    whole_low, whole_high = np.empty((emitted + 1, segments), np.int64), np.empty((emitted + 1, segments), np.int64)
    seen = np.zeros((emitted + 1, segments), np.int64)
    whole_low[0], whole_high[0] = low, high
    for r in range(emitted):
        c = emitted_node[r]
        for s in range(segments):
            if exact:
                i, j = until[s, begin[c]], until[s, end[c]]
                whole_low[r + 1, s] = ranks[i] if i < j else 0
                whole_high[r + 1, s] = ranks[j - 1] + 1 if i < j else 0
            else:
                at = row[c] + depths[r] - 1 - deepest[above[c]]
                whole_low[r + 1, s], whole_high[r + 1, s] = rows[at, LOWS + s], rows[at, LOWS + segments + s]
            seen[parents[r] + 1, s] += whole_high[r + 1, s] - whole_low[r + 1, s]
    for r in range(emitted + 1):
        below = np.int64(0) if r == 0 else depths[r - 1]
        if below < max_depth and has_more(table, whole_low[r], whole_high[r], length + below, seen[r]):
            return emitted, True
    return emitted, False


@compiled
def all_above(table, low, high, length, max_depth, threshold, tokens, parents, counts, depths, node_low, node_high):
    """Emit every trie node whose count reaches the threshold, breadth first; returns (number, whether all nodes).

    Mutates the output rows [room] and the intervals [room, S]. The number is -1 where the room does not suffice.
    """
    room = tokens.shape[0]
    unused = np.empty(0, np.int64)
    scratch = children_scratch(table.shape[0])
    seen = np.empty(table.shape[0], np.int64)
    emitted, row, whole = 0, -1, True
    while row < emitted:
        depth = np.int64(0) if row < 0 else depths[row]
        if depth < max_depth:
            here, there = (low, high) if row < 0 else (node_low[row], node_high[row])
            number = children(
                table, here, there, length + depth, threshold, ABOVE_ALL, room - emitted, False,
                tokens[emitted:], counts[emitted:], unused, node_low[emitted:], node_high[emitted:], scratch,
            )  # fmt: skip
            if number < 0:
                return -1, False
            parents[emitted : emitted + number] = row
            depths[emitted : emitted + number] = depth + 1
            if whole:
                for s in range(table.shape[0]):
                    seen[s] = (node_high[emitted : emitted + number, s] - node_low[emitted : emitted + number, s]).sum()
                whole = not has_more(table, here, there, length + depth, seen)
            emitted += number
        row += 1
    return emitted, whole


@compiled
def count_nodes(table, low, high, length, tokens, parents, depths, counts, node_low, node_high):
    """Fill counts [n] for trie nodes given in topological order; node_low and node_high [n, S] are scratch."""
    for row in range(tokens.shape[0]):
        parent = parents[row]
        for s in range(table.shape[0]):
            left = low[s] if parent < 0 else node_low[parent, s]
            right = high[s] if parent < 0 else node_high[parent, s]
            code = code_of(table, s, tokens[row]) if left < right else np.int64(0)
            offset = length + depths[row] - 1
            node_low[row, s] = edge(table, s, left, right, offset, code) if code else right
            node_high[row, s] = edge(table, s, node_low[row, s], right, offset, code + 1) if code else right
            counts[row] += node_high[row, s] - node_low[row, s]
