"""Build and query of one index: time, memory, in process and over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_corpus import TokenCorpus, contexts, distinct_windows, grown
from contracts.retrieval import RetrievalQuery
from retriever.publish import activate, publish
from retriever.query import SegmentSet, warm_up
from retriever.redis_store import RedisStore
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.segment import segment_from_documents
from retriever.segment_format import segment_bytes, segment_digest
from retriever.trie import QueryLimits
from services.clients.retriever import RetrieverClient

Figures = dict[str, float | int | str | bool]
BATCH = 32
LIMITS = QueryLimits(max_suffix=64, min_suffix=2, max_continuation=16, node_budget=64)
# Held out of every index: contexts come from text that continues otherwise than anything indexed.
HELD_OUT = 0.05
PASSES = 6


def split(corpus: TokenCorpus) -> tuple[TokenCorpus, list[NDArray[np.generic]]]:
    """Every twentieth document is held out for queries; the rest is what is indexed."""
    documents = corpus.documents()
    every = round(1 / HELD_OUT)
    kept = [document for number, document in enumerate(documents) if number % every]
    ends = np.cumsum([len(document) for document in kept])
    return TokenCorpus(np.concatenate(kept), ends, corpus.unique_share, corpus.seconds), documents[::every]


def query_times(segments: SegmentSet, queries: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Microseconds of each query: see `query_times_by_turns`."""
    return query_times_by_turns({"": segments}, queries)[""]


def query_times_by_turns(
    sets: Mapping[str, SegmentSet], queries: Sequence[NDArray[np.int64]]
) -> dict[str, NDArray[np.float64]]:
    """Microseconds of each query on each set: after one pass that brings the pages in, the least of PASSES passes.

    Other work on the machine only ever adds to a query, so percentiles are over queries, not over such disturbances. The
    sets take turns pass by pass, so that a slow spell of the machine meets all of them. What a pass touches is far larger
    than the processor's caches.
    """
    warm_up()
    least = {name: np.full(len(queries), np.inf) for name in sets}
    for turn in range(PASSES + 1):
        for name, segments in sets.items():
            times = np.empty(len(queries))
            for row, query in enumerate(queries):
                started = time.perf_counter_ns()
                segments.retrieve(query, LIMITS)
                times[row] = (time.perf_counter_ns() - started) / 1e3
            if turn > 0:
                least[name] = np.minimum(least[name], times)
    return least


def index_figures(corpus: TokenCorpus, held_out: list[NDArray[np.generic]], tokens: int, queries: int) -> Figures:
    """One segment of `tokens` distinct real tokens: build rate on one core, memory, query times."""
    cut = grown(corpus, tokens)
    started = time.perf_counter()
    segment = segment_from_documents(cut.documents())
    seconds = time.perf_counter() - started
    segments = SegmentSet([segment])
    asked = contexts(held_out, queries, LIMITS.max_suffix)
    times = query_times(segments, asked)
    found = [segments.retrieve(query, LIMITS) for query in asked]
    return {
        "tokens": segment.tokens,
        "unique_share": cut.unique_share,
        "distinct_32_gram_share": distinct_windows(cut.tokens, 32),
        "build_tokens_per_s_per_core": segment.tokens / seconds,
        "bytes_per_token": segments.resident_bytes / segments.tokens,
        "query_p50_us": float(np.percentile(times, 50)),
        "query_p99_us": float(np.percentile(times, 99)),
        "query_miss_share": float(np.mean([answer.miss for answer in found])),
        "query_mean_match_length": float(np.mean([answer.match_length for answer in found])),
        "query_mean_nodes": float(np.mean([answer.nodes for answer in found])),
    }


async def grpc_figures(endpoint: str, index: str, held_out: list[NDArray[np.generic]], queries: int) -> Figures:
    """One query after the other over one stream, from another process on this machine; then the same in batches."""
    client = RetrieverClient(endpoint)
    try:
        described = {found.index: found for found in await client.describe()}
        asked = contexts(held_out, queries, LIMITS.max_suffix, seed=2)
        times = []
        for turn, suffix in enumerate([*asked[:50], *asked]):
            query = RetrievalQuery(
                index,
                described[index].release,
                suffix,
                LIMITS.node_budget,
                LIMITS.max_continuation,
                LIMITS.min_suffix,
                LIMITS.max_suffix,
            )
            started = time.perf_counter_ns()
            await client.retrieve(query)
            if turn >= 50:
                times.append((time.perf_counter_ns() - started) / 1e3)
        shares = []
        for first in range(0, len(asked) - BATCH + 1, BATCH):
            started = time.perf_counter_ns()
            await client.retrieve_batch(query, asked[first : first + BATCH])
            shares.append((time.perf_counter_ns() - started) / 1e3 / BATCH)
        return {
            "grpc_query_p50_us": float(np.percentile(times, 50)),
            "grpc_query_p99_us": float(np.percentile(times, 99)),
            "grpc_batch_size": BATCH,
            "grpc_batch_query_p50_us": float(np.percentile(shares, 50)),
        }
    finally:
        await client.close()


def publish_corpus(store: RedisStore, index: str, corpus: TokenCorpus, tokens: int, tokenizer: str) -> str:
    """Publishes the first `tokens` tokens as a release of one segment and points the index at it; the release id."""
    segment = segment_from_documents(corpus.documents(tokens))
    data = segment_bytes(segment)
    entry = SegmentEntry(segment_digest(data), len(data), segment.tokens)
    manifest = ReleaseManifest("benchmark", "none", "", tokenizer, "none", 49_152, 64, 32, "benchmark", "none")
    release = Release(manifest, (entry,))
    publish(store, release, {entry.digest: data})
    activate(store, index, release.release_id)
    return release.release_id


async def until_served(endpoint: str, release: str, *, seconds: float = 120.0) -> None:
    """Returns once the retriever serves the release."""
    client = RetrieverClient(endpoint)
    try:
        async with asyncio.timeout(seconds):
            while release not in {index.release for index in await client.describe()}:
                await asyncio.sleep(0.05)
    finally:
        await client.close()


def folder(cache: Path) -> Path:
    """Where benchmarks keep tokenised text."""
    return cache / "retrieval-corpus"
