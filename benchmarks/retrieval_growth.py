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
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.retrieval_corpus import TokenCorpus, contexts, grown
from benchmarks.retrieval_index import LIMITS, Figures, query_times_by_turns
from retriever.joining import joined
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
    """Times and work of every kind at every size, as one segment; the largest also cut as `index build` cuts a corpus,
    its segments apart and joined as a retriever joins them.

    growth_KIND_p50_us_per_decade and _p99: what each further factor of ten adds; a time of a + b log n adds the same every
    time. growth_KIND_p50_over_log and _p99: see `over_log`. growth_KIND_p50 and _p99: the largest size's percentile over the
    smallest's; growth_log: the logarithms of the sizes likewise, which the former stay below where the fixed part is large.
    """
    new = contexts(held_out, queries, LIMITS.max_suffix, seed=1)
    known = contexts(grown(corpus, sizes[0]).documents(), queries, LIMITS.max_suffix, seed=1)
    figures: Figures = {"growth_segment_memory": "copied" if copied else "mapped"}
    opened: dict[str, SegmentSet] = {}
    for size in sizes:
        cut = grown(corpus, size)
        name = size_name(size)
        opened[name] = _built_and_opened(cut, 1, directory, figures, name, copied=copied)
        figures[f"unique_share_{name}"] = cut.unique_share
        figures[f"bytes_per_token_{name}"] = opened[name].resident_bytes / opened[name].tokens
    first, last = next(iter(opened)), name
    cut_up = f"{last}_in_{AIMED_SEGMENTS}"
    opened[cut_up] = _built_and_opened(cut, AIMED_SEGMENTS, directory, figures, cut_up, copied=copied)
    started = time.perf_counter()
    parts = opened[cut_up].segments
    whole = joined(parts, LIMITS.max_suffix + LIMITS.max_continuation)
    figures[f"join_s_{cut_up}"] = time.perf_counter() - started
    opened[f"{cut_up}_joined"] = SegmentSet([whole])
    figures["growth_huge_page_share"] = _huge_page_share()
    found = [context for context in new if not opened[first].retrieve(context, LIMITS).miss]
    figures["growth_found_contexts"] = len(found)
    figures["growth_log"] = float(np.log(sizes[-1]) / np.log(sizes[0]))
    for kind, asked in {"known": known, "found": found, "new": new}.items():
        times = query_times_by_turns(opened, asked)
        for name, segments in opened.items():
            figures |= _at(segments, asked, times[name], f"{kind}_{name}")
        for percentile in (50, 99):
            at = {name: float(np.percentile(times[name], percentile)) for name in opened}
            figures[f"growth_{kind}_p{percentile}"] = at[last] / at[first]
            by_size = [at[size_name(size)] for size in sizes]
            added = np.diff(by_size) / np.diff(np.log10(sizes))
            figures[f"growth_{kind}_p{percentile}_us_per_decade"] = ", ".join(f"{step:+.1f}" for step in added)
            figures[f"growth_{kind}_p{percentile}_over_log"] = over_log(sizes, by_size)
    return figures


def over_log(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The time at the largest size over what a + b log n, drawn through the times at the smaller ones by least squares,
    gives there: at most 1 where time grows no faster than logarithmically. At least three sizes."""
    slope, start = np.polyfit(np.log(sizes[:-1]), times[:-1], 1)
    return float(times[-1] / (start + slope * np.log(sizes[-1])))


def _at(segments: SegmentSet, asked: Sequence[NDArray[np.int64]], times: NDArray[np.float64], name: str) -> Figures:
    found = [segments.retrieve(context, LIMITS) for context in asked]
    return {
        f"query_p50_us_{name}": float(np.percentile(times, 50)),
        f"query_p99_us_{name}": float(np.percentile(times, 99)),
        f"miss_share_{name}": float(np.mean([answer.miss for answer in found])),
        f"mean_nodes_{name}": float(np.mean([answer.nodes for answer in found])),
        f"median_matches_{name}": float(np.median([answer.match_count for answer in found])),
        f"mean_matches_{name}": float(np.mean([answer.match_count for answer in found])),
    }


def _huge_page_share() -> float:
    """How much of this process's own memory lies in huge pages, by the kernel's account."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return kib["AnonHugePages"] / kib["Anonymous"]


def size_name(size: int) -> str:
    """A size as figures call it."""
    return f"1e{round(np.log10(size))}"


def built(corpus: TokenCorpus, parts: int, directory: Path) -> list[str]:
    """The digests of the corpus' segments, `parts` of them, built where an earlier run has not left them."""
    cache = SegmentCache(directory)
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
    return digests


def _built_and_opened(
    corpus: TokenCorpus, parts: int, directory: Path, figures: Figures, name: str, *, copied: bool
) -> SegmentSet:
    """The corpus in `parts` segments; figures get how long opening took."""
    digests = built(corpus, parts, directory)
    cache = SegmentCache(directory, copied=copied)
    started = time.perf_counter()
    opened = [cache.open(digest) for digest in digests]
    figures[f"open_s_{name}"] = time.perf_counter() - started
    return SegmentSet([segment for segment in opened if segment is not None])
