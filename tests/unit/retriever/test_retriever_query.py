"""Queries: the trace of M7.7, limits, misses, batches, several segments."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.errors import InvalidArgument, ResourceExhausted
from retriever import kernel_query
from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE


def over(*segments: list[list[int]]) -> SegmentSet:
    return SegmentSet([segment_from_documents(documents) for documents in segments])


def test_the_trace_of_m77() -> None:
    answer = over([TRACE]).retrieve([1, 4, 5, 6], QueryLimits())
    assert (answer.match_length, answer.match_count, answer.truncated, answer.miss) == (3, 2, False, False)
    counts = dict(zip(answer.paths(), answer.counts.tolist(), strict=True))
    assert counts[(9,)] == counts[(10,)] == counts[(9, 4, 5, 6, 10)] == 1
    assert [t for t, d in zip(answer.tokens.tolist(), answer.depths.tolist(), strict=True) if d == 1] == [9, 10]
    assert len(counts) == 8


def test_rows_have_their_declared_types_and_parents_come_first() -> None:
    answer = over([TRACE]).retrieve([4, 5, 6], QueryLimits())
    assert (answer.tokens.dtype, answer.parents.dtype) == (np.int64, np.int64)
    assert (answer.counts.dtype, answer.depths.dtype) == (np.int64, np.int64)
    assert all(parent < row for row, parent in enumerate(answer.parents.tolist()))


def test_a_budget_cuts_the_least_frequent_and_says_so() -> None:
    documents = [[1, 7]] * 3 + [[1, 5]] * 2 + [[1, 3]]
    answer = over(documents).retrieve([1], QueryLimits(node_budget=2))
    assert answer.tokens.tolist() == [7, 5]
    assert answer.counts.tolist() == [3, 2]
    assert answer.truncated
    assert not over(documents).retrieve([1], QueryLimits(node_budget=3)).truncated


def test_the_depth_limit_alone_is_not_truncation() -> None:
    answer = over([[1, 2, 3, 4]]).retrieve([1], QueryLimits(max_continuation=2))
    assert answer.paths() == [(2,), (2, 3)]
    assert not answer.truncated


def test_counts_of_segments_add_up() -> None:
    answer = over([[1, 2]], [[1, 3], [1, 2]], []).retrieve([1], QueryLimits())
    assert answer.tokens.tolist() == [2, 3]
    assert answer.counts.tolist() == [2, 1]
    assert answer.match_count == 3


def test_a_continuation_never_leaves_its_document() -> None:
    answer = over([[1, 2], [3, 4]]).retrieve([1], QueryLimits())
    assert answer.paths() == [(2,)]
    assert over([[1, 2], [3, 4]]).retrieve([2], QueryLimits()).miss


def test_the_longest_suffix_wins_within_its_limits() -> None:
    corpus = over([[1, 2, 3, 8], [9, 3, 7]])
    assert corpus.retrieve([1, 2, 3], QueryLimits()).match_length == 3
    assert corpus.retrieve([1, 2, 3], QueryLimits(max_suffix=1)).match_count == 2
    assert corpus.retrieve([5, 3], QueryLimits(min_suffix=2)).miss


def test_a_miss_is_empty() -> None:
    for context in ([], [77], [6, 77], [2**32 - 1]):
        answer = over([TRACE]).retrieve(context, QueryLimits())
        assert (answer.miss, answer.nodes, answer.match_length, answer.match_count) == (True, 0, 0, 0)
    assert over().retrieve([4], QueryLimits()).miss


def test_ids_that_differ_by_65536_are_different_tokens() -> None:
    answer = over([[70_000, 1]], [[70_000 - 65_536, 2]]).retrieve([70_000], QueryLimits())
    assert answer.tokens.tolist() == [1]


def test_a_batch_answers_each_context_in_order() -> None:
    corpus = over([TRACE])
    contexts = [[4], [99], [5, 6]]
    for one, many in zip(contexts, corpus.retrieve_batch(contexts, QueryLimits()), strict=True):
        assert corpus.retrieve(one, QueryLimits()).same_as(many)


@pytest.mark.parametrize("context", [[-1], [2**32], [0.5], [[1]]])
def test_a_context_that_is_no_row_of_ids_is_refused(context: list[float]) -> None:
    with pytest.raises(InvalidArgument, match="context"):
        over([TRACE]).retrieve(context, QueryLimits())


@pytest.mark.parametrize("outside", [-1, 2**32, -(2**63), 2**63 - 1])
def test_an_array_with_a_number_that_is_no_id_is_refused_where_it_would_be_read(outside: int) -> None:
    corpus = over([TRACE])
    for context in ([outside, 5, 6], [5, 6, outside]):
        with pytest.raises(InvalidArgument, match=r"context: token ids lie in \[0, 4294967295\]"):
            corpus.retrieve(np.array(context), QueryLimits(max_suffix=3))
    assert corpus.retrieve(np.array([outside, 5, 6]), QueryLimits(max_suffix=2)).match_length == 2


def test_a_context_is_read_alike_whatever_it_is_held_in() -> None:
    corpus = over([TRACE])
    context = [77, 4, 5, 6]
    expected = corpus.retrieve(context, QueryLimits())
    assert expected.match_length == 3
    row = np.array(context)
    sealed = row.copy()
    sealed.flags.writeable = False
    others = (row, sealed, np.repeat(row, 2)[::2], row.astype(">i8"), row.astype(np.uint32), row.astype(np.uint64))
    for other in others:
        before = other.tobytes()
        assert corpus.retrieve(other, QueryLimits()).same_as(expected)
        assert other.tobytes() == before
    # A signature more is compiled in the middle of a request.
    assert len(kernel_query.continuations.signatures) == 1


@pytest.mark.parametrize("budget", [1, 3, 8, 24, 1024, 1025, 5000])
def test_an_answers_rows_hold_its_nodes_and_no_more_whatever_the_budget(budget: int) -> None:
    answer = over([TRACE]).retrieve(np.array([4, 5, 6]), QueryLimits(node_budget=budget))
    assert answer.nodes == min(budget, 8)
    for row in (answer.tokens, answer.parents, answer.depths, answer.counts):
        assert (row.shape, row.flags.carray) == ((answer.nodes,), True)
    assert answer.paths() == over([TRACE]).retrieve([4, 5, 6], QueryLimits()).paths()[:budget]


def test_exactly_a_suffix_is_asked_for_and_no_shorter_one() -> None:
    corpus = over([[1, 2, 3, 8], [9, 3, 7]])
    limits = QueryLimits()
    assert corpus.best([1, 2, 3], limits).same_as(corpus.retrieve([1, 2, 3], limits))
    assert corpus.best([3], limits).match_count == 2
    assert corpus.best([5, 3], limits).miss
    assert corpus.best([], limits).miss
    with pytest.raises(InvalidArgument, match="context"):
        corpus.best([-1, 3], limits)


@pytest.mark.parametrize(
    "limits",
    [{"min_suffix": 0}, {"max_suffix": 2, "min_suffix": 3}, {"max_continuation": 0}, {"node_budget": 0}],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(limits)).replace("max_suffix", "min_suffix")):
        QueryLimits(**limits)


def test_listing_beyond_the_room_given_is_refused_and_grows_up_to_it() -> None:
    corpus = over([[1, t] for t in range(2, 3002)])
    assert corpus.above([1], 4, 1, 3000).nodes == 3000
    with pytest.raises(ResourceExhausted, match="max_nodes"):
        corpus.above([1], 4, 1, 2999)


def test_wide_offsets_answer_like_narrow_ones() -> None:
    narrow = SegmentSet([segment_from_documents([TRACE])])
    wide = SegmentSet([segment_from_documents([TRACE], wide_offsets=True)])
    assert narrow.retrieve([5, 6], QueryLimits()).same_as(wide.retrieve([5, 6], QueryLimits()))


def test_frequent_followers_are_exact_among_thousands_of_matches() -> None:
    rng = np.random.default_rng(3)
    followers = np.minimum(rng.zipf(1.2, 20_000), 5_000) + 10
    documents = [[1, int(follower)] for follower in followers]
    answer = over(documents[::2], documents[1::2]).retrieve([1], QueryLimits(node_budget=100))
    ids, counts = np.unique(followers, return_counts=True)
    order = np.lexsort((ids, -counts))[:100]
    assert answer.tokens.tolist() == ids[order].tolist()
    assert answer.counts.tolist() == counts[order].tolist()
