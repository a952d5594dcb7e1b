"""The compiled look at a trie node's children: every one above a count, without walking those below it.

A node is one interval of ranks per segment, and its children are the runs of equal codes at one offset. A run of at
least `stride` ranks covers a multiple of it. So where S segments hold entries, probes ceil(threshold / S) apart hit
every child whose count, the sum of its runs, reaches the threshold; the probes around a run bound its length from both
sides, and only runs whose upper bounds reach the threshold are measured. That takes S * n / threshold probes or a small
multiple, n the node's count, whatever the number of children.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_edges import find_edges
from retriever.kernel_ranks import code_at_rank, fetch_codes
from retriever.kernel_table import ABOVE_ALL, code_at, code_of, compiled, suffix_start, token_of
from retriever.signposts import SPACING_BITS

# Probes a shortest run is hit by: more tell short runs apart without measuring them.
CLOSENESS = 2
# Probes asked for before the first of them is looked at.
AHEAD = 32
# Children measured together.
BATCH = 64
COARSE = 1 << SPACING_BITS
# Rows of a cursor: where a segment's current run could begin at the earliest, its first and last probe, the probe after it,
# its token, the code of the interval's last rank, and how far probes were asked for.
BEFORE, FIRST, LAST, NEXT, TOKEN, END_CODE, FETCHED, CURSOR_ROWS = range(8)


@compiled
def children_scratch(segments):
    """Room that `children` works in, for any node of so many segments."""
    searches = 2 * BATCH * segments
    return (
        np.empty((CURSOR_ROWS, segments), np.int64),
        np.empty(BATCH, np.int64),
        np.empty((5, searches), np.int64),
    )


@compiled
def _next_run(table, s, high, offset, stride, cursor):
    """Move a segment's cursor to its next run of equal probes other than document ends."""
    at = cursor[NEXT, s]
    code = np.int64(0)
    while at < high and code == 0:
        code = code_at_rank(table, s, at, offset)
        cursor[FIRST, s] = at
        if code == cursor[END_CODE, s]:
            # Equal at both ends, equal between: no probe in there, and no search for its end.
            cursor[LAST, s] = high - 1
            at = high
            break
        while True:
            cursor[LAST, s] = at
            at = (at // stride + 1) * stride
            if at >= high:
                # The last rank is a probe too.
                at = high - 1
                break
            if at >= cursor[FETCHED, s]:
                fetched = min(high, at + AHEAD * stride)
                fetch_codes(table, s, at, fetched, stride, offset)
                cursor[FETCHED, s] = fetched
            if code_at_rank(table, s, at, offset) != code:
                break
        if code == 0:
            cursor[BEFORE, s] = cursor[LAST, s] + 1
    cursor[NEXT, s] = at
    if code == 0:
        cursor[TOKEN, s] = ABOVE_ALL
        cursor[FIRST, s] = high
        cursor[BEFORE, s] = high
    else:
        cursor[TOKEN, s] = token_of(table, s, code)


@compiled
def _measure(
    table, offset, threshold, ceiling, limit, ranked, kept, token, count, order, child_low, child_high, held, scratch
):
    """Measure the `held` children that wait in scratch and keep what counts; the new number kept, -1 for no room."""
    segments = table.shape[0]
    _, waiting, searches = scratch
    find_edges(table, searches[0], searches[1], searches[2], searches[3], 2 * held * segments, offset, searches[4])
    for h in range(held):
        total = np.int64(0)
        at = 2 * h * segments
        for s in range(segments):
            total += searches[1, at + 2 * s + 1] - searches[1, at + 2 * s]
        full = kept == limit
        if total < threshold or total > ceiling or (ranked and full and total <= count[order[kept - 1]]):
            continue
        if full and not ranked:
            return -1
        if full:
            kept -= 1
        slot = order[kept] if full else kept
        token[slot] = waiting[h]
        count[slot] = total
        for s in range(segments):
            child_low[slot, s] = searches[1, at + 2 * s]
            child_high[slot, s] = searches[1, at + 2 * s + 1]
        if ranked:
            place = kept
            while place > 0 and count[order[place - 1]] < total:
                order[place] = order[place - 1]
                place -= 1
            order[place] = slot
        kept += 1
    return kept


@compiled
def children(
    table, low, high, offset, threshold, ceiling, limit, ranked, token, count, order, child_low, child_high, scratch
):
    """Write a node's children with counts in [threshold, ceiling]; their number.

    `order` ranks the slots by descending count, then ascending token, and keeps the first `limit`; unranked, slots stay in
    token order, and the number is -1 where there are more than `limit`. Mutates scratch (`children_scratch`).
    """
    segments = table.shape[0]
    cursor, waiting, searches = scratch
    active = np.int64(0)
    for s in range(segments):
        active += low[s] < high[s]
    stride = max(np.int64(1), (threshold + active - 1) // max(active, np.int64(1)) // CLOSENESS)
    if stride >= COARSE:
        # Multiples of this are signposts.
        stride &= -COARSE
    for s in range(segments):
        cursor[BEFORE, s] = low[s]
        cursor[NEXT, s] = low[s]
        if low[s] < high[s]:
            cursor[FETCHED, s] = min(high[s], low[s] + AHEAD * stride)
            fetch_codes(table, s, low[s], cursor[FETCHED, s], stride, offset)
            cursor[END_CODE, s] = code_at(table, s, suffix_start(table, s, high[s] - 1) + offset)
        _next_run(table, s, high[s], offset, stride, cursor)
    kept, held = 0, 0
    while True:
        smallest = ABOVE_ALL
        for s in range(segments):
            smallest = min(smallest, cursor[TOKEN, s])
        if smallest == ABOVE_ALL:
            break
        most = np.int64(0)
        for s in range(segments):
            most += (cursor[NEXT, s] if cursor[TOKEN, s] == smallest else cursor[FIRST, s]) - cursor[BEFORE, s]
        least = max(threshold, count[order[kept - 1]] + 1) if ranked and kept == limit else threshold
        for s in range(segments):
            at = 2 * (held * segments + s)
            hit = cursor[TOKEN, s] == smallest
            if most >= least:
                code = code_of(table, s, smallest) if hit or cursor[BEFORE, s] < cursor[FIRST, s] else np.int64(0)
                searches[0, at] = s
                searches[0, at + 1] = s
                searches[1, at] = cursor[BEFORE, s]
                searches[1, at + 1] = cursor[LAST, s] + 1 if hit else cursor[BEFORE, s]
                searches[2, at] = cursor[FIRST, s] if code else cursor[BEFORE, s]
                searches[2, at + 1] = cursor[NEXT, s] if hit else searches[2, at]
                searches[3, at] = code
                searches[3, at + 1] = code + 1
            if hit:
                cursor[BEFORE, s] = cursor[LAST, s] + 1
                _next_run(table, s, high[s], offset, stride, cursor)
        if most < least:
            continue
        waiting[held] = smallest
        held += 1
        if held == BATCH:
            kept = _measure(
                table, offset, threshold, ceiling, limit, ranked, kept, token, count, order, child_low, child_high,
                held, scratch,
            )  # fmt: skip
            if kept < 0:
                return -1
            held = 0
    return _measure(
        table,
        offset,
        threshold,
        ceiling,
        limit,
        ranked,
        kept,
        token,
        count,
        order,
        child_low,
        child_high,
        held,
        scratch,
    )


@compiled
def has_more(table, low, high, offset, seen):
    """Whether a node has a child beyond those that cover seen[s] of its ranks in each segment.

    Document ends come first in an interval, so they are all that is left exactly if the last rank left is one.
    """
    for s in range(table.shape[0]):
        left = high[s] - low[s] - seen[s]
        if left > 0 and code_at(table, s, suffix_start(table, s, low[s] + left - 1) + offset) != 0:
            return True
    return False
