"""contracts.ports.RetrieverPort over the groups of a release that no single retriever holds: it asks all, and merges.

A query costs four exchanges (see `retriever/merging.py`), each carried to all groups side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from retriever.corpus import Corpus, check_batch, corpus_of, limits_of
from retriever.merging import Question, Reply, merged
from retriever.trie import miss
from services.clients.retriever import RetrieverClient
from services.link.address import link_to


class GroupPort(Protocol):
    """One group: one retriever, or copies of it behind one address."""

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]: ...

    async def part(self, corpus: Corpus, question: Question) -> Reply | None: ...

    async def record(self, output: PublishedOutput) -> int: ...

    async def close(self) -> None: ...


class GroupedRetriever:
    """Equal to one retriever over all segments. groups: in any order; each says by itself which one it is."""

    def __init__(self, groups: Sequence[GroupPort]) -> None:
        self._groups = tuple(groups)
        self._agreed: dict[str, IndexDescription] = {}

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        """Indexes that all groups serve. While they swap one after the other, the last release that all had is named.

        Raises FailedPrecondition where the groups asked are not those that the release is placed on.
        """
        all_ = await asyncio.gather(*(group.describe(tenant) for group in self._groups))
        by_index: dict[str, list[IndexDescription]] = {}
        for described in (index for group in all_ for index in group):
            by_index.setdefault(described.index, []).append(described)
        return [
            whole
            for parts in by_index.values()
            if len(parts) == len(self._groups) and (whole := self._together(parts)) is not None
        ]

    def _together(self, parts: Sequence[IndexDescription]) -> IndexDescription | None:
        first = parts[0]
        asked = sorted(part.group for part in parts)
        for part in parts:
            if sorted(part.groups) != asked:
                raise FailedPrecondition(
                    "retriever_endpoint",
                    f"asks groups {', '.join(asked)}; {part.index} is placed on {', '.join(part.groups) or 'no groups'}",
                )
        if any(part.release != first.release for part in parts):
            agreed = self._agreed.get(first.index)
            return replace(agreed, live_generation=0) if agreed else None
        self._agreed[first.index] = whole = replace(
            first,
            live_generation=max(part.live_generation for part in parts),
            records=any(part.records for part in parts),
            group="",
            groups=(),
        )
        return whole

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        """Raises what a group raises. compute_us: wall time of the whole dialogue."""
        started = time.perf_counter()
        corpus = corpus_of(query)
        if query.node_budget < 0:
            raise InvalidArgument("node_budget", f"{query.node_budget} is negative")
        if query.node_budget == 0 or query.max_depth == 0:
            return Retrieval(release=query.release, live_generation=query.live_generation)
        dialogue = merged(len(self._groups), query.suffix, limits_of(query))
        question = next(dialogue)
        found, gone = miss(), False
        while True:
            replies = await asyncio.gather(*(group.part(corpus, question) for group in self._groups))
            known = [reply for reply in replies if reply is not None]
            if len(known) < len(replies):
                gone = True
                break
            try:
                question = dialogue.send(known)
            except StopIteration as stop:
                found = stop.value
                break
        return replace(
            found,
            release=query.release,
            live_generation=query.live_generation,
            live_gone=gone,
            compute_us=(time.perf_counter() - started) * 1e6,
        )

    async def retrieve_batch(
        self, query: RetrievalQuery, suffixes: Sequence[npt.NDArray[np.int64]]
    ) -> Sequence[Retrieval]:
        """The dialogues run side by side. Where one fails, the batch does."""
        check_batch(suffixes)
        return await asyncio.gather(*(self.retrieve(replace(query, suffix=suffix)) for suffix in suffixes))

    async def record(self, output: PublishedOutput) -> int:
        """Any group may write the stream; the one that holds the live segments reads it."""
        return await self._groups[0].record(output)

    async def close(self) -> None:
        """Closes the groups' clients."""
        for group in self._groups:
            await group.close()


def open_retriever(endpoints: str, links: Path | None = None) -> RetrieverClient | GroupedRetriever:
    """A client of host:port, or of several, separated by commas, that hold one release in groups. links: the link directory.

    Raises InvalidArgument where no address is given.
    """
    addresses = [address.strip() for address in endpoints.split(",") if address.strip()]
    if not addresses:
        raise InvalidArgument("retriever_endpoint", "names no host:port")
    clients = [RetrieverClient(address, link=link_to(links, "retriever", address)) for address in addresses]
    return clients[0] if len(clients) == 1 else GroupedRetriever(clients)
