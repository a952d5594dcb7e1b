"""How much speaks for an occurrence of a prefix's last tokens: what matches, and half of what matched before one edit.

After a change the text mostly goes on where the copied passage does, but its last token or two alone stand in many places.
The place it came from is the one before which it matches again, once the change is forgiven (docs/decisions/0013). Edits
are substitutions, insertions and deletions of at most two tokens: a bounded case of approximate string matching with k
differences (Navarro, ACM Computing Surveys 33(1), 2001), found by comparing, with no table and no state.
"""

from __future__ import annotations

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


def strongest(prefix: Int64Array, min_ngram: int, max_ngram: int, last_start: int) -> tuple[Int64Array, Int64Array]:
    """Starts and lengths of the WEIGHED longest occurrences: strongest first, then longest, then last.

    An occurrence repeats the prefix's last `min_ngram` to `max_ngram` tokens and does not overlap them; its continuation
    starts at `last_start` at the latest. Of as long ones the last are weighed. Its strength is its length, how many it
    repeats, and half of `matched_before_edit`, at most `max_ngram`.
    """
    size = len(prefix)
    starts = np.flatnonzero(prefix[: max(0, min(last_start, size - 1))] == prefix[-1]) + 1
    back = np.arange(2, min(max_ngram, size) + 1)
    theirs = starts[:, None] - back
    same = (_at(prefix, theirs) == prefix[size - back]) & (theirs >= 0)
    lengths = np.minimum(1 + np.logical_and.accumulate(same, axis=1).sum(axis=1, dtype=np.int64), size - starts)
    if min_ngram > 1:
        enough = lengths >= min_ngram
        starts, lengths = starts[enough], lengths[enough]
    if len(starts) > WEIGHED:
        longest = np.sort(np.argsort(lengths, kind="stable")[-WEIGHED:])
        starts, lengths = starts[longest], lengths[longest]
    bonus = matched_before_edit(prefix, starts, lengths) // TOKENS_PER_STRENGTH
    strengths = np.minimum(lengths + bonus, max_ngram)
    order = np.lexsort((starts, lengths, strengths))[::-1]
    return starts[order], lengths[order]
