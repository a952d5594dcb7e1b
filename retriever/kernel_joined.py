"""The compiled walk of a narrow match in several segments: all of its suffixes are read and merged in the text's order."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg, attr-defined"

from __future__ import annotations

import numpy as np

from retriever.kernel_ranks import fetch_place, fetch_rank
from retriever.kernel_runs import runs_of
from retriever.kernel_samples import RANK, SAMPLE_COLUMNS, chain
from retriever.kernel_single import ALL_READ, emit, levels_of
from retriever.kernel_table import ALPHABET, CODES, ENTRIES, WIDTH, code_from, compiled, suffix_start


@compiled
def _comparable(table, low, high, base, width):
    """Whether all segments with matches have codes of one meaning and of that width, whole codes away from `base`."""
    for s in range(table.shape[0]):
        if low[s] < high[s] and (
            table[s, ALPHABET] != 0 or table[s, WIDTH] != width or (table[s, CODES] - base) % width != 0
        ):
            return False
    return True


@compiled
def _above(base, width, one, other, most):
    """Whether the text at a place stands behind that at another, by their first `most` codes; a document's end is first."""
    for k in range(most):
        code, against = code_from(base, width, one + k), code_from(base, width, other + k)
        if code != against:
            return code > against
        if code == 0:
            return False
    return False


@compiled
def _merged(table, low, high, length, base, width, most):
    """Where the continuations of all matches begin, in codes from the address `base`, in the order of their text."""
    total = np.int64(0)
    for s in range(table.shape[0]):
        total += high[s] - low[s]
        for rank in range(low[s], high[s]):
            fetch_rank(table, s, rank)
    places, merged = np.empty(total, np.int64), np.empty(total, np.int64)
    # Each segment's are in order: runs[i] to runs[i + 1], merged two by two.
    runs, number = np.empty(table.shape[0] + 1, np.int64), 0
    at = 0
    for s in range(table.shape[0]):
        if low[s] < high[s]:
            runs[number] = at
            number += 1
        for rank in range(low[s], high[s]):
            places[at] = (table[s, CODES] - base) // width + suffix_start(table, s, rank) + length
            fetch_place(base, width, places[at])
            at += 1
    while number > 1:
        runs[number] = total
        kept = 0
        for pair in range(0, number, 2):
            left, middle = runs[pair], runs[pair + 1]
            end = runs[pair + 2] if pair + 2 <= number else middle
            i, j = left, middle
            for out in range(left, end):
                if j == end or (i < middle and not _above(base, width, places[i], places[j], most)):
                    merged[out] = places[i]
                    i += 1
                else:
                    merged[out] = places[j]
                    j += 1
            runs[kept] = left
            kept += 1
        number = kept
        places, merged = merged, places
    return places


@compiled
def best_of_several(table, low, high, length, max_depth, budget, tokens, parents, counts, depths):
    """As `best_of_one` over the intervals low, high [S]; -1 where there are too many matches or codes do not compare."""
    # The segment whose codes stand first in memory: no place of another is before its first one.
    total, first = np.int64(0), -1
    for s in range(table.shape[0]):
        total += high[s] - low[s]
        if low[s] < high[s] and (first < 0 or table[s, CODES] < table[first, CODES]):
            first = s
    base, width = table[first, CODES], table[first, WIDTH]
    if total > ALL_READ or not _comparable(table, low, high, base, width):
        return -1, False
    starts = _merged(table, low, high, length, base, width, max_depth)
    # All segments' memory as one segment's, to be read code by code, for eight bytes could reach beyond the end of one.
    memory = table[first : first + 1].copy()
    memory[0, ENTRIES] = -(1 << 62)
    samples = np.empty((total, SAMPLE_COLUMNS), np.int32)
    samples[:, RANK] = np.arange(total)
    chain(memory, samples, starts, total, max_depth)
    nodes = runs_of(memory, samples, starts, total, max_depth, True)
    begins, ends = np.empty(budget + 1, np.int64), np.empty(budget + 1, np.int64)
    seen = np.zeros(budget + 1, np.int64)
    emitted = emit(
        memory,
        samples,
        starts,
        nodes,
        np.int64(1),
        max_depth,
        budget,
        tokens,
        parents,
        counts,
        depths,
        begins,
        ends,
        seen,
    )
    return emitted, emitted < levels_of(nodes)
