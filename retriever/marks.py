"""Marks: the ranks where frequent nodes of any trie begin or end, so that wide matches are answered without a search.

A node of 64 occurrences or more, its path and the match before it 40 tokens or fewer, begins at a mark and ends before one.
With each stand what its suffix shares with the one before, and the least that neighbours share up to the next mark: parts of
the longest common prefix array (Manber and Myers, SIAM J. Comput. 1993) that tell of all such nodes and their exact counts.
A second list, for runs of 512, serves the widest matches.

They are a function of the segment's arrays and are made when it is opened, as signposts are, so no file, digest or release
depends on them, and an answer does not either. Six bytes a mark; how many there are is the text's doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retriever import kernel_marks, kernel_table

# A smaller segment has hardly any match so wide.
LEAST_TOKENS = 1 << 15


@dataclass(frozen=True, slots=True, eq=False)
class Marks:
    """ranks: uint32 [M], rising. shares: uint8 [M, 2], see `kernel_marks.marks_of`."""

    ranks: NDArray[np.uint32]
    shares: NDArray[np.uint8]

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.ranks.nbytes + self.shares.nbytes


def marks_of(
    codes: NDArray[np.generic],
    offsets_low: NDArray[np.uint32],
    offsets_high: NDArray[np.uint8],
    *,
    least_tokens: int = LEAST_TOKENS,
) -> tuple[Marks, ...]:
    """The marks of a segment's arrays (see `segment.Segment`) and the further ones; none below least_tokens.

    None either where ranks have more than 32 bits.
    """
    entries = offsets_low.shape[0]
    if entries < max(2, least_tokens) or entries >= 1 << 32:
        return ()
    table = np.zeros((1, kernel_table.COLUMNS), np.int64)
    kernel_table.put_arrays(table[0], codes, offsets_low, offsets_high)
    share = kernel_marks.neighbours_share(table)
    made = [Marks(*kernel_marks.marks_of(share, run)) for run in (kernel_marks.LEAST_RUN, kernel_marks.FURTHER_RUN)]
    for marks in made:
        marks.ranks.flags.writeable = marks.shares.flags.writeable = False
    return tuple(made)
