"""What a retrieval answers: the match and the continuation trie below it, pruned to a node budget.

Order of nodes. Best first over a frontier that starts with the root's children: each step emits the waiting node that
comes first by (count descending, token id ascending, depth ascending, row of its parent ascending) and puts its
children in. The order is total (two waiting nodes never agree in all four), does not depend on how the corpus is cut
into segments, and keeps a node's ancestors ahead of it. Stopping after the budget leaves an ancestor-closed trie.

REST (He et al., NAACL 2024, section 3.2) builds its trie from a capped sample of the matches and leaves ties to hash
order; here counts are exact for any number of matches. Counts are corpus statistics, never a draft law q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contracts.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """How far a query looks.

    max_suffix, min_suffix: the longest and shortest suffix of the context to match, in tokens; 1 <= min <= max.
    max_continuation: deepest trie node, in tokens after the match.
    node_budget: most trie nodes returned.
    """

    max_suffix: int = 32
    min_suffix: int = 1
    max_continuation: int = 16
    node_budget: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.min_suffix <= self.max_suffix:
            raise InvalidArgument("min_suffix", f"{self.min_suffix} is not in [1, max_suffix = {self.max_suffix}]")
        if self.max_continuation < 1:
            raise InvalidArgument("max_continuation", f"{self.max_continuation} is below 1")
        if self.node_budget < 1:
            raise InvalidArgument("node_budget", f"{self.node_budget} is below 1")


@dataclass(frozen=True, slots=True, eq=False)
class Retrieval:
    """One answer. Rows are trie nodes in topological order (a parent before its children).

    match_length: tokens of the longest suffix of the context that the index continues; 0 on a miss.
    match_count: its occurrences that have a continuation (exact).
    tokens: int64 [n]; parents: int32 [n], -1 under the root; counts: uint64 [n]; depths: int32 [n], from 1.
    truncated: nodes within max_continuation were left out for the budget.
    miss: nothing matched; the trie is empty.
    """

    match_length: int
    match_count: int
    tokens: NDArray[np.int64]
    parents: NDArray[np.int32]
    counts: NDArray[np.uint64]
    depths: NDArray[np.int32]
    truncated: bool
    miss: bool

    @property
    def nodes(self) -> int:
        """Number of trie nodes."""
        return int(self.tokens.shape[0])

    def paths(self) -> list[tuple[int, ...]]:
        """Each node's full prefix, token ids from the first continuation token to the node."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens.tolist(), self.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return paths

    def same_as(self, other: Retrieval) -> bool:
        """Whether both answers agree in every field, row by row."""
        return (
            (self.match_length, self.match_count, self.truncated, self.miss)
            == (other.match_length, other.match_count, other.truncated, other.miss)
            and np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.parents, other.parents)
            and np.array_equal(self.counts, other.counts)
            and np.array_equal(self.depths, other.depths)
        )


def trie_rows(
    match_length: int,
    match_count: int,
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    truncated: bool,
) -> Retrieval:
    """The record of int64 rows (tokens, parents, counts, depths), copied into their declared widths."""
    tokens, parents, counts, depths = rows
    return Retrieval(
        match_length,
        match_count,
        tokens.copy(),
        parents.astype(np.int32),
        counts.astype(np.uint64),
        depths.astype(np.int32),
        truncated,
        match_count == 0,
    )


def miss() -> Retrieval:
    """The answer where nothing matches: empty, never a made-up token."""
    none = np.empty(0, np.int64)
    return trie_rows(0, 0, (none, none, none, none), False)
