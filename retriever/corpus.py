"""A query of the port in the retriever's own terms."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.errors import InvalidArgument
from contracts.proposal import MAX_NODES
from contracts.retrieval import MAX_BATCH, RetrievalQuery
from retriever.trie import QueryLimits, Tokens

# A session's queries differ in little but their suffix; what was refused is refused anew.
_limits = functools.lru_cache(maxsize=1024)(QueryLimits)


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a query of this tenant is about: the release and live generation that its manifest names (0: none)."""

    index: str
    release: str
    tenant: str = ""
    live_generation: int = 0


def corpus_of(query: RetrievalQuery) -> Corpus:
    """What the query is about."""
    return Corpus(query.index, query.release, query.tenant, query.live_generation)


def check_batch(suffixes: Sequence[Tokens]) -> None:
    """Raises InvalidArgument for more suffixes than one call may carry."""
    if len(suffixes) > MAX_BATCH:
        raise InvalidArgument("suffixes", f"{len(suffixes)}, at most {MAX_BATCH}")


def limits_of(query: RetrievalQuery) -> QueryLimits:
    """How far the query looks. Raises InvalidArgument for limits that contradict one another, and for more nodes than an
    answer may carry.
    """
    if query.node_budget > MAX_NODES:
        raise InvalidArgument("node_budget", f"{query.node_budget} is outside [0, {MAX_NODES}]")
    return _limits(query.max_match, query.min_match, query.max_depth, query.node_budget)
