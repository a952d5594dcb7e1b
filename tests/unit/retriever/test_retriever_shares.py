"""Shares: what suffixes 16 ranks apart have in common, what that costs, and that answers do not depend on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retriever import kernel_match, kernel_shares, kernel_single, kernel_table
from retriever.kernel_shares import BLOCK_BITS, COARSER_BITS, MOST_SHARED
from retriever.query import SegmentSet
from retriever.segment import Segment, segment_from_documents
from retriever.segment_format import segment_bytes, segment_from_bytes
from retriever.shares import LEAST_TOKENS, Shares, shares_of
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import naive_retrieve

BLOCK = 1 << BLOCK_BITS


def with_shares(segment: Segment) -> Segment:
    """The segment with its shares, however small it is."""
    return replace(segment, shares=shares_of(segment.codes, segment.offsets_low, segment.offsets_high, least_tokens=1))


def short_documents(seed: int, number: int, longest: int = 12, ids: int = 7) -> list[list[int]]:
    """Many documents of few ids: wide matches, of which many end documents, and long repeats."""
    generator = np.random.default_rng(seed)
    repeated = generator.integers(0, ids, 300).tolist()
    rows = [generator.integers(0, ids, int(generator.integers(1, longest))).tolist() for _ in range(number)]
    return [repeated if row[0] == 0 and len(row) % 5 == 0 else row for row in rows]


def suffix(segment: Segment, rank: int) -> list[int]:
    """The suffix at a rank to its document's end, by plain reading."""
    codes = segment.codes[int(segment.offsets_low[rank]) :].tolist()
    return codes[: codes.index(0)]


def in_common(one: list[int], other: list[int]) -> int:
    most = min(len(one), len(other))
    return next((k for k in range(most) if one[k] != other[k]), most)


@pytest.mark.parametrize("seed", range(4))
def test_they_are_what_suffixes_16_ranks_apart_have_in_common(seed: int) -> None:
    segment = with_shares(segment_from_documents(short_documents(seed, 700 + 37 * seed)))
    assert segment.shares is not None
    ranks = range(0, segment.tokens, BLOCK)
    plain = [in_common(suffix(segment, rank), suffix(segment, rank + BLOCK)) for rank in ranks[:-1]]
    assert segment.shares.fine.tolist() == [min(MOST_SHARED, number) for number in plain]
    assert max(plain) > MOST_SHARED
    whole = range(0, len(plain) >> COARSER_BITS << COARSER_BITS, 1 << COARSER_BITS)
    assert segment.shares.coarse.tolist() == [min(plain[at : at + (1 << COARSER_BITS)]) for at in whole]
    assert len(whole) > 1


def test_any_two_ranks_of_them_share_the_least_between() -> None:
    segment = with_shares(segment_from_documents(short_documents(9, 2_000)))
    table = SegmentSet([segment])._table
    last = (segment.tokens - 1) >> BLOCK_BITS
    generator = np.random.default_rng(3)
    spans = [sorted(generator.choice(last + 1, 2, replace=False).tolist()) for _ in range(200)]
    spans += [[0, 64], [64, 128], [0, 128]]
    for low, high in spans:
        plain = in_common(suffix(segment, low * BLOCK), suffix(segment, high * BLOCK))
        assert kernel_shares.least_share(table, low * BLOCK, high * BLOCK) == min(MOST_SHARED, plain)


def best_of_one(segment: Segment, context: list[int], depth: int, budget: int) -> int:
    """How many nodes are emitted without the walk by levels, -1 where it is needed; the matches are too many to be read."""
    table = SegmentSet([segment])._table
    low, high = np.empty((2, 1), np.int64)
    tokens = np.array(context)
    assert kernel_match.intervals(table, tokens, tokens.shape[0], low, high) > kernel_single.ALL_READ
    rows = np.empty((4, budget), np.int64)
    number, _ = kernel_single.best_of_one(table, low[0], high[0], len(context), depth, budget, *rows)
    return int(number)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_answers_equal_a_naive_scan_where_matches_are_wide_and_end_documents(seed: int, known: bool) -> None:
    documents = short_documents(seed, 3_500, ids=3)
    segment = replace(with_shares(segment_from_documents(documents)), **({} if known else {"shares": None}))
    sampled = 0
    for context in ([1], [0], [2, 0], [1, 2, 0]):
        for depth, budget in ((1, 2), (2, 7), (5, 40), (16, 12), (16, 150)):
            expected = naive_retrieve(
                documents, context, max_suffix=4, min_suffix=1, max_continuation=depth, node_budget=budget
            )
            found = SegmentSet([segment]).retrieve(context, QueryLimits(4, 1, depth, budget))
            assert (found.match_length, found.match_count) == (expected.match_length, expected.match_count)
            assert tuple(zip(found.paths(), found.counts.tolist(), strict=True)) == expected.nodes
            assert found.truncated == expected.truncated
            sampled += best_of_one(segment, context, depth, budget) == budget
    assert sampled == 20


@pytest.fixture(scope="module")
def large() -> Segment:
    generator = np.random.default_rng(5)
    drawn = [np.minimum(generator.zipf(1.4, 60_000) - 1, 400) for _ in range(5)]
    short = [row[at : at + 9] for row in drawn for at in range(0, 3_000, 9)]
    return segment_from_documents([*drawn, drawn[0], *short])


@pytest.mark.parametrize("read_few", [True, False])
def test_answers_are_the_same_without_them_and_by_the_walk_by_levels(large: Segment, read_few: bool) -> None:
    """In two segments the walk by levels answers, which knows no samples."""
    half = large.token_documents()
    ways = [SegmentSet([large]), SegmentSet([replace(large, shares=None)])]
    levels = SegmentSet([segment_from_documents(half[::2]), segment_from_documents(half[1::2])])
    ids = np.asarray(half[0])
    generator = np.random.default_rng(6 + read_few)
    for turn in range(150):
        end = int(generator.integers(2, ids.size))
        longest = 1 + turn % 2 if read_few else 1 + turn % 4
        limits = QueryLimits(longest, 1, (16, 4, 1, 39)[turn % 4], (64, 1, 16, 200)[turn // 4 % 4])
        expected = levels.retrieve(ids[:end], limits)
        for way in ways:
            assert way.retrieve(ids[:end], limits).same_as(expected)


def test_wide_matches_need_no_walk_by_levels_with_them_and_without(large: Segment) -> None:
    assert best_of_one(large, [0], 16, 64) == 64
    assert best_of_one(replace(large, shares=None), [0], 16, 64) == 64
    assert SegmentSet([large]).retrieve([0], QueryLimits(1, 1, 1, 16)).match_count > 64 * kernel_single.WIDE // 4


def test_matches_that_hardly_repeat_are_left_to_the_walk_by_levels() -> None:
    documents = [[1, 2 + turn] for turn in range(9_000)] + [[1, 2], [1, 2], [1, 7]]
    segment = with_shares(segment_from_documents(documents))
    assert best_of_one(segment, [1], 4, 8) == -1
    answer = SegmentSet([segment]).retrieve([1], QueryLimits(1, 1, 4, 8))
    assert answer.tokens.tolist() == [2, 7, 3, 4, 5, 6, 8, 9]
    assert answer.counts.tolist() == [3, 2, 1, 1, 1, 1, 1, 1]


def test_deeper_than_a_share_tells_the_text_is_read(large: Segment) -> None:
    table = SegmentSet([large])._table
    assert kernel_shares.knows(table, MOST_SHARED)
    assert not kernel_shares.knows(table, MOST_SHARED + 1)
    limits = QueryLimits(1, 1, MOST_SHARED, 64)
    answer = SegmentSet([large]).retrieve([0], limits)
    assert answer.same_as(SegmentSet([replace(large, shares=None)]).retrieve([0], limits))


def test_offsets_of_five_bytes_make_no_difference() -> None:
    documents = short_documents(1, 900)
    narrow = with_shares(segment_from_documents(documents))
    wide = with_shares(segment_from_documents(documents, wide_offsets=True))
    assert narrow.shares is not None
    assert wide.shares is not None
    assert np.array_equal(narrow.shares.fine, wide.shares.fine)


def test_they_are_made_when_a_segment_is_opened_and_are_in_no_file(large: Segment) -> None:
    data = segment_bytes(large)
    assert data == segment_bytes(replace(large, shares=None))
    opened = segment_from_bytes(data)
    assert isinstance(opened.shares, Shares)
    assert large.shares is not None
    assert np.array_equal(opened.shares.fine, large.shares.fine)
    assert np.array_equal(opened.shares.coarse, large.shares.coarse)
    assert opened.shares.nbytes < large.tokens / 16 + large.tokens / 1024


def test_a_small_segment_has_none() -> None:
    assert segment_from_documents([range(LEAST_TOKENS - 1)]).shares is None
    made = segment_from_documents([range(LEAST_TOKENS)])
    assert made.shares is not None
    assert kernel_shares.knows(SegmentSet([made])._table, 1)
    assert not kernel_shares.knows(np.zeros((1, kernel_table.COLUMNS), np.int64), 1)
