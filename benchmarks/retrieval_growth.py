"""How a query's time grows with the index: the same contexts at every size, warmed alike, and the work beside the time.

Three kinds of context, each asked at all sizes (a smaller index is the beginning of a larger one):

* *known*: taken from the smallest index, so that all hold them whole. What size alone costs.
* *found*: from held-out documents, those that the smallest index matches. All sizes answer; a larger one more fully.
* *new*: from held-out documents as they come. Most miss at the smallest size and are answered at the largest.

Segments are opened from files as a retriever opens them, mapped or copied (`DRAFTPROOF_SEGMENT_MEMORY`); files of an earlier
run over the same text are used again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_corpus import TokenCorpus, contexts, grown
from benchmarks.retrieval_index import LIMITS, Figures, query_times
from retriever.query import SegmentSet
from retriever.segment_cache import SegmentCache
from retriever.segment_format import build_segment, segment_digest
from retriever.sources import AIMED_SEGMENTS


def growth_figures(
    corpus: TokenCorpus,
    held_out: list[NDArray[np.generic]],
    sizes: Sequence[int],
    queries: int,
    directory: Path,
    *,
    copied: bool,
) -> Figures:
    """Times and work of every kind at every size, as one segment; the largest also cut as `index build` cuts a corpus.

    growth_KIND_p50 and _p99: the largest size's percentile over the smallest's. growth_log: the logarithms of the sizes
    likewise; "no faster than logarithmically" means that the former are at most the latter.
    """
    new = contexts(held_out, queries, LIMITS.max_suffix, seed=1)
    kinds = {"known": contexts(grown(corpus, sizes[0]).documents(), queries, LIMITS.max_suffix, seed=1), "new": new}
    figures: Figures = {"growth_segment_memory": "copied" if copied else "mapped"}
    for size in sizes:
        cut = grown(corpus, size)
        name = f"1e{round(np.log10(size))}"
        one = _opened(cut, 1, directory, copied=copied)
        if "found" not in kinds:
            kinds["found"] = [context for context in new if not one.retrieve(context, LIMITS).miss]
        for kind, asked in kinds.items():
            figures |= _at(one, asked, f"{kind}_{name}")
        figures[f"unique_share_{name}"] = cut.unique_share
        figures[f"bytes_per_token_{name}"] = one.resident_bytes / one.tokens
    for kind in kinds:
        for percentile in ("p50", "p99"):
            first, last = (f"query_{percentile}_us_{kind}_1e{round(np.log10(size))}" for size in (sizes[0], sizes[-1]))
            figures[f"growth_{kind}_{percentile}"] = float(figures[last]) / float(figures[first])
    figures["growth_log"] = float(np.log(sizes[-1]) / np.log(sizes[0]))
    figures["growth_found_contexts"] = len(kinds["found"])
    several = _opened(grown(corpus, sizes[-1]), AIMED_SEGMENTS, directory, copied=copied)
    for kind, asked in kinds.items():
        figures |= _at(several, asked, f"{kind}_{name}_in_{AIMED_SEGMENTS}")
    return figures


def _at(segments: SegmentSet, asked: Sequence[NDArray[np.int64]], name: str) -> Figures:
    times = query_times(segments, asked)
    found = [segments.retrieve(context, LIMITS) for context in asked]
    return {
        f"query_p50_us_{name}": float(np.percentile(times, 50)),
        f"query_p99_us_{name}": float(np.percentile(times, 99)),
        f"miss_share_{name}": float(np.mean([answer.miss for answer in found])),
        f"mean_nodes_{name}": float(np.mean([answer.nodes for answer in found])),
        f"median_matches_{name}": float(np.median([answer.match_count for answer in found])),
        f"mean_matches_{name}": float(np.mean([answer.match_count for answer in found])),
    }


def _opened(corpus: TokenCorpus, parts: int, directory: Path, *, copied: bool) -> SegmentSet:
    """The corpus in `parts` segments, built where an earlier run has not left them."""
    cache = SegmentCache(directory, copied=copied)
    text = hashlib.sha256(corpus.tokens.tobytes() + corpus.ends.tobytes()).hexdigest()
    note = directory / f"growth-{text[:16]}-{parts}.json"
    digests: list[str] = json.loads(note.read_text()) if note.exists() else []
    if not digests or not all(cache.path(digest).exists() for digest in digests):
        digests = []
        documents = corpus.documents()
        bounds = np.linspace(0, len(documents), parts + 1).astype(int)
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            data = build_segment(documents[begin:end])
            digests.append(segment_digest(data))
            cache.put(digests[-1], [data])
        note.write_text(json.dumps(digests))
    opened = [cache.open(digest) for digest in digests]
    return SegmentSet([segment for segment in opened if segment is not None])
