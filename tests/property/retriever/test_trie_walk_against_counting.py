"""Every walk equals plain counting: skewed counts, ties at the cut, many segments, every budget.

Few matches in several segments are read and merged, unless their segments number tokens in alphabets of their own, as those
of large ids do: then the walk by levels answers.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import best_first

START = 1
# Ids from here on have no 16-bit codes of one meaning everywhere.
LARGE = 1 << 20
Path = tuple[int, ...]


@st.composite
def tries(draw: st.DrawFn) -> Counter[Path]:
    """Continuations and how often each follows: a few frequent ones, many that tie, and a tail of rare ones."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.sampled_from(("skewed", "level", "level and one", "chains")))
    children = draw(st.integers(1, 90))
    depth = draw(st.integers(1, 4))
    base = draw(st.integers(1, 12))
    found: Counter[Path] = Counter()
    for child in generator.permutation(children).tolist():
        times = {
            "skewed": 1 + 200 // (child + 1),
            "level": base,
            "level and one": base + (child % 7 == 0),
            "chains": base * (1 + child % 3),
        }[shape]
        for _ in range(times if shape != "chains" else 1):
            tail = generator.integers(0, 1 + child % 4, int(generator.integers(0, depth))).tolist()
            found[(child + 2, *(token + 2 for token in tail))] += times if shape == "chains" else 1
    return found


def counts_of(found: Counter[Path], depth: int) -> Counter[Path]:
    counts: Counter[Path] = Counter()
    for path, times in found.items():
        for length in range(1, min(depth, len(path)) + 1):
            counts[path[:length]] += times
    return counts


def segments_of(found: Counter[Path], cut: list[int], above: int) -> SegmentSet:
    """The continuations behind START, dealt to segments: each to one of them by turns in `cut`; ids are that much larger."""
    documents: list[list[list[int]]] = [[] for _ in range(max(cut) + 1)]
    turn = 0
    for path, times in found.items():
        for _ in range(times):
            documents[cut[turn % len(cut)]].append([START, *path])
            turn += 1
    # Other text before and behind, so that intervals begin and end anywhere.
    parts = [[[0] * (7 * n + 1), *part, [900]] for n, part in enumerate(documents)]
    return SegmentSet([segment_from_documents([[above + token for token in row] for row in part]) for part in parts])


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    found=tries(),
    cut=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    budget=st.integers(1, 64),
    depth=st.integers(1, 5),
    above=st.sampled_from((0, LARGE)),
)
def test_the_walk_equals_counting_everything(
    found: Counter[Path], cut: list[int], budget: int, depth: int, above: int
) -> None:
    nodes, truncated = best_first(counts_of(found, depth), budget)
    answer = segments_of(found, cut, above).retrieve([above + START], QueryLimits(1, 1, depth, budget))
    assert answer.match_count == sum(found.values())
    paths = [tuple(token - above for token in path) for path in answer.paths()]
    assert tuple(zip(paths, answer.counts.tolist(), strict=True)) == nodes
    assert answer.truncated == truncated


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    count=st.integers(1, 200),
    others=st.integers(0, 500),
    shift=st.integers(0, 300),
    offset=st.integers(-1, 1),
    parts=st.integers(1, 5),
)
def test_a_count_at_the_threshold_is_listed_and_one_below_is_not(
    count: int, others: int, shift: int, offset: int, parts: int
) -> None:
    """Wherever the run stands relative to the probes, and however it is cut into segments."""
    followers = [2] * shift + [5] * count + list(range(10, 10 + others))
    documents = [[[START, token] for token in followers[part::parts]] for part in range(parts)]
    segments = SegmentSet([segment_from_documents(part) for part in documents])
    listed = segments.above([START], 1, max(1, count + offset), 2_000)
    counts = Counter(followers)
    expected = {(token,): number for token, number in sorted(counts.items()) if number >= max(1, count + offset)}
    assert dict(zip(listed.paths(), listed.counts.tolist(), strict=True)) == expected
    assert ((5,) in expected) == (offset < 1 or count + offset <= count)
    assert listed.truncated == (len(expected) < len(counts))
