"""Questions to a set of segments as if they were one corpus: longest match, continuation trie, parts of both."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from contracts.errors import ResourceExhausted
from contracts.retrieval import Retrieval
from retriever import kernel_match, kernel_query, kernel_table, kernel_trie
from retriever.joining import joined
from retriever.segment import Segment, segment_from_documents
from retriever.trie import QueryLimits, Tokens, context_array, is_row, miss, refuse_ids, trie_rows

FIRST_ROOM = 1024
_INT64 = np.dtype(np.int64)
# The first fields of a Retrieval, in their order: match length, occurrences, tokens, parents, depths, counts, truncated.
Found = tuple[int, int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], bool]


class SegmentSet:
    """An immutable, ordered set of segments. Every answer equals the one over a single segment of all their documents.

    Safe to share between threads: queries allocate their own scratch and run with the GIL released.
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.segments = tuple(segments)
        self._table = np.zeros((len(self.segments), kernel_table.COLUMNS), np.int64)
        for row, segment in zip(self._table, self.segments, strict=True):
            kernel_table.put_arrays(row, segment.codes, segment.offsets_low, segment.offsets_high)
            row[kernel_table.ALPHABET] = segment.alphabet.ctypes.data if segment.alphabet.size else 0
            row[kernel_table.ALPHABET_SIZE] = segment.alphabet.size
            row[kernel_table.MAX_TOKEN] = segment.max_token
            if segment.signposts is not None:
                row[kernel_table.SIGNPOSTS] = segment.signposts.codes.ctypes.data
                row[kernel_table.SIGNPOST_COUNT], row[kernel_table.SIGNPOST_DEPTH] = segment.signposts.codes.shape
                row[kernel_table.SIGNPOST_SPACING_BITS] = segment.signposts.spacing_bits
            if segment.shares is not None:
                row[kernel_table.FINE_SHARES] = segment.shares.fine.ctypes.data
                row[kernel_table.COARSE_SHARES] = segment.shares.coarse.ctypes.data

    @property
    def tokens(self) -> int:
        """Tokens over all segments."""
        return sum(segment.tokens for segment in self.segments)

    @property
    def resident_bytes(self) -> int:
        """Bytes of all segments' arrays."""
        return sum(segment.resident_bytes for segment in self.segments)

    def retrieve(self, context: Tokens, limits: QueryLimits) -> Retrieval:
        """Longest suffix match of the context (token ids, any integer dtype) and the trie below it.

        Raises InvalidArgument for anything but a row of ids in [0, 2^32).
        """
        return Retrieval(*self.search(context, limits))

    def search(self, context: Tokens, limits: QueryLimits) -> Found:
        """`retrieve` before it is put into a record, whose first fields it is."""
        if not is_row(context):
            context = context_array(context, limits.max_suffix)
        return self._found(context, limits.max_suffix, limits.min_suffix, limits)

    def retrieve_batch(self, contexts: Sequence[Tokens], limits: QueryLimits) -> list[Retrieval]:
        """`retrieve` for each context, in order; all contexts are checked before the first is answered."""
        rows = [context_array(context, limits.max_suffix) for context in contexts]
        return [Retrieval(*self._found(row, limits.max_suffix, limits.min_suffix, limits)) for row in rows]

    def longest(self, context: Tokens, limits: QueryLimits) -> int:
        """Length of the longest continued suffix, 0 where none of at least min_suffix is."""
        tokens = context_array(context, limits.max_suffix)
        return int(kernel_match.longest_match(self._table, tokens, limits.max_suffix, limits.min_suffix))

    def best(self, suffix: Tokens, limits: QueryLimits) -> Retrieval:
        """The pruned trie below exactly this suffix (no shorter one); a miss where it is not continued here."""
        tokens = context_array(suffix, len(suffix))
        exactly = tokens.shape[0]
        return Retrieval(*self._found(tokens, exactly, exactly, limits)) if exactly else miss()

    def above(self, suffix: Tokens, max_continuation: int, min_count: int, max_nodes: int) -> Retrieval:
        """Every node below the suffix with a count of at least min_count, breadth first, siblings by token.

        `truncated` says that nodes below min_count exist. Raises ResourceExhausted beyond max_nodes.
        """
        tokens = context_array(suffix, len(suffix))
        low, high, found = self._intervals(tokens, tokens.shape[0])
        if found == 0:
            return miss()
        room = min(FIRST_ROOM, max_nodes)
        while True:
            rows = np.empty((4, room), np.int64)
            scratch = np.empty((2, room, len(self.segments)), np.int64)
            number, whole = kernel_trie.all_above(
                self._table, low, high, tokens.shape[0], max_continuation, min_count, *rows, *scratch
            )
            if number >= 0:
                return trie_rows(tokens.shape[0], found, rows[:, :number], not whole)
            if room == max_nodes:
                raise ResourceExhausted("max_nodes", f"more than {max_nodes} trie nodes reach count {min_count}")
            room = min(4 * room, max_nodes)

    def count(
        self, suffix: Tokens, tokens: NDArray[np.int64], parents: NDArray[np.int64], depths: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Exact counts, int64 [n], of trie nodes below the suffix given in topological order (0 where absent)."""
        row = context_array(suffix, len(suffix))
        low, high, _ = self._intervals(row, row.shape[0])
        counts = np.zeros(tokens.shape[0], np.int64)
        scratch = np.empty((2, tokens.shape[0], len(self.segments)), np.int64)
        kernel_trie.count_nodes(
            self._table, low, high, row.shape[0],
            np.ascontiguousarray(tokens), np.ascontiguousarray(parents), np.ascontiguousarray(depths), counts, *scratch,
        )  # fmt: skip
        return counts

    def _intervals(self, tokens: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        low, high = np.empty((2, len(self.segments)), np.int64)
        found = int(kernel_match.intervals(self._table, tokens, length, low, high)) if length else 0
        return low, high, found

    def _found(self, tokens: NDArray[np.int64], most: int, least: int, limits: QueryLimits) -> Found:
        """For a suffix of `most` tokens at most and `least` at least."""
        rows = np.empty((4, limits.node_budget), _INT64)
        length, count, number, truncated = kernel_query.continuations(
            self._table, tokens, most, least, limits.max_continuation, rows
        )
        if length < 0:
            refuse_ids()
        if number < limits.node_budget > FIRST_ROOM:
            # A large room goes, little of which may have been used.
            rows = rows[:, :number].copy()
        # Row by row: numpy takes twice as long to be unpacked.
        return length, count, rows[0, :number], rows[1, :number], rows[3, :number], rows[2, :number], truncated


@functools.cache
def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache, before the first request has to wait for that."""
    small = segment_from_documents([[0, 1]])
    one = SegmentSet([small])
    found = one.above([0], 1, 1, 1)
    one.longest([0], QueryLimits())
    one.count([0], found.tokens, found.parents, found.depths)
    # One segment, several, and several that number their tokens in alphabets of their own: the three walks.
    large = segment_from_documents([[1 << 20, 1]])
    for segments, token in ((one, 0), (SegmentSet([small, small]), 0), (SegmentSet([large, large]), 1 << 20)):
        segments.retrieve([token], QueryLimits())
    joined([small, small], 2)
