"""Publishing and hot swaps under load: every answer must come, and come from the release that its query named."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_index import Figures, until_served
from contracts.retrieval import RetrievalQuery
from retriever.publish import activate, publish
from retriever.redis_store import RedisStore
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.segment import segment_from_documents
from retriever.segment_format import segment_bytes, segment_digest
from services.clients.retriever import RetrieverClient

INDEX = "swapped"
CLIENTS = 8
# Queries that name the release of one description, as a request's rounds do.
QUERIES = 20
_MARKER = [3, 1, 4, 1, 5, 9, 2, 6]


@dataclass
class _Load:
    answers: int = 0
    failed: int = 0
    mixed: int = 0
    why: str = ""
    running: bool = True


def _release(shared: SegmentEntry, number: int, tokenizer: str) -> tuple[Release, bytes]:
    """Release `number` has the shared segment and one of its own, in which the marker is followed by `number` alone."""
    own = segment_bytes(segment_from_documents([[*_MARKER, number]] * 3))
    entry = SegmentEntry(segment_digest(own), len(own), 3 * (len(_MARKER) + 1))
    manifest = ReleaseManifest("swap", "none", "", tokenizer, "none", 49_152, 64, 32, "benchmark", "none")
    return Release(manifest, (shared, entry)), own


def _publish(store: RedisStore, release: Release, sources: list[bytes]) -> None:
    publish(store, release, {segment_digest(data): data for data in sources})
    activate(store, INDEX, release.release_id)


async def _ask(endpoint: str, numbers: dict[str, int], load: _Load) -> None:
    """Describe, then a few queries against the release named: as a session does whose manifest outlives a swap."""
    client = RetrieverClient(endpoint)
    suffix = np.array(_MARKER, np.int64)
    while load.running:
        try:
            (index,) = [found for found in await client.describe() if found.index == INDEX]
            for _ in range(QUERIES):
                found = await client.retrieve(RetrievalQuery(INDEX, index.release, suffix, 8, 1, 4, 16))
                load.answers += 1
                load.mixed += found.release != index.release or found.tokens.tolist() != [numbers[index.release]]
        except Exception as error:
            load.failed += 1
            load.why = f"{type(error).__name__}: {error}"
    await client.close()


async def swap_figures(
    endpoint: str, redis_url: str, namespace: str, text: NDArray[np.generic], swaps: int, tokenizer: str
) -> Figures:
    """`swaps` publications with CLIENTS clients asking meanwhile; counts of failed and of mixed answers.

    The next release is published once the clients have had as many answers as all of them ask of one release.
    """
    store = RedisStore(redis_url, namespace=namespace)
    beyond = text[text.astype(np.int64) > max(_MARKER)]
    shared = segment_bytes(segment_from_documents([beyond]))
    entry = SegmentEntry(segment_digest(shared), len(shared), len(beyond))
    numbers: dict[str, int] = {}
    load = _Load()
    asking: list[asyncio.Task[None]] = []
    started = time.perf_counter()
    try:
        for number in range(100, 101 + swaps):
            release, own = _release(entry, number, tokenizer)
            # A release's number is known before anybody can see it.
            numbers[release.release_id] = number
            await asyncio.to_thread(_publish, store, release, [shared, own])
            await until_served(endpoint, release.release_id)
            asking = asking or [asyncio.create_task(_ask(endpoint, numbers, load)) for _ in range(CLIENTS)]
            # A retriever keeps a few releases, so no request may outlast that many swaps.
            enough = load.answers + load.failed + CLIENTS * QUERIES
            while load.answers + load.failed < enough:
                await asyncio.sleep(0.005)
        load.running = False
        seconds = time.perf_counter() - started
        await asyncio.gather(*asking)
        store.collect(0, 1)
    finally:
        store.close()
    return {
        "swaps": swaps,
        "swap_answers": load.answers,
        "swap_failed_answers": load.failed,
        "swap_last_failure": load.why,
        "swap_seconds": seconds,
        "swap_mixed_answers": load.mixed,
    }
