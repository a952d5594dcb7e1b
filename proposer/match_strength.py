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
_EDITS = ((1, 1), (1, 0), (0, 1), (2, 0), (0, 2), (2, 1), (1, 2), (2, 2))


def matched_before_edit(tokens: Sequence[int], start: int, length: int) -> int:
    """How many tokens match again before one edit, the best of all edits, at most REACH.

    The occurrence repeats the last `length` of `tokens` and ends before `start`.
    """
    most = 0
    for new, old in _EDITS:
        ours, theirs = len(tokens) - length - new, start - length - old
        # An edit that shifts the passage onto itself says nothing.
        if theirs < ours:
            back, reach = 0, min(REACH, theirs)
            while back < reach and tokens[ours - 1 - back] == tokens[theirs - 1 - back]:
                back += 1
            most = max(most, back)
    return most


def strongest(prefix: Int64Array, min_ngram: int, max_ngram: int, last_start: int) -> list[tuple[int, int]]:
    """(start, length) of the WEIGHED longest occurrences: strongest first, then longest, then last.

    An occurrence repeats the last `min_ngram` to `max_ngram` tokens of `prefix` (int64 [L]) and does not overlap them; its
    continuation starts at `last_start` at the latest. Of as long ones the last are weighed. Its strength is its length, how
    many it repeats, and half of `matched_before_edit`, at most `max_ngram`.

    Few occurrences are looked at one by one: after a target's pass, which empties the caches, a dozen calls of numpy take
    longer than the loop.
    """
    size = len(prefix)
    (starts,) = (prefix[: max(0, min(last_start, size - 1))] == prefix[-1]).nonzero()
    starts += 1
    if len(starts) > WEIGHED:
        starts = _longest(prefix, starts, max_ngram)
    tokens = prefix.data
    found: list[tuple[int, int, int]] = []
    for start in starts.tolist():
        most, length = min(max_ngram, start, size - start), 1
        while length < most and tokens[start - 1 - length] == tokens[size - 1 - length]:
            length += 1
        if length >= min_ngram:
            bonus = matched_before_edit(tokens, start, length) // TOKENS_PER_STRENGTH if length < max_ngram else 0
            found.append((min(length + bonus, max_ngram), length, start))
    return [(start, length) for _, length, start in sorted(found, reverse=True)]


def _longest(prefix: Int64Array, starts: Int64Array, max_ngram: int) -> Int64Array:
    """The WEIGHED that repeat most, ascending; of as long ones the last."""
    size = len(prefix)
    back = np.arange(2, min(max_ngram, size) + 1)
    theirs = starts[:, None] - back
    # Positions before the prefix stand for its start and are not counted.
    same = (prefix.take(theirs, mode="clip") == prefix[size - back]) & (theirs >= 0)
    lengths = np.minimum(1 + np.logical_and.accumulate(same, axis=1).sum(axis=1, dtype=np.int64), size - starts)
    longest: Int64Array = starts[np.sort(np.argsort(lengths, kind="stable")[-WEIGHED:])]
    return longest
