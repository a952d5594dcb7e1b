"""contracts.ports.RetrieverPort, and the part of a group, over a retriever in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from retriever.corpus import Corpus, check_batch, corpus_of, limits_of
from retriever.merging import Question, Reply
from retriever.retriever import Retriever


class LocalRetriever:
    """Answers inline: a query costs microseconds and releases the interpreter lock meanwhile."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        """The indexes that the tenant may see."""
        return self._retriever.describe(tenant)

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        """Raises InvalidArgument, NotFound, FailedPrecondition and PermissionDenied as `retriever.retriever` does."""
        started = time.perf_counter()
        if query.node_budget < 0:
            raise InvalidArgument("node_budget", f"{query.node_budget} is negative")
        if query.node_budget == 0 or query.max_depth == 0:
            return Retrieval(release=query.release, live_generation=query.live_generation)
        if query.live_generation:
            await self._catch_up(corpus_of(query))
        return self._retriever.answer(query, started)

    async def retrieve_batch(
        self, query: RetrievalQuery, suffixes: Sequence[npt.NDArray[np.int64]]
    ) -> Sequence[Retrieval]:
        """As `retrieve`; in a thread, as many queries take milliseconds. compute_us: a query's share of the batch's."""
        check_batch(suffixes)
        if query.node_budget <= 0 or query.max_depth == 0:
            return [await self.retrieve(replace(query, suffix=suffix)) for suffix in suffixes]
        corpus, limits = corpus_of(query), limits_of(query)
        await self._catch_up(corpus)
        started = time.perf_counter()
        answers = await asyncio.to_thread(self._retriever.retrieve, corpus, suffixes, limits)
        compute_us = (time.perf_counter() - started) * 1e6 / max(1, len(answers))
        return [replace(found, compute_us=compute_us) for found in answers]

    async def part(self, corpus: Corpus, question: Question) -> Reply | None:
        """See `retriever.retriever.Retriever.part`."""
        await self._catch_up(corpus)
        return self._retriever.part(corpus, question)

    async def record(self, output: PublishedOutput) -> int:
        """In a thread: the store is a network away."""
        return await asyncio.to_thread(self._retriever.record, output)

    async def _catch_up(self, corpus: Corpus) -> None:
        """Another replica has advertised a generation that is still on its way to this one."""
        if self._retriever.live is not None and self._retriever.behind(corpus):
            await asyncio.to_thread(self._retriever.live.poll)
