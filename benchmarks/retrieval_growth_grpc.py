"""How a query's time over gRPC grows with the index: a retriever process for each size, asked in turns by one client."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_corpus import TokenCorpus, contexts, grown
from benchmarks.retrieval_growth import built, size_name
from benchmarks.retrieval_index import LIMITS, Figures
from contracts.retrieval import RetrievalQuery
from retriever.publish import activate, publish
from retriever.query import SegmentSet
from retriever.redis_store import RedisStore
from retriever.release import Release, ReleaseManifest, SegmentEntry
from retriever.segment_cache import SegmentCache
from services.clients.retriever import RetrieverClient
from services.redis_embedded import EmbeddedRedis, free_port
from services.settings import AllSettings, load
from services.stack import child_environment
from services.supervisor import ChildSpec, Supervisor

PASSES = 4


async def grpc_growth_figures(
    corpus: TokenCorpus, held_out: list[NDArray[np.generic]], sizes: Sequence[int], queries: int, directory: Path
) -> Figures:
    """Percentiles over contexts of the least of PASSES times, at every size, and of all times; see `growth_figures`.

    The same *known* and *found* contexts as there, a quarter of them.
    """
    known = contexts(grown(corpus, sizes[0]).documents(), queries, LIMITS.max_suffix, seed=1)[::4]
    cache = SegmentCache(directory)
    with tempfile.TemporaryDirectory(prefix="draftproof-growth-") as place:
        redis = EmbeddedRedis(Path(place) / "redis")
        try:
            releases: dict[str, str] = {}
            for size in sizes:
                digests = built(grown(corpus, size), 1, directory)
                releases[size_name(size)] = _published(redis.url, cache, digests[0], size_name(size))
                if size == sizes[0]:
                    smallest = SegmentSet([segment for d in digests if (segment := cache.open(d)) is not None])
            new = contexts(held_out, queries, LIMITS.max_suffix, seed=1)
            found = [context for context in new if not smallest.retrieve(context, LIMITS).miss][::4]
            ports = {name: free_port() for name in releases}
            specs = [_spec(name, port, redis.url, Path(place)) for name, port in ports.items()]
            async with Supervisor(specs, lambda *_: None) as supervisor:
                await supervisor.start()
                clients = {name: RetrieverClient(f"127.0.0.1:{port}") for name, port in ports.items()}
                try:
                    figures: Figures = {}
                    for kind, asked in {"known": known, "found": found}.items():
                        figures |= _figures(kind, await _times(clients, releases, asked))
                    return figures
                finally:
                    for client in clients.values():
                        await client.close()
        finally:
            redis.stop()


def _published(redis_url: str, cache: SegmentCache, digest: str, index: str) -> str:
    """Publishes the segment as an index's release; the release id."""
    path = cache.path(digest)
    segment = cache.open(digest)
    assert segment is not None
    manifest = ReleaseManifest("benchmark", "none", "", "benchmark", "none", 49_152, 64, 32, "benchmark", "none")
    release = Release(manifest, (SegmentEntry(digest, path.stat().st_size, segment.tokens),))
    store = RedisStore(redis_url, namespace=index)
    try:
        publish(store, release, {digest: path})
        activate(store, index, release.release_id)
    finally:
        store.close()
    return release.release_id


def _spec(name: str, port: int, redis_url: str, place: Path) -> ChildSpec:
    settings = load(AllSettings, cache_dir=place / name, redis_namespace=name, segment_memory="copied")
    return ChildSpec(
        name=f"retriever-{name}",
        command=[sys.executable, "-m", "services.cli", "serve", "retriever", "--follow-stdin"],
        endpoint=f"127.0.0.1:{port}",
        environment=child_environment(settings, {"retriever": port}, redis_url),
        log=place / f"{name}.log",
    )


async def _times(
    clients: Mapping[str, RetrieverClient], releases: Mapping[str, str], asked: Sequence[NDArray[np.int64]]
) -> dict[str, NDArray[np.float64]]:
    """Microseconds [PASSES, contexts] of each query at each size, the sizes in turns context by context."""
    times = {name: np.empty((PASSES + 1, len(asked))) for name in clients}
    for turn in range(PASSES + 1):
        for row, suffix in enumerate(asked):
            for name, client in clients.items():
                query = RetrievalQuery(
                    name, releases[name], suffix, LIMITS.node_budget, LIMITS.max_continuation, LIMITS.min_suffix,
                    LIMITS.max_suffix,
                )  # fmt: skip
                started = time.perf_counter_ns()
                await client.retrieve(query)
                times[name][turn, row] = (time.perf_counter_ns() - started) / 1e3
    return {name: rows[1:] for name, rows in times.items()}


def _figures(kind: str, times: Mapping[str, NDArray[np.float64]]) -> Figures:
    figures: Figures = {}
    names = list(times)
    for label, rows in {
        "": {n: times[n].min(axis=0) for n in names},
        "_all": {n: times[n].ravel() for n in names},
    }.items():
        for percentile in (50, 99):
            at = {name: float(np.percentile(rows[name], percentile)) for name in names}
            figures |= {f"grpc{label}_{kind}_p{percentile}_us_{name}": value for name, value in at.items()}
            figures[f"grpc{label}_growth_{kind}_p{percentile}"] = at[names[-1]] / at[names[0]]
    return figures
