"""The compiled walk: continuation tries below the intervals of a match, over all segments at once.

A trie node is one interval per segment, and its count is the sum of their sizes. Declared order: see `trie.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_children import children, children_scratch, has_more
from retriever.kernel_frontier import COUNT, DEPTH, NODE_COLUMNS, PARENT, TOKEN, enter
from retriever.kernel_ranks import edge
from retriever.kernel_table import ABOVE_ALL, code_of, compiled

# Nodes up to this count are looked through at once.
SMALL_NODE = 64
# The first level is the matches over this often the budget, and every further one this fraction of the last.
FIRST_LEVEL, NEXT_LEVEL = 4, 2


@compiled
def best_first(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """Emit up to `budget` trie nodes below the intervals, best first; returns (number, truncated).

    Mutates the four output rows [budget]. For what `best_of_one` and `best_of_several` do not answer, sooner.

    Children are looked for by *level*, a count: an emitted node puts those that reach it into the frontier and leaves a
    *rest*, the bound that its other children cannot exceed. A waiting node is emitted only once no rest could hold a node
    ahead of it or level with it; when none is, the level falls and the rests are looked at again. The frontier keeps no
    more nodes than can still be emitted, and none is looked for that would come after them. So the answer is exact, and the
    long tail of rare children is never walked unless it is needed.
    """
    segments = table.shape[0]
    # Of the nodes in the frontier's rows, their intervals.
    rows = np.empty((budget + 1, NODE_COLUMNS), np.int64)
    node_low = np.empty((budget + 1, segments), np.int64)
    node_high = np.empty((budget + 1, segments), np.int64)
    frontier, free = np.empty(budget + 1, np.int64), np.arange(budget + 1)
    child_token = np.empty(budget, np.int64)
    child_count = np.empty(budget, np.int64)
    child_order = np.empty(budget, np.int64)
    child_low = np.empty((budget, segments), np.int64)
    child_high = np.empty((budget, segments), np.int64)
    scratch = children_scratch(segments)
    # Row 0 is the root, row r + 1 the emitted node r. bound: no child that has not been in the frontier has a higher count.
    bound = np.zeros(budget + 1, np.int64)
    seen = np.zeros((budget + 1, segments), np.int64)
    whole_low = np.empty((budget + 1, segments), np.int64)
    whole_high = np.empty((budget + 1, segments), np.int64)
    whole_low[0] = low
    whole_high[0] = high
    for s in range(segments):
        bound[0] += high[s] - low[s]
    level = max(np.int64(1), bound[0] // (FIRST_LEVEL * budget))
    waiting, emitted, first, end = 0, 0, 0, 1
    while emitted < budget:
        # Rows first to end are those to look at: the last emitted one, or all of them after the level fell.
        for r in range(first, end):
            room = budget - emitted
            floor = rows[frontier[0], COUNT] if waiting == room else np.int64(1)
            threshold = floor if bound[r] <= SMALL_NODE else max(floor, level)
            if bound[r] < threshold:
                continue
            below = np.int64(0) if r == 0 else depths[r - 1]
            number = children(
                table, whole_low[r], whole_high[r], length + below, threshold, bound[r], room, True,
                child_token, child_count, child_order, child_low, child_high, scratch,
            )  # fmt: skip
            bound[r] = threshold - 1 if threshold > floor else 0
            for i in range(number):
                c = child_order[i]
                row = free[waiting]
                rows[row, COUNT], rows[row, TOKEN] = child_count[c], child_token[c]
                rows[row, DEPTH], rows[row, PARENT] = below + 1, r - 1
                node_low[row] = child_low[c]
                node_high[row] = child_high[c]
                entered = enter(rows, frontier, free, waiting, room)
                if entered < 0:
                    break
                waiting = entered
        ahead = rows[frontier[waiting - 1], COUNT] if waiting > 0 else np.int64(0)
        if ahead < level:
            rest = bound[: emitted + 1].max()
            if rest > 0 and ahead <= rest:
                while level > rest:
                    level = max(np.int64(1), level // NEXT_LEVEL)
                first, end = 0, emitted + 1
                continue
            if waiting == 0:
                break
        waiting -= 1
        row = frontier[waiting]
        free[waiting] = row
        parent = rows[row, PARENT]
        tokens[emitted], parents[emitted] = rows[row, TOKEN], parent
        counts[emitted], depths[emitted] = rows[row, COUNT], rows[row, DEPTH]
        emitted += 1
        for s in range(segments):
            seen[parent + 1, s] += node_high[row, s] - node_low[row, s]
            whole_low[emitted, s] = node_low[row, s]
            whole_high[emitted, s] = node_high[row, s]
        bound[emitted] = counts[emitted - 1] if depths[emitted - 1] < max_depth else 0
        first, end = emitted, emitted + 1
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
