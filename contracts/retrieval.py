"""What the retriever is asked and what it answers: a continuation trie with exact prefix counts (REST, section 3)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


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


@dataclass(frozen=True)
class Retrieval:
    """tokens, parents (-1: root), depths, counts: int64 [n], parents before children, best first.

    Counts are corpus statistics, never probabilities. `truncated`: the node budget cut the trie. A miss is empty.
    """

    match_length: int = 0
    match_count: int = 0
    tokens: npt.NDArray[np.int64] = field(default_factory=_empty)
    parents: npt.NDArray[np.int64] = field(default_factory=_empty)
    depths: npt.NDArray[np.int64] = field(default_factory=_empty)
    counts: npt.NDArray[np.int64] = field(default_factory=_empty)
    truncated: bool = False
    compute_us: float = 0.0

    @property
    def miss(self) -> bool:
        return self.match_length == 0


@dataclass(frozen=True)
class IndexDescription:
    """One index as a retriever serves it now."""

    index: str
    release: str
    tokenizer_digest: str
    vocab_size: int
    max_match: int
    max_depth: int
    tokens: int
    live_generation: int = 0
