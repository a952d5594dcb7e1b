"""The compiled search: longest continued suffix, and its interval in each segment's suffix array.

An *interval* is a half-open range of ranks in one segment's suffix array.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import code_at_signpost, fetch_codes, fetch_halves, fetch_ranks
from retriever.kernel_table import (
    ENTRIES,
    SIGNPOST_COUNT,
    SIGNPOST_SPACING_BITS,
    code_at,
    code_of,
    compiled,
    suffix_start,
)

# The first length tried, above the shortest allowed: most contexts of a large index match further, few of a small one do.
FIRST_STEP = 4
# So many occurrences of a match are looked at one by one for how far back they agree with the context.
LOOKED_AT = 32


@compiled
def _first(table, segment, pattern, begin):
    """First rank whose suffix is not below pattern[begin:] and a further code; and whether it starts with these.

    Manber and Myers' descent (SIAM J. Comput. 1993) without the LCP table: both ends' common prefixes are carried. The
    same steps are taken over the signposts and then, between two of them, over the suffix array.
    """
    length = pattern.shape[0] - begin
    left, right = np.int64(0), table[segment, SIGNPOST_COUNT]
    left_common, right_common = 0, 0
    matches = False
    while left < right:
        middle = (left + right) >> 1
        k = min(left_common, right_common)
        code = code_at_signpost(table, segment, middle, k)
        while k < length and code == pattern[begin + k]:
            k += 1
            code = code_at_signpost(table, segment, middle, k)
        if (code == 0) if k == length else (code < pattern[begin + k]):
            left, left_common = middle + 1, k
        else:
            right, right_common, matches = middle, k, k == length
    bits = table[segment, SIGNPOST_SPACING_BITS]
    right = table[segment, ENTRIES] if right == table[segment, SIGNPOST_COUNT] else right << bits
    left = ((left - 1) << bits) + 1 if left > 0 else np.int64(0)
    near = right - left <= np.int64(1) << bits
    if near:
        fetch_ranks(table, segment, left, right)
    while left < right:
        middle = (left + right) >> 1
        at = suffix_start(table, segment, middle)
        k = min(left_common, right_common)
        if near:
            fetch_halves(table, segment, left, middle, right, k)
        code = code_at(table, segment, at + k)
        while k < length and code == pattern[begin + k]:
            k += 1
            code = code_at(table, segment, at + k)
        if (code == 0) if k == length else (code < pattern[begin + k]):
            left, left_common = middle + 1, k
        else:
            right, right_common, matches = middle, k, k == length
    return left, matches


@compiled
def _starts(table, segment, rank, pattern, begin):
    """Whether the suffix at a rank starts with pattern[begin:]."""
    at = suffix_start(table, segment, rank) - begin
    k = begin
    while k < pattern.shape[0] and code_at(table, segment, at + k) == pattern[k]:
        k += 1
    return k == pattern.shape[0]


@compiled
def _end(table, segment, pattern, first):
    """The rank after the last one whose suffix starts with the pattern, as that at `first` does; by doubling."""
    left, right = first + 1, table[segment, ENTRIES]
    step = np.int64(1)
    while left < right:
        probe = min(left + step - 1, right - 1) if step > 0 else (left + right) >> 1
        if _starts(table, segment, probe, pattern, 0):
            left = probe + 1
            step <<= 1
        else:
            right = probe
            step = np.int64(0)
    return left


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
def _furthest(table, segment, pattern, begin, first):
    """The longest match that ends as an occurrence of pattern[begin:] does; and whether all occurrences were looked at.

    The occurrences stand at ranks first, first + 1, ...
    """
    most = pattern.shape[0] - begin
    end = min(first + LOOKED_AT, table[segment, ENTRIES])
    fetch_codes(table, segment, first, end, 1, 0)
    for rank in range(first, end):
        if rank > first and not _starts(table, segment, rank, pattern, begin):
            return most, True
        at = suffix_start(table, segment, rank) - begin
        k = begin
        # A boundary's code equals none of a pattern's.
        while k > 0 and at + k > 0 and code_at(table, segment, at + k - 1) == pattern[k - 1]:
            k -= 1
        most = max(most, pattern.shape[0] - k)
        if k == 0:
            return most, True
    return most, end == table[segment, ENTRIES]


@compiled
def _deepest(table, segment, pattern, best, step):
    """The longest continued suffix of a pattern where it is longer than `best`, else `best`; and the last search that
    succeeded: where its part of the pattern begins, -1 if none did, and the first rank that starts so.

    A suffix of such a suffix is one too, so the length is found by doubling and bisection, and each length found is
    stretched by looking back from its occurrences.
    """
    limit = pattern.shape[0]
    refuted = limit + 1
    begin, start = np.int64(-1), np.int64(0)
    while best + 1 < refuted:
        length = min(best + step, refuted - 1) if step > 0 else (best + refuted) >> 1
        first, matches = _first(table, segment, pattern, limit - length)
        if matches:
            begin, start = limit - length, first
            best, whole = _furthest(table, segment, pattern, begin, first)
            if whole:
                break
            step <<= 1
        else:
            refuted = length
            step = np.int64(0)
    return best, begin, start


@compiled
def longest_match(table, tokens, max_suffix, min_suffix):
    """Length of the longest suffix of tokens (int64 [m]) that some segment continues; 0 below min_suffix.

    "Continues": occurs with at least one further token in its document.
    """
    best = np.int64(min_suffix - 1)
    for segment in range(table.shape[0]):
        # Segments after the first match mostly no further than it.
        step = np.int64(FIRST_STEP if segment == 0 else 1)
        best, _, _ = _deepest(table, segment, _pattern(table, segment, tokens, max_suffix), best, step)
    return best if best >= min_suffix else np.int64(0)


@compiled
def match_of_one(table, tokens, max_suffix, min_suffix):
    """For a table of one segment: (length of the longest match, offset, low, high). All 0 on a miss.

    [low, high) are the ranks of as many suffixes, in the order of what follows the match, as the match has occurrences;
    what follows stands `offset` codes into each. Where the search ended at a shorter suffix whose occurrences were all
    looked at, those that agree with the match serve: another search in cold memory is most of what a rare match costs.
    """
    pattern = _pattern(table, 0, tokens, max_suffix)
    length, begin, first = _deepest(table, 0, pattern, np.int64(min_suffix - 1), np.int64(FIRST_STEP))
    if begin < 0:
        return np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    offset = pattern.shape[0] - begin
    if offset == length:
        return length, offset, first, _end(table, 0, pattern[begin:], first)
    low, high = _agreeing(table, 0, pattern, begin, first, length)
    if low < high:
        return length, offset, low, high
    whole = pattern[pattern.shape[0] - length :]
    low, _ = _first(table, 0, whole, 0)
    return length, length, low, _end(table, 0, whole, low)


@compiled
def _agreeing(table, segment, pattern, begin, first, length):
    """The ranks, of those from `first` on that start with pattern[begin:], whose suffixes the match's other codes precede.

    Empty where these are no neighbours, or too many to look at.
    """
    low, high = np.int64(0), np.int64(0)
    end = min(first + LOOKED_AT, table[segment, ENTRIES])
    for rank in range(first, end):
        if rank > first and not _starts(table, segment, rank, pattern, begin):
            return low, high
        at = suffix_start(table, segment, rank) - begin
        k = begin
        while k > pattern.shape[0] - length and at + k > 0 and code_at(table, segment, at + k - 1) == pattern[k - 1]:
            k -= 1
        if k == pattern.shape[0] - length:
            if low < high < rank:
                return np.int64(0), np.int64(0)
            if low == high:
                low = np.int64(rank)
            high = np.int64(rank + 1)
    return (low, high) if end == table[segment, ENTRIES] else (np.int64(0), np.int64(0))


@compiled
def intervals(table, tokens, length, low, high):
    """Fill low, high (int64 [S]) with the ranks of the last `length` tokens' continued occurrences; their number."""
    total = np.int64(0)
    for segment in range(table.shape[0]):
        low[segment] = 0
        high[segment] = 0
        pattern = _pattern(table, segment, tokens, length)
        if pattern.shape[0] == length:
            first, matches = _first(table, segment, pattern, 0)
            if matches:
                low[segment] = first
                high[segment] = _end(table, segment, pattern, first)
                total += high[segment] - first
    return total
