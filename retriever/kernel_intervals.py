"""The intervals of trie nodes that samples hit, by search between the samples around them, for many nodes together.

One search waits for memory at every step; hundreds of them, step by step side by side, wait for little more than the memory's
bandwidth. A node is given up as soon as it cannot be frequent enough any more.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_table import CODES, WIDTH, code_at, code_from, code_of, compiled, put_code, suffix_start, token_of

# Columns of a row: a node of the samples' trie and one of its depths, its count, then the S beginnings and S ends of its
# interval.
NODE, DEPTH, COUNT, LOWS = range(4)
# Columns of a search: for which row, which bound of its interval, between which ranks, how many of the node's codes count, and
# the next search of its group, -1 for none. Of the first of a group, for all that look at the same suffixes: the segment, the
# address of the nodes' codes, how many of them all suffixes between the ranks share, how many codes the deepest has, which
# search is at its turn, and where the suffix that it looks at continues.
ROW, BOUND, LEFT, RIGHT, CODES_OF, NEXT, SEGMENT, PATH, SHARED, DEEPEST, TURN, PLACE, COLUMNS = range(13)


@compiled
def _add(searches, at, lead, row, s, bound, left, right, path, shared, depth):
    """Put a search in, alone or, where lead >= 0, into the group that this search is the first of."""
    searches[at, ROW], searches[at, BOUND], searches[at, CODES_OF] = row, bound, depth
    searches[at, LEFT], searches[at, RIGHT] = left, right
    searches[at, NEXT] = -1
    searches[at, SEGMENT], searches[at, PATH], searches[at, SHARED], searches[at, DEEPEST] = s, path, shared, depth
    if lead >= 0:
        searches[at, NEXT] = searches[lead, NEXT]
        searches[lead, NEXT] = at
        searches[lead, DEEPEST] = max(searches[lead, DEEPEST], depth)


@compiled
def _translated(table, one, start, s, begin, end, path):
    """Write another segment's codes begin to end of a continuation as segment s has them to an address; whether it has them."""
    for k in range(begin, end):
        code = code_of(table, s, token_of(table, one, code_at(table, one, start + k)))
        if code == 0:
            return False
        put_code(path, table[s, WIDTH], k, code)
    return True


@compiled
def measure(table, sampling, order, trie, length, rows, which, number, least):
    """Fill in COUNT and the intervals of rows[which[:number]], whose NODE of the samples' trie and DEPTH >= 1 are given.

    A row whose count is below `least` gets the count 0 and no interval. Mutates rows (int64 [*, LOWS + 2 S]).
    """
    starts_at, ranks, starts, shared = sampling
    who, segment, _, until = order
    begins, ends = trie[0], trie[1]
    segments = table.shape[0]
    searches = np.empty((2 * segments * number, COLUMNS), np.int64)
    # The first search before and after each sample, and all such.
    before, after = np.full(ranks.shape[0], -1), np.full(ranks.shape[0], -1)
    groups, leads = np.empty(2 * segments * number, np.int64), 0
    # Paths of nodes in segments where no sample hits them; a code has four bytes at most.
    deepest = np.int64(0)
    if segments > 1:
        for turn in range(number):
            deepest = max(deepest, rows[which[turn], DEPTH])
    paths = np.empty((segments * number, deepest), np.uint32)
    written, asked = 0, 0
    for turn in range(number):
        row = which[turn]
        node, depth = rows[row, NODE], rows[row, DEPTH]
        begin, stop = begins[node], ends[node]
        total = np.int64(0)
        for s in range(segments):
            base, width = table[s, CODES], table[s, WIDTH]
            i, j = until[s, begin], until[s, stop]
            low, high = ranks[min(i, starts_at[s + 1] - 1)], ranks[j - 1] + 1
            if i < j:
                if i > starts_at[s] and ranks[i - 1] + 1 < ranks[i]:
                    if before[i] < 0:
                        groups[leads] = asked
                        leads += 1
                    path = base + width * starts[i]
                    first = ranks[i - 1] + 1
                    _add(searches, asked, before[i], row, s, LOWS + s, first, low, path, shared[i - 1], depth)
                    before[i] = asked if before[i] < 0 else before[i]
                    low = first
                    asked += 1
                if j < starts_at[s + 1] and high < ranks[j]:
                    if after[j] < 0:
                        groups[leads] = asked
                        leads += 1
                    path = base + width * starts[j - 1]
                    bound = LOWS + segments + s
                    _add(searches, asked, after[j], row, s, bound, high, ranks[j], path, shared[j - 1], depth)
                    after[j] = asked if after[j] < 0 else after[j]
                    high = ranks[j]
                    asked += 1
            else:
                high = low
                if starts_at[s] < i < starts_at[s + 1] and ranks[i - 1] + 1 < ranks[i]:
                    path = paths.ctypes.data + 4 * deepest * written
                    known = shared[i - 1]
                    if _translated(table, segment[begin], starts[who[begin]], s, known, depth, path):
                        written += 1
                        low = ranks[i - 1] + 1
                        for bound in (LOWS + s, LOWS + segments + s):
                            groups[leads] = asked
                            leads += 1
                            _add(searches, asked, -1, row, s, bound, low, high, path, known, depth)
                            asked += 1
            rows[row, LOWS + s], rows[row, LOWS + segments + s] = low, high
            total += high - low
        rows[row, COUNT] = total
    _search(table, length, searches, groups[:leads], paths, rows, least)
    for turn in range(number):
        if rows[which[turn], COUNT] < least:
            rows[which[turn], COUNT] = 0


@compiled
def _next_turn(table, searches, i, rows, least):
    """Choose which search of a group takes its turn, and have its rank on its way; whether there is one left."""
    turn = i
    while turn >= 0 and (
        searches[turn, LEFT] >= searches[turn, RIGHT] or rows[searches[turn, ROW], COUNT] < least
    ):  # fmt: skip
        turn = searches[turn, NEXT]
    if turn < 0:
        return False
    searches[i, TURN] = turn
    fetch_rank(table, searches[i, SEGMENT], (searches[turn, LEFT] + searches[turn, RIGHT]) >> 1)
    return True


@compiled
def _search(table, length, searches, groups, paths, rows, least):
    """Narrow the rows' intervals, and their counts with them; leave off where a count falls below `least`.

    paths is what addresses in `searches` may point into: passed, it lives until this returns.
    """
    ends = LOWS + table.shape[0]
    live = np.empty(groups.shape[0], np.int64)
    remaining = 0
    for i in groups:
        if _next_turn(table, searches, i, rows, least):
            live[remaining] = i
            remaining += 1
    while remaining > 0:
        for one in range(remaining):
            i = live[one]
            turn, s = searches[i, TURN], searches[i, SEGMENT]
            place = suffix_start(table, s, (searches[turn, LEFT] + searches[turn, RIGHT]) >> 1) + length
            searches[i, PLACE] = table[s, CODES] + table[s, WIDTH] * place
            fetch_place(searches[i, PLACE], table[s, WIDTH], searches[i, SHARED])
        kept = 0
        for one in range(remaining):
            i = live[one]
            turn, place, path = searches[i, TURN], searches[i, PLACE], searches[i, PATH]
            width = table[searches[i, SEGMENT], WIDTH]
            middle = (searches[turn, LEFT] + searches[turn, RIGHT]) >> 1
            k, deepest = searches[i, SHARED], searches[i, DEEPEST]
            code, wanted = np.int64(0), np.int64(0)
            while k < deepest:
                code, wanted = code_from(place, width, k), code_from(path, width, k)
                if code != wanted:
                    break
                k += 1
            turn = i
            while turn >= 0:
                row, bound = searches[turn, ROW], searches[turn, BOUND]
                # What begins as the path does is not before the interval's end.
                if bound >= ends if k >= searches[turn, CODES_OF] else code < wanted:
                    if middle >= searches[turn, LEFT]:
                        searches[turn, LEFT] = middle + 1
                        if bound < ends:
                            rows[row, COUNT] -= middle + 1 - rows[row, bound]
                            rows[row, bound] = middle + 1
                elif middle < searches[turn, RIGHT]:
                    searches[turn, RIGHT] = middle
                    if bound >= ends:
                        rows[row, COUNT] -= rows[row, bound] - middle
                        rows[row, bound] = middle
                turn = searches[turn, NEXT]
            if _next_turn(table, searches, i, rows, least):
                live[kept] = i
                kept += 1
        remaining = kept
