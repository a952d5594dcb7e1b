"""How a trie is pruned to a node budget, and the limits of a query. The record itself is `contracts.retrieval`.

Order of nodes. Best first over a frontier that starts with the root's children: each step emits the waiting node that
comes first by (count descending, token id ascending, depth ascending, row of its parent ascending) and puts its
children in. The order is total (two waiting nodes never agree in all four), does not depend on how the corpus is cut
into segments, and keeps a node's ancestors ahead of it. Stopping after the budget leaves an ancestor-closed trie.

REST (He et al., NAACL 2024, section 3.2) builds its trie from a capped sample of the matches and leaves ties to hash
order; here counts are exact for any number of matches. Counts are corpus statistics, never a draft law q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contracts.errors import InvalidArgument
from contracts.retrieval import Retrieval

MAX_TOKEN_ID = 2**32 - 1
MAX_NODE_BUDGET = 1 << 20
_INT64 = np.dtype(np.int64)
Tokens = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """How far a query looks.

    max_suffix, min_suffix: the longest and shortest suffix of the context to match, in tokens; 1 <= min <= max.
    max_continuation: deepest trie node, in tokens after the match.
    node_budget: most trie nodes returned, at most MAX_NODE_BUDGET: room for them is made before the search.
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
        if not 1 <= self.node_budget <= MAX_NODE_BUDGET:
            raise InvalidArgument("node_budget", f"{self.node_budget} is outside [1, {MAX_NODE_BUDGET}]")


def trie_rows(
    match_length: int,
    match_count: int,
    rows: NDArray[np.int64],
    truncated: bool,
) -> Retrieval:
    """The record of rows int64 [4, n] (tokens, parents, counts, depths), which are copied."""
    tokens, parents, counts, depths = rows.copy()
    return Retrieval(
        match_length=match_length,
        match_count=match_count,
        tokens=tokens,
        parents=parents,
        depths=depths,
        counts=counts,
        truncated=truncated,
    )


def miss() -> Retrieval:
    """The answer where nothing matches: empty, never a made-up token."""
    return Retrieval()


def context_array(context: ArrayLike, most: int) -> NDArray[np.int64]:
    """The last `most` ids as int64. Raises InvalidArgument for anything but a row of ids in [0, 2^32)."""
    tokens = np.asarray(context)
    if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
        raise InvalidArgument("context", "is one row of integer token ids")
    tokens = tokens[max(0, tokens.shape[0] - most) :].astype(np.int64)
    # Read as unsigned, a negative id is a huge one: one comparison finds both.
    if (tokens.view(np.uint64) > MAX_TOKEN_ID).any():
        refuse_ids()
    return tokens


def refuse_ids() -> NoReturn:
    """Raises InvalidArgument."""
    raise InvalidArgument("context", f"token ids lie in [0, {MAX_TOKEN_ID}]")


def is_row(context: Tokens) -> TypeGuard[NDArray[np.int64]]:
    """Whether compiled code may read it as it is, once it has seen that all are ids."""
    return type(context) is np.ndarray and context.dtype is _INT64 and context.ndim == 1 and context.flags.carray
