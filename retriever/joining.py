"""Segments of a release joined into one in memory, so that a query searches one suffix array and not as many as were built.

A joined segment is no file and has no digest: its codes are those of its parts one after the other, its suffix array is
merged from theirs (`kernel_merge.py`), and it takes their place, byte for byte as large. Only what queries may compare is
merged by: the order is that of the suffixes' first `depth` codes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retriever import kernel_merge, kernel_shares, kernel_table
from retriever.segment import Segment
from retriever.shares import LEAST_TOKENS, shares_over
from retriever.signposts import signposts_of

# So many codes have offsets of four bytes.
MOST_CODES = 1 << 32


def joinable(segments: Sequence[Segment], most_codes: int = MOST_CODES) -> list[list[int]]:
    """The positions of all segments in groups, each to be joined if it has several: codes of one meaning and one width,
    at most `most_codes` of them together.
    """
    groups: list[list[int]] = []
    open_groups: dict[str, tuple[list[int], int]] = {}
    for position, segment in enumerate(segments):
        kind, codes = segment.codes.dtype.str, segment.codes.shape[0]
        group, filled = open_groups.get(kind, ([], most_codes))
        alone = segment.alphabet.size > 0 or segment.offsets_high.size > 0
        if alone or filled + codes > most_codes:
            group, filled = [], 0
            groups.append(group)
        group.append(position)
        if not alone:
            open_groups[kind] = group, filled + codes
    return groups


def joined(segments: Sequence[Segment], depth: int) -> Segment:
    """One segment of all their documents, in their order, for queries that compare no more than `depth` codes.

    The segments are of one group of `joinable`.
    """
    sizes = [segment.codes.shape[0] for segment in segments]
    shifts = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
    codes = np.empty(sum(sizes), segments[0].codes.dtype)
    table = np.zeros((len(segments), kernel_table.COLUMNS), np.int64)
    for row, segment, shift, size in zip(table, segments, shifts.tolist(), sizes, strict=True):
        codes[shift : shift + size] = segment.codes
        kernel_table.put_arrays(row, segment.codes, segment.offsets_low, segment.offsets_high)
    low, high = np.empty(sum(segment.tokens for segment in segments), np.uint32), np.empty(0, np.uint8)
    fine = np.empty(max(0, low.shape[0] - 1) >> kernel_shares.BLOCK_BITS, np.uint8)
    memory = np.zeros((1, kernel_table.COLUMNS), np.int64)
    kernel_table.put_arrays(memory[0], codes, low, high)
    kernel_merge.merged(table, memory, shifts, depth, low, fine)
    arrays: tuple[NDArray[np.generic], ...] = (codes, low, high)
    for array in arrays:
        array.flags.writeable = False
    return Segment(
        codes=codes,
        alphabet=np.empty(0, np.uint32),
        offsets_low=low,
        offsets_high=high,
        max_token=max(segment.max_token for segment in segments),
        documents=sum(segment.documents for segment in segments),
        signposts=signposts_of(codes, low, high),
        shares=shares_over(fine) if low.shape[0] >= LEAST_TOKENS else None,
    )
