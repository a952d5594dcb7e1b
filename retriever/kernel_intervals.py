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
# Columns of a search: for which row, in which segment, which bound of its interval, between which ranks, the address of the
# node's codes, how many of them all suffixes between the ranks share, how many there are, and where the suffix that it looks
# at continues.
ROW, SEGMENT, BOUND, LEFT, RIGHT, PATH, SHARED, DEPTH_OF, PLACE, COLUMNS = range(10)


@compiled
def _add(searches, at, row, s, bound, left, right, path, shared, depth):
    search = searches[at]
    search[ROW], search[SEGMENT], search[BOUND] = row, s, bound
    search[LEFT], search[RIGHT] = left, right
    search[PATH], search[SHARED], search[DEPTH_OF] = path, shared, depth


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
    # Paths of nodes in segments where no sample hits them; a code has four bytes at most.
    deepest = np.int64(0)
    if segments > 1:
        for turn in range(number):
            deepest = max(deepest, rows[which[turn], DEPTH])
    paths = np.empty((segments * number, deepest), np.uint32)
    written, asked = 0, 0
    for turn in range(number):
        row = rows[which[turn]]
        depth, begin, stop = row[DEPTH], begins[row[NODE]], ends[row[NODE]]
        total = np.int64(0)
        for s in range(segments):
            base, width = table[s, CODES], table[s, WIDTH]
            i, j = until[s, begin], until[s, stop]
            low, high = ranks[min(i, starts_at[s + 1] - 1)], ranks[j - 1] + 1
            if i < j:
                if i > starts_at[s] and ranks[i - 1] + 1 < ranks[i]:
                    low = ranks[i - 1] + 1
                    path = base + width * starts[i]
                    _add(searches, asked, which[turn], s, LOWS + s, low, ranks[i], path, shared[i - 1], depth)
                    asked += 1
                if j < starts_at[s + 1] and ranks[j - 1] + 1 < ranks[j]:
                    high = ranks[j]
                    path = base + width * starts[j - 1]
                    before = ranks[j - 1] + 1
                    _add(searches, asked, which[turn], s, LOWS + segments + s, before, high, path, shared[j - 1], depth)
                    asked += 1
            else:
                high = low
                if starts_at[s] < i < starts_at[s + 1] and ranks[i - 1] + 1 < ranks[i]:
                    path = paths.ctypes.data + 4 * deepest * written
                    known = shared[i - 1]
                    if _translated(table, segment[begin], starts[who[begin]], s, known, depth, path):
                        written += 1
                        low = ranks[i - 1] + 1
                        _add(searches, asked, which[turn], s, LOWS + s, low, high, path, known, depth)
                        _add(searches, asked + 1, which[turn], s, LOWS + segments + s, low, high, path, known, depth)
                        asked += 2
            row[LOWS + s], row[LOWS + segments + s] = low, high
            total += high - low
        row[COUNT] = total
    _search(table, length, searches, asked, paths, rows, least)
    for turn in range(number):
        if rows[which[turn], COUNT] < least:
            rows[which[turn], COUNT] = 0


@compiled
def _search(table, length, searches, number, paths, rows, least):
    """Narrow the rows' intervals, and their counts with them; leave off where a count falls below `least`.

    paths is what addresses in `searches` may point into: passed, it lives until this returns.
    """
    ends = LOWS + table.shape[0]
    live = np.empty(number, np.int64)
    remaining = 0
    for i in range(number):
        if rows[searches[i, ROW], COUNT] >= least:
            live[remaining] = i
            remaining += 1
            fetch_rank(table, searches[i, SEGMENT], (searches[i, LEFT] + searches[i, RIGHT]) >> 1)
    while remaining > 0:
        for turn in range(remaining):
            search = searches[live[turn]]
            s = search[SEGMENT]
            search[PLACE] = suffix_start(table, s, (search[LEFT] + search[RIGHT]) >> 1) + length
            fetch_place(table[s, CODES], table[s, WIDTH], search[PLACE] + search[SHARED])
        kept = 0
        for turn in range(remaining):
            i = live[turn]
            search, row = searches[i], rows[searches[i, ROW]]
            s, bound = search[SEGMENT], search[BOUND]
            width = table[s, WIDTH]
            place, path = table[s, CODES] + width * search[PLACE], search[PATH]
            middle = (search[LEFT] + search[RIGHT]) >> 1
            k, depth = search[SHARED], search[DEPTH_OF]
            # What begins as the path does is not before the interval's end.
            before = bound >= ends
            while k < depth:
                code, wanted = code_from(place, width, k), code_from(path, width, k)
                if code != wanted:
                    before = code < wanted
                    break
                k += 1
            if before:
                search[LEFT] = middle + 1
                if bound < ends:
                    row[COUNT] -= middle + 1 - row[bound]
                    row[bound] = middle + 1
            else:
                search[RIGHT] = middle
                if bound >= ends:
                    row[COUNT] -= row[bound] - middle
                    row[bound] = middle
            if search[LEFT] < search[RIGHT] and row[COUNT] >= least:
                fetch_rank(table, s, (search[LEFT] + search[RIGHT]) >> 1)
                live[kept] = i
                kept += 1
        remaining = kept
