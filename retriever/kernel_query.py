"""A whole query in one compiled call: the longest match, its intervals, and the walk that suits them.

Between two compiled calls Python costs more than either: a query comes when the caches are another process's, and there each
call takes its arguments apart in tens of microseconds, a third of a query's time over a small index.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_joined import best_of_several
from retriever.kernel_match import intervals, longest_match, match_of_one
from retriever.kernel_single import best_of_one
from retriever.kernel_table import compiled
from retriever.kernel_trie import best_first

ID_BITS = 32


@compiled
def continuations(table, tokens, max_suffix, min_suffix, max_depth, rows):
    """The longest continued suffix of tokens (int64 [m]) and the trie below it, best first: (length of the match, its
    occurrences, nodes, whether there are more).

    Mutates rows, int64 [4, budget]: tokens, parents, counts and depths of the nodes. All four are 0 on a miss; the length is
    -1 where one of the last `max_suffix` tokens is no id, outside [0, 2^32).
    """
    for place in range(max(0, tokens.shape[0] - max_suffix), tokens.shape[0]):
        if tokens[place] >> ID_BITS != 0:
            return -1, 0, 0, False
    budget = rows.shape[1]
    ids, parents, counts, depths = rows[0], rows[1], rows[2], rows[3]
    low, high = np.zeros(table.shape[0], np.int64), np.zeros(table.shape[0], np.int64)
    only = 0
    if table.shape[0] == 1:
        length, offset, low[0], high[0] = match_of_one(table, tokens, max_suffix, min_suffix)
        found, matching = high[0] - low[0], 1
    else:
        length = offset = longest_match(table, tokens, max_suffix, min_suffix)
        found, matching = intervals(table, tokens, length, low, high) if length > 0 else np.int64(0), 0
        for segment in range(table.shape[0]):
            if low[segment] < high[segment]:
                matching += 1
                only = segment
    if length == 0:
        return 0, 0, 0, False
    if matching == 1:
        number, more = best_of_one(
            table[only : only + 1], low[only], high[only], offset, max_depth, budget, ids, parents, counts, depths
        )
    else:
        number, more = best_of_several(table, low, high, offset, max_depth, budget, ids, parents, counts, depths)
    if number < 0:
        number, more = best_first(table, low, high, offset, max_depth, budget, ids, parents, counts, depths)
    return length, found, number, more
