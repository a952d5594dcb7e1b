"""The compiled walk: continuation tries below the intervals of a match, over all segments at once.

A trie node is one interval per segment, and its count is the sum of their sizes. Declared order: see `trie.py`.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import edge, fetch_codes, is_shorter, probe
from retriever.kernel_table import ABOVE_ALL, code_at, code_of, compiled, suffix_start
from retriever.signposts import SPACING_BITS

# Intervals up to this many entries are walked child by child; larger ones are first probed about PROBES times.
SMALL_INTERVAL = 64
PROBES = 32
COARSE = 1 << SPACING_BITS


@compiled
def _visit(
    table, low, high, offset, threshold, ceiling, limit, ranked, token, count, order, child_low, child_high, scratch
):
    """Write a node's children with counts in [threshold, ceiling]; returns (number, whether none is below the threshold).

    Every child of `threshold` or more has a run of at least ceil(threshold / S) in some segment, so probing the multiples
    of that stride hits it; its runs elsewhere are then looked up. `order` ranks the slots by descending count, then
    ascending token, and keeps the first `limit`; unranked, slots stay in token order and `limit` is only room. Mutates
    scratch (int64 [5, S]).
    """
    segments = table.shape[0]
    active = np.int64(0)
    unseen = np.int64(0)
    left, at, current, run_low, run_high = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4]
    for s in range(segments):
        left[s] = low[s]
        if left[s] < high[s]:
            if high[s] - left[s] <= SMALL_INTERVAL:
                fetch_codes(table, s, left[s], high[s], 1, offset)
            left[s] = edge(table, s, left[s], high[s], offset, 1)
            active += left[s] < high[s]
            unseen += high[s] - left[s]
    stride = max(np.int64(1), (threshold + active - 1) // max(active, np.int64(1)))
    if stride >= COARSE:
        # Multiples of this are signposts.
        stride &= -COARSE
    for s in range(segments):
        at[s] = (left[s] + stride - 1) // stride * stride
        if stride > 1:
            fetch_codes(table, s, at[s], min(high[s], at[s] + PROBES * stride), stride, offset)
        current[s] = probe(table, s, at[s], high[s], offset)
    kept = 0
    while True:
        smallest = ABOVE_ALL
        for s in range(segments):
            smallest = min(smallest, current[s])
        if smallest == ABOVE_ALL:
            break
        total = np.int64(0)
        if active == 1 and stride > 1:
            # One segment decides alone, so a run that is too short need not be measured.
            least = max(threshold, count[order[kept - 1]] + 1) if ranked and kept == limit else threshold
            short = False
            for s in range(segments):
                if current[s] == smallest:
                    code = code_of(table, s, smallest)
                    short = is_shorter(table, s, left[s], high[s], offset, at[s], code, least)
                    if short:
                        left[s] = at[s] + 1
                        at[s] = (left[s] + stride - 1) // stride * stride
                        current[s] = probe(table, s, at[s], high[s], offset)
            if short:
                continue
        for s in range(segments):
            run_low[s] = 0
            run_high[s] = 0
            code = code_of(table, s, smallest) if left[s] < high[s] else np.int64(0)
            if code == 0:
                continue
            if current[s] == smallest:
                run_low[s] = left[s] if stride == 1 else edge(table, s, left[s], at[s], offset, code)
                run_high[s] = edge(table, s, at[s] + 1, high[s], offset, code + 1)
            elif stride > 1:
                run_low[s] = edge(table, s, left[s], min(at[s], high[s]), offset, code)
                run_high[s] = edge(table, s, run_low[s], min(at[s], high[s]), offset, code + 1)
            else:
                continue
            left[s] = run_high[s]
            total += run_high[s] - run_low[s]
            at[s] = (left[s] + stride - 1) // stride * stride
            current[s] = probe(table, s, at[s], high[s], offset)
        if not ranked and kept == limit and total >= threshold:
            return -1, False
        if total > ceiling:
            unseen -= total
            continue
        if total < threshold or (ranked and kept == limit and total <= count[order[kept - 1]]):
            continue
        unseen -= total
        if ranked and kept == limit:
            slot = order[kept - 1]
            unseen += count[slot]
            kept -= 1
        else:
            slot = kept
        token[slot] = smallest
        count[slot] = total
        child_low[slot] = run_low
        child_high[slot] = run_high
        place = kept
        while ranked and place > 0 and count[order[place - 1]] < total:
            order[place] = order[place - 1]
            place -= 1
        if ranked:
            order[place] = slot
        kept += 1
    return kept, unseen == 0


@compiled
def _continues(table, low, high, offset):
    for s in range(table.shape[0]):
        if low[s] < high[s] and code_at(table, s, suffix_start(table, s, high[s] - 1) + offset) != 0:
            return True
    return False


@compiled
def _place(order, waiting, count, token, depth, parent, new_count, new_token, new_depth, new_parent):
    """Where a newcomer stands among the waiting nodes: (count down, token up, depth up, parent row up)."""
    place = waiting
    while place > 0:
        other = order[place - 1]
        if count[other] != new_count:
            before = count[other] > new_count
        elif token[other] != new_token:
            before = token[other] < new_token
        elif depth[other] != new_depth:
            before = depth[other] < new_depth
        else:
            before = parent[other] < new_parent
        if before:
            break
        place -= 1
    return place


@compiled
def best_first(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """Emit up to `budget` trie nodes below the intervals, best first; returns (number, truncated).

    Mutates the four output rows [budget]. Children are looked up lazily: an emitted node leaves a *rest*, the bound
    that its children not yet in the frontier cannot exceed. A waiting node is emitted only once no rest could hold a
    node ahead of it, and the frontier keeps no more nodes than can still be emitted; so the answer is exact, and the long
    tail of rare children is never walked unless it is needed.
    """
    segments = table.shape[0]
    token = np.empty(budget, np.int64)
    count = np.empty(budget, np.int64)
    depth = np.empty(budget, np.int64)
    parent = np.empty(budget, np.int64)
    node_low = np.empty((budget, segments), np.int64)
    node_high = np.empty((budget, segments), np.int64)
    # order[:waiting] are the frontier's slots, best first; free[waiting:] are the unused ones.
    order = np.empty(budget, np.int64)
    free = np.arange(budget)
    child_token = np.empty(budget, np.int64)
    child_count = np.empty(budget, np.int64)
    child_order = np.empty(budget, np.int64)
    child_low = np.empty((budget, segments), np.int64)
    child_high = np.empty((budget, segments), np.int64)
    scratch = np.empty((5, segments), np.int64)
    # Rests, in no order. A rest whose children are all waiting, or can no longer be emitted, has bound 0.
    rest_bound = np.zeros(budget + 1, np.int64)
    rest_depth = np.empty(budget + 1, np.int64)
    rest_row = np.empty(budget + 1, np.int64)
    rest_low = np.empty((budget + 1, segments), np.int64)
    rest_high = np.empty((budget + 1, segments), np.int64)
    rest_low[0] = low
    rest_high[0] = high
    rest_depth[0] = 0
    rest_row[0] = -1
    for s in range(segments):
        rest_bound[0] += high[s] - low[s]
    rests, waiting, emitted, truncated = 1, 0, 0, False
    while emitted < budget:
        room = budget - emitted
        r = 0
        for i in range(1, rests):
            if rest_bound[i] > rest_bound[r]:
                r = i
        bound = rest_bound[r]
        floor = count[order[room - 1]] if waiting >= room else np.int64(1)
        if 0 < bound < floor:
            rest_bound[r] = 0
            truncated = True
            continue
        if bound > 0 and (waiting == 0 or bound >= count[order[0]]):
            threshold = floor if bound <= SMALL_INTERVAL else max(floor, bound // PROBES)
            number, whole = _visit(
                table, rest_low[r], rest_high[r], length + rest_depth[r], threshold, bound, room, True,
                child_token, child_count, child_order, child_low, child_high, scratch,
            )  # fmt: skip
            rest_bound[r] = 0 if whole or number == room else threshold - 1
            truncated = truncated or (not whole and rest_bound[r] == 0)
            for i in range(number):
                c = child_order[i]
                place = _place(
                    order, waiting, count, token, depth, parent,
                    child_count[c], child_token[c], rest_depth[r] + 1, rest_row[r],
                )  # fmt: skip
                if place >= room:
                    truncated = True
                    break
                if waiting == room:
                    truncated = True
                    waiting -= 1
                    free[waiting] = order[waiting]
                slot = free[waiting]
                for j in range(waiting, place, -1):
                    order[j] = order[j - 1]
                order[place] = slot
                waiting += 1
                token[slot] = child_token[c]
                count[slot] = child_count[c]
                depth[slot] = rest_depth[r] + 1
                parent[slot] = rest_row[r]
                node_low[slot] = child_low[c]
                node_high[slot] = child_high[c]
            continue
        if waiting == 0:
            return emitted, truncated
        slot = order[0]
        waiting -= 1
        free[waiting] = slot
        for j in range(waiting):
            order[j] = order[j + 1]
        tokens[emitted] = token[slot]
        parents[emitted] = parent[slot]
        counts[emitted] = count[slot]
        depths[emitted] = depth[slot]
        if depth[slot] < max_depth and _continues(table, node_low[slot], node_high[slot], length + depth[slot]):
            rest_low[rests] = node_low[slot]
            rest_high[rests] = node_high[slot]
            rest_depth[rests] = depth[slot]
            rest_row[rests] = emitted
            rest_bound[rests] = count[slot]
            rests += 1
        emitted += 1
    for i in range(rests):
        truncated = truncated or rest_bound[i] > 0
    return emitted, truncated


@compiled
def all_above(table, low, high, length, max_depth, threshold, tokens, parents, counts, depths, node_low, node_high):
    """Emit every trie node whose count reaches the threshold, breadth first; returns (number, whether all nodes).

    Mutates the output rows [room] and the intervals [room, S]. The number is -1 where the room does not suffice.
    """
    room = tokens.shape[0]
    unused = np.empty(0, np.int64)
    scratch = np.empty((5, table.shape[0]), np.int64)
    emitted, row, whole = 0, -1, True
    while row < emitted:
        depth = np.int64(0) if row < 0 else depths[row]
        if depth < max_depth:
            number, complete = _visit(
                table, low if row < 0 else node_low[row], high if row < 0 else node_high[row], length + depth,
                threshold, ABOVE_ALL, room - emitted, False,
                tokens[emitted:], counts[emitted:], unused, node_low[emitted:], node_high[emitted:], scratch,
            )  # fmt: skip
            if number < 0:
                return -1, False
            parents[emitted : emitted + number] = row
            depths[emitted : emitted + number] = depth + 1
            emitted += number
            whole = whole and complete
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
