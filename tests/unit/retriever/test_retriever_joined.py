"""Few matches in several segments: read and merged, where their codes compare; the same answer as one segment's."""

from __future__ import annotations

import numpy as np
import pytest

from retriever import kernel_joined, kernel_match
from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits
from tests.unit.retriever.test_retriever_shares import short_documents


def joined(segments: SegmentSet, context: list[int], depth: int, budget: int) -> int:
    """How many nodes the merged walk emits, -1 where it is not taken."""
    table = segments._table
    low, high = np.empty((2, table.shape[0]), np.int64)
    kernel_match.intervals(table, np.array(context), len(context), low, high)
    rows = np.empty((4, budget), np.int64)
    number, _ = kernel_joined.best_of_several(table, low, high, len(context), depth, budget, *rows)
    return int(number)


def parts_of(documents: list[list[int]], parts: int) -> SegmentSet:
    return SegmentSet([segment_from_documents(documents[part::parts]) for part in range(parts)])


@pytest.mark.parametrize("parts", [2, 3, 5, 8])
def test_answers_are_those_of_one_segment(parts: int) -> None:
    documents = short_documents(parts, 300, ids=5)
    one, several = SegmentSet([segment_from_documents(documents)]), parts_of(documents, parts)
    taken = 0
    for context in ([0], [1, 2], [3, 3], [4, 0, 1], [2, 2, 2]):
        for depth, budget in ((1, 3), (4, 64), (16, 200), (30, 7)):
            limits = QueryLimits(len(context), 1, depth, budget)
            assert several.retrieve(context, limits).same_as(one.retrieve(context, limits))
            taken += joined(several, context, depth, budget) >= 0
    assert taken == 20


def test_a_segment_without_matches_between_others_makes_no_difference() -> None:
    rows = [[[1, 2, 3], [1, 2, 4]], [[7, 8]], [[1, 2, 3], [1, 5]], [[9]]]
    several = SegmentSet([segment_from_documents(part) for part in rows])
    one = SegmentSet([segment_from_documents([row for part in rows for row in part])])
    limits = QueryLimits(2, 1, 4, 16)
    assert several.retrieve([1], limits).same_as(one.retrieve([1], limits))
    assert joined(several, [1], 4, 16) == 4


def test_the_last_document_of_a_segment_is_not_read_past() -> None:
    several = SegmentSet([segment_from_documents([[5, 1, 2]]), segment_from_documents([[6, 1, 2]])])
    answer = several.retrieve([1], QueryLimits(1, 1, 16, 64))
    assert list(answer.paths()) == [(2,)]
    assert answer.counts.tolist() == [2]
    assert not answer.truncated


def test_alphabets_of_their_own_other_widths_and_many_matches_are_left_to_the_walk_by_levels() -> None:
    large = SegmentSet([segment_from_documents([[1 << 20, 1, 2]]), segment_from_documents([[1 << 21, 1, 3]])])
    assert joined(large, [1], 4, 8) == -1
    ids = list(range(70_000))
    mixed = SegmentSet([segment_from_documents([ids, [1, 2]]), segment_from_documents([[1, 3]])])
    assert joined(mixed, [1], 4, 8) == -1
    assert mixed.retrieve([1], QueryLimits(1, 1, 1, 8)).counts.tolist() == [2, 1]
    many = parts_of([[1, token % 7] for token in range(1_100)], 2)
    assert joined(many, [1], 4, 8) == -1
    assert joined(parts_of([[1, token % 7] for token in range(1_024)], 2), [1], 4, 8) == 7
