"""The compiled search: longest continued suffix, and its interval in each segment's suffix array.

An *interval* is a half-open range of ranks in one segment's suffix array.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_table import ABOVE_ALL, ENTRIES, code_at, code_of, compiled, suffix_start


@compiled
def _bound(table, segment, pattern, begin, bound):
    """First rank whose suffix is not below pattern[begin:] followed by the code `bound`, and whether it starts with it.

    Manber and Myers' descent (SIAM J. Comput. 1993) without the LCP table: both ends' common prefixes are carried.
    """
    length = pattern.shape[0] - begin
    left, right = np.int64(0), table[segment, ENTRIES]
    left_common, right_common = 0, 0
    matches = False
    while left < right:
        middle = (left + right) >> 1
        at = suffix_start(table, segment, middle)
        k = min(left_common, right_common)
        code = code_at(table, segment, at + k)
        while k < length and code == pattern[begin + k]:
            k += 1
            code = code_at(table, segment, at + k)
        if (code < bound) if k == length else (code < pattern[begin + k]):
            left, left_common = middle + 1, k
        else:
            right, right_common, matches = middle, k, k == length
    return left, matches


@compiled
def _pattern(table, segment, tokens, limit):
    """Codes of the last tokens, as many as the segment can hold and `limit` allows."""
    first = tokens.shape[0]
    stop = max(np.int64(0), tokens.shape[0] - limit)
    codes = np.empty(tokens.shape[0] - stop, np.int64)
    while first > stop:
        code = code_of(table, segment, tokens[first - 1])
        if code == 0:
            break
        first -= 1
        codes[first - stop] = code
    return codes[first - stop :]


@compiled
def longest_match(table, tokens, max_suffix, min_suffix):
    """Length of the longest suffix of tokens (int64 [m]) that some segment continues; 0 below min_suffix.

    "Continues": occurs with at least one further token in its document. A suffix of such a suffix is one too, so the
    length is found by doubling and bisection.
    """
    best = np.int64(min_suffix - 1)
    for segment in range(table.shape[0]):
        pattern = _pattern(table, segment, tokens, max_suffix)
        limit = pattern.shape[0]
        refuted = limit + 1
        step = 1
        while best + 1 < refuted:
            length = min(best + step, refuted - 1) if step > 0 else (best + refuted) >> 1
            if _bound(table, segment, pattern, limit - length, 1)[1]:
                best = length
                step <<= 1
            else:
                refuted = length
                step = 0
    return best if best >= min_suffix else np.int64(0)


@compiled
def intervals(table, tokens, length, low, high):
    """Fill low, high (int64 [S]) with the ranks of the last `length` tokens' continued occurrences; their number."""
    total = np.int64(0)
    for segment in range(table.shape[0]):
        low[segment] = 0
        high[segment] = 0
        pattern = _pattern(table, segment, tokens, length)
        if pattern.shape[0] == length:
            first, matches = _bound(table, segment, pattern, 0, 1)
            if matches:
                low[segment] = first
                high[segment] = _bound(table, segment, pattern, 0, ABOVE_ALL)[0]
                total += high[segment] - first
    return total
