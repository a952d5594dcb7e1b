"""contracts.ports.RetrieverPort over a retriever in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from contracts.errors import InvalidArgument
from contracts.retrieval import IndexDescription, Retrieval, RetrievalQuery
from retriever.retriever import Retriever
from retriever.trie import QueryLimits


class LocalRetriever:
    """Answers inline: a query costs microseconds and releases the interpreter lock meanwhile."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def describe(self) -> Sequence[IndexDescription]:
        """The indexes that everybody may see."""
        library = self._retriever.library
        out = []
        for index, release_id in sorted(library.visible_indexes().items()):
            loaded = library.acquire(index, release_id)
            manifest = loaded.release.manifest
            out.append(
                IndexDescription(
                    index=index,
                    release=release_id,
                    tokenizer_digest=manifest.tokenizer_sha256,
                    vocab_size=manifest.vocabulary_size,
                    max_match=manifest.context_length,
                    max_depth=manifest.continuation_length,
                    tokens=loaded.release.tokens,
                )
            )
        return out

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        started = time.perf_counter()
        if query.node_budget < 0:
            raise InvalidArgument("node_budget", f"{query.node_budget} is negative")
        if query.node_budget == 0 or query.max_depth == 0:
            return Retrieval()
        limits = QueryLimits(
            max_suffix=query.max_match,
            min_suffix=query.min_match,
            max_continuation=query.max_depth,
            node_budget=query.node_budget,
        )
        (answer,) = self._retriever.retrieve(
            query.index,
            query.release,
            [query.suffix],
            limits,
            tenant=query.tenant,
            live_generation=query.live_generation,
        )
        found = answer.retrieval
        return Retrieval(
            match_length=found.match_length,
            match_count=found.match_count,
            tokens=found.tokens,
            parents=found.parents.astype(np.int64),
            depths=found.depths.astype(np.int64),
            counts=found.counts.astype(np.int64),
            truncated=found.truncated,
            compute_us=(time.perf_counter() - started) * 1e6,
        )
