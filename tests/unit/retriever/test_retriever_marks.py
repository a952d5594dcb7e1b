"""Marks: that frequent nodes begin and end at them, what they cost, and that answers do not depend on them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from retriever import kernel_match, kernel_single
from retriever.kernel_marks import DEEPEST, FURTHER_RUN, LEAST_RUN
from retriever.marks import LEAST_TOKENS, Marks, marks_of
from retriever.query import SegmentSet
from retriever.segment import Segment, segment_from_documents
from retriever.segment_format import segment_bytes, segment_from_bytes
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import naive_retrieve


def marked(segment: Segment) -> Segment:
    """The segment with its marks, however small it is."""
    return replace(segment, marks=marks_of(segment.codes, segment.offsets_low, segment.offsets_high, least_tokens=1))


def short_documents(seed: int, number: int, longest: int = 12, ids: int = 7) -> list[list[int]]:
    """Many documents of few ids: wide matches, of which many end documents, and long repeats."""
    generator = np.random.default_rng(seed)
    repeated = generator.integers(0, ids, 60).tolist()
    rows = [generator.integers(0, ids, int(generator.integers(1, longest))).tolist() for _ in range(number)]
    return [repeated if row[0] == 0 and len(row) % 5 == 0 else row for row in rows]


def shared(segment: Segment) -> list[int]:
    """What neighbouring suffixes share, plainly: N + 1 numbers, 0 at both ends."""
    codes = segment.codes.tolist()
    suffixes = [codes[at : at + DEEPEST] for at in segment.offsets_low.tolist()]
    suffixes = [suffix[: suffix.index(0)] if 0 in suffix else suffix for suffix in suffixes]
    out = [0]
    for one, other in itertools.pairwise(suffixes):
        most = min(len(one), len(other))
        out.append(next((k for k in range(most) if one[k] != other[k]), most))
    return [*out, 0]


@pytest.mark.parametrize("seed", range(6))
def test_every_frequent_node_begins_at_a_mark_and_ends_before_one(seed: int) -> None:
    documents = short_documents(seed, 260 + 37 * seed)
    segment = marked(segment_from_documents(documents))
    share = shared(segment)
    for marks, least in zip(segment.marks, (LEAST_RUN, FURTHER_RUN), strict=True):
        ranks = {*marks.ranks.tolist(), segment.tokens}
        nodes = 0
        for depth in range(1, DEEPEST + 1):
            begin = 0
            for rank in range(1, segment.tokens + 1):
                if share[rank] < depth:
                    if rank - begin >= least:
                        assert {begin, rank} <= ranks
                        nodes += 1
                    begin = rank
        assert (nodes > 0) == (len(ranks) > 2)
        for at, (rank, (before, within)) in enumerate(zip(marks.ranks.tolist(), marks.shares.tolist(), strict=True)):
            following = marks.ranks[at + 1] if at + 1 < marks.ranks.shape[0] else segment.tokens
            # Runs shorter than that are told of only as far as the frequent ones around them need it.
            assert before <= share[rank]
            if following - rank >= least:
                assert within == min(share[rank + 1 : following])


def best_of_one(segment: Segment, context: list[int], depth: int, budget: int) -> int:
    """How many nodes are emitted without the walk by levels, -1 where it is needed; the matches are too many to be read."""
    table = SegmentSet([segment])._table
    low, high = np.empty((2, 1), np.int64)
    tokens = np.array(context)
    assert kernel_match.intervals(table, tokens, tokens.shape[0], low, high) > kernel_single.ALL_READ
    rows = np.empty((4, budget), np.int64)
    number, _ = kernel_single.best_of_one(table, low[0], high[0], len(context), depth, budget, *rows)
    return int(number)


@pytest.mark.parametrize("seed", range(2))
def test_answers_equal_a_naive_scan_where_matches_are_wide_and_end_documents(seed: int) -> None:
    documents = short_documents(seed, 3_500, ids=3)
    segment = marked(segment_from_documents(documents))
    by_marks = 0
    for context in ([1], [0], [2, 0], [1, 2, 0]):
        for depth, budget in ((1, 2), (2, 7), (5, 40), (16, 12)):
            expected = naive_retrieve(
                documents, context, max_suffix=4, min_suffix=1, max_continuation=depth, node_budget=budget
            )
            found = SegmentSet([segment]).retrieve(context, QueryLimits(4, 1, depth, budget))
            assert (found.match_length, found.match_count) == (expected.match_length, expected.match_count)
            assert tuple(zip(found.paths(), found.counts.tolist(), strict=True)) == expected.nodes
            assert found.truncated == expected.truncated
            by_marks += best_of_one(segment, context, depth, budget) == budget
    assert 0 < by_marks < 16


@pytest.fixture(scope="module")
def large() -> Segment:
    generator = np.random.default_rng(5)
    drawn = [np.minimum(generator.zipf(1.4, 30_000) - 1, 400) for _ in range(5)]
    short = [row[at : at + 9] for row in drawn for at in range(0, 3_000, 9)]
    return segment_from_documents([*drawn, drawn[0], *short])


def test_answers_are_the_same_without_them(large: Segment) -> None:
    with_them, without = SegmentSet([large]), SegmentSet([replace(large, marks=())])
    ids = np.asarray(large.token_documents()[0])
    generator = np.random.default_rng(6)
    for turn in range(200):
        end = int(generator.integers(2, ids.size))
        limits = QueryLimits(1 + turn % 3, 1, (16, 4, 1, 39)[turn % 4], (64, 1, 16, 200)[turn // 4 % 4])
        found = with_them.retrieve(ids[:end], limits)
        assert found.same_as(without.retrieve(ids[:end], limits))


def test_wide_matches_are_answered_by_marks_up_to_the_depth_that_they_know(large: Segment) -> None:
    wide = segment_from_documents([*large.token_documents(), *large.token_documents()[:6] * 3])
    assert best_of_one(wide, [0], DEEPEST - 1, 16) == 16
    assert best_of_one(wide, [0], DEEPEST, 16) == -1
    assert best_of_one(replace(wide, marks=()), [0], 16, 16) == -1
    assert best_of_one(replace(wide, marks=wide.marks[:1]), [0], 16, 16) == 16
    counts = SegmentSet([wide]).retrieve([0], QueryLimits(1, 1, 1, 16)).match_count
    assert counts >= kernel_single.FREQUENT * FURTHER_RUN


def test_they_are_made_when_a_segment_is_opened_and_are_in_no_file(large: Segment) -> None:
    data = segment_bytes(large)
    assert data == segment_bytes(replace(large, marks=()))
    opened = segment_from_bytes(data)
    for one, other in zip(opened.marks, large.marks, strict=True):
        assert isinstance(one, Marks)
        assert np.array_equal(one.ranks, other.ranks)
        assert np.array_equal(one.shares, other.shares)


def test_a_small_segment_has_none() -> None:
    assert segment_from_documents([range(LEAST_TOKENS - 1)]).marks == ()
    assert len(segment_from_documents([range(LEAST_TOKENS)]).marks) == 2
