"""How much speaks for an occurrence of a prefix's last tokens: what matches, and half of what matched before one edit.

After a change the text mostly goes on where the copied passage does, but its last token or two alone stand in many places.
The place it came from is the one before which it matches again, once the change is forgiven (docs/decisions/0013). Edits
are substitutions, insertions and deletions of at most two tokens: a bounded case of approximate string matching with k
differences (Navarro, ACM Computing Surveys 33(1), 2001), found by comparing, with no table and no state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from proposer.suffix_scan import Int64Array

REACH = 8
TOKENS_PER_STRENGTH = 2
WEIGHED = 64

# (tokens new in the copy, tokens of the original that they stand for)
_EDITS = np.array([(1, 1), (1, 0), (0, 1), (2, 0), (0, 2), (2, 1), (1, 2), (2, 2)], dtype=np.int64)
_BACK = np.arange(1, REACH + 1, dtype=np.int64)


def matched_before_edit(prefix: Int64Array, starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """How many tokens match again before one edit, the best of all edits, at most REACH; int64 [K].

    Occurrence k repeats the last `lengths[k]` tokens of `prefix` (int64 [L]) and ends before `starts[k]`; both int64 [K].
    """
    ours = (len(prefix) - lengths)[:, None] - _EDITS[:, 0]
    theirs = (starts - lengths)[:, None] - _EDITS[:, 1]
    # An edit that shifts the passage onto itself says nothing. Nearly all others fail at the first token before them, and
    # only what is left is followed further.
    begun = (theirs >= 1) & (theirs < ours) & (_at(prefix, ours - 1) == _at(prefix, theirs - 1))
    which, _ = pairs = np.nonzero(begun)
    ours_back, theirs_back = ours[pairs][:, None] - _BACK, theirs[pairs][:, None] - _BACK
    same = (theirs_back >= 0) & (_at(prefix, ours_back) == _at(prefix, theirs_back))
    matched = np.zeros(len(starts), dtype=np.int64)
    np.maximum.at(matched, which, np.logical_and.accumulate(same, axis=1).sum(axis=1, dtype=np.int64))
    return matched


def _at(prefix: Int64Array, positions: Int64Array) -> Int64Array:
    """Tokens at positions, of which those outside the prefix stand for its ends and are never used."""
    return prefix.take(positions, mode="clip")


def strongest(
    prefix: Int64Array, levels: Sequence[Int64Array], min_ngram: int, max_ngram: int
) -> tuple[Int64Array, Int64Array]:
    """Starts and strengths of the occurrences that may be the strongest of all: strongest first, then longest, then last.

    levels: by n-gram from 1 on, where continuations of its admissible occurrences start, ascending, each a subset of the one
    before. A strength is the occurrence's longest n-gram and half of `matched_before_edit`, at most `max_ngram`. Left out
    are occurrences too short to win, and where more than WEIGHED are left the shorter, then the earlier ones.
    """
    longest = max((length for length, starts in enumerate(levels, start=1) if len(starts)), default=0)
    if longest < min_ngram:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    floor = max(min_ngram, longest - REACH // TOKENS_PER_STRENGTH)
    while floor < longest and len(levels[floor - 1]) > WEIGHED:
        floor += 1
    starts = levels[floor - 1][-WEIGHED:]
    lengths = np.full(len(starts), floor, dtype=np.int64)
    for length in range(floor + 1, longest + 1):
        longer = levels[length - 1]
        lengths[np.searchsorted(starts, longer[longer >= starts[0]])] = length
    bonus = matched_before_edit(prefix, starts, lengths) // TOKENS_PER_STRENGTH
    strengths = np.minimum(lengths + bonus, max_ngram)
    order = np.lexsort((starts, lengths, strengths))[::-1]
    return starts[order], strengths[order]
