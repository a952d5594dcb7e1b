"""What the retriever is asked and what it answers: a continuation trie with exact prefix counts (REST, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

MAX_BATCH = 256


def _empty() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class RetrievalQuery:
    """The published prefix's tail, int64 [<= max_suffix], against one release of one index.

    `release` is the release id that the manifest names; `live_generation` 0 leaves live segments out.
    """

    index: str
    release: str
    suffix: npt.NDArray[np.int64]
    node_budget: int
    max_depth: int
    min_match: int = 1
    max_match: int = 32
    tenant: str = ""
    live_generation: int = 0


@dataclass(frozen=True, eq=False)
class Retrieval:
    """One answer: the match, and the trie of what follows it. Rows are nodes, parents before children, best first.

    match_length: tokens of the longest suffix that the index continues, 0 on a miss; match_count: its continued
    occurrences, exact. tokens, parents (-1: under the root), depths (from 1), counts: int64 [n]. Counts are corpus
    statistics, never probabilities. truncated: the node budget cut the trie.
    release, live_generation: what it was answered from. live_gone: the named live generation cannot be reproduced there,
    and the answer is therefore a miss, never a part.
    """

    match_length: int = 0
    match_count: int = 0
    tokens: npt.NDArray[np.int64] = field(default_factory=_empty)
    parents: npt.NDArray[np.int64] = field(default_factory=_empty)
    depths: npt.NDArray[np.int64] = field(default_factory=_empty)
    counts: npt.NDArray[np.int64] = field(default_factory=_empty)
    truncated: bool = False
    compute_us: float = 0.0
    release: str = ""
    live_generation: int = 0
    live_gone: bool = False

    @property
    def miss(self) -> bool:
        """Nothing matched; the trie is empty."""
        return self.match_length == 0

    @property
    def nodes(self) -> int:
        """Number of trie nodes."""
        return len(self.tokens)

    @cached_property
    def columns(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """`tokens`, `parents`, `depths` and `counts` as numbers."""
        return self.tokens.tolist(), self.parents.tolist(), self.depths.tolist(), self.counts.tolist()

    def paths(self) -> list[tuple[int, ...]]:
        """Each node's full prefix: token ids from the first continuation token to the node."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens.tolist(), self.parents.tolist(), strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return paths

    def same_as(self, other: Retrieval) -> bool:
        """Whether both answers say the same, row by row; who answered, and how fast, aside."""
        return (
            (self.match_length, self.match_count, self.truncated, self.live_gone)
            == (other.match_length, other.match_count, other.truncated, other.live_gone)
            and np.array_equal(self.tokens, other.tokens)
            and np.array_equal(self.parents, other.parents)
            and np.array_equal(self.depths, other.depths)
            and np.array_equal(self.counts, other.counts)
        )


@dataclass(frozen=True)
class IndexDescription:
    """One index as a retriever serves it now to the tenant who asked.

    live_generation: the newest live generation that a manifest may name, 0 for none. records: published outputs of this
    tenant are taken into the live index. group, groups: which part of the release this retriever holds and how all parts are
    called, where one retriever does not hold it all.
    """

    index: str
    release: str
    tokenizer_digest: str
    vocab_size: int
    max_match: int
    max_depth: int
    tokens: int
    live_generation: int = 0
    records: bool = False
    group: str = ""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PublishedOutput:
    """What one request published, for a live index. tokens: int64 [n], the output alone, without the prompt.

    entry: names the output, so that a repeated call changes nothing.
    """

    index: str
    tenant: str
    entry: str
    tokens: npt.NDArray[np.int64]
