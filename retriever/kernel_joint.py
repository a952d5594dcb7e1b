"""The samples of several segments in one order: merged two by two, by what neighbours share and seldom by reading them.

Of two continuations that are not before a third, the one that shares more with it comes first; only where both share the
same they are compared, beyond that (W. Ng and K. Kakehi, "Merging string sequences by longest common prefixes", IPSJ 2008).
Codes of different segments are compared as the tokens that they stand for.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_table import code_at, compiled, token_of


@compiled
def _compared(table, one, start, other, other_start, k, most):
    """(codes shared, whether the other comes first) of two continuations that share `k` codes."""
    while k < most:
        code, other_code = code_at(table, one, start + k), code_at(table, other, other_start + k)
        if code == 0 or other_code == 0:
            return k, code != 0
        token, other_token = token_of(table, one, code), token_of(table, other, other_code)
        if token != other_token:
            return k, other_token < token
        k += 1
    return k, False


@compiled
def _merged(table, starts, who, segment, before, first, middle, end, most, new_who, new_segment, new_before):
    """Write the samples first to middle and middle to end, each in order, in one order; before: shared with the one before."""
    a, b = first, middle
    # What the next of each has in common with the sample written last.
    of_a, of_b = np.int64(0), np.int64(0)
    for at in range(first, end):
        if a == middle or b == end:
            b_first = a == middle
        elif of_a != of_b:
            b_first = of_b > of_a
        else:
            shares, b_first = _compared(
                table, segment[a], starts[who[a]], segment[b], starts[who[b]], of_a, most
            )  # fmt: skip
        tie = a < middle and b < end and of_a == of_b
        if b_first:
            new_who[at], new_segment[at], new_before[at] = who[b], segment[b], of_b
            b += 1
            if tie:
                of_a = shares
            if b < end:
                of_b = before[b]
        else:
            new_who[at], new_segment[at], new_before[at] = who[a], segment[a], of_a
            a += 1
            if tie:
                of_b = shares
            if a < middle:
                of_a = before[a]


@compiled
def joint(table, sampling, most):
    """All samples in the order of their continuations: (who, segment, shared, until).

    int64 [M]: which sample, of which segment, how many codes it shares with the next. until [S, M + 1]: of a segment's samples,
    the first that is not among the first so many of all.
    """
    first, _, starts, own = sampling
    segments, total = table.shape[0], starts.shape[0]
    who, segment = np.arange(total), np.empty(total, np.int64)
    shared = own
    if segments == 1:
        segment[:] = 0
    else:
        before = np.zeros(total, np.int64)
        for s in range(segments):
            for i in range(first[s], first[s + 1]):
                segment[i] = s
                if i > first[s]:
                    before[i] = own[i - 1]
        new_who, new_segment, new_before = np.empty_like(who), np.empty_like(who), np.empty_like(who)
        ends = first.copy()
        blocks = segments
        while blocks > 1:
            merged = 0
            for block in range(0, blocks, 2):
                begin, middle, end = ends[block], ends[block + 1], ends[min(block + 2, blocks)]
                _merged(
                    table, starts, who, segment, before, begin, middle, end, most, new_who, new_segment, new_before
                )  # fmt: skip
                ends[merged] = begin
                merged += 1
            ends[merged] = total
            blocks = merged
            who, new_who = new_who, who
            segment, new_segment = new_segment, segment
            before, new_before = new_before, before
        shared = np.zeros(total, np.int64)
        shared[:-1] = before[1:]
    until = np.empty((segments, total + 1), np.int64)
    for s in range(segments):
        seen = first[s]
        until[s, 0] = seen
        for at in range(total):
            seen += segment[at] == s
            until[s, at + 1] = seen
    return who, segment, shared, until
