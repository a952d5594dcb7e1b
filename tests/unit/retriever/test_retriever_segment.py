"""Segments: layout, widths, boundaries."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits
from tests.unit.retriever.corpora import TRACE


def test_documents_come_back_as_they_went_in() -> None:
    segment = segment_from_documents([TRACE, [], [7]])
    assert [d.tolist() for d in segment.token_documents()] == [TRACE, [7]]
    assert (segment.tokens, segment.documents, segment.max_token) == (10, 2, 11)


def test_offsets_are_the_sorted_suffixes_without_those_at_boundaries() -> None:
    segment = segment_from_documents([TRACE])
    codes = segment.codes.tolist()
    starts = segment.offsets_low.tolist()
    assert starts == sorted(range(len(TRACE)), key=lambda at: codes[at:])


@pytest.mark.parametrize(
    ("ids", "code_bytes", "alphabet"),
    [
        ([0, 65_534], 2, []),
        ([0, 65_535], 2, [0, 65_535]),
        ([7, 2**32 - 1], 2, [7, 2**32 - 1]),
    ],
)
def test_codes_stay_two_bytes_wide_for_few_distinct_ids(ids: list[int], code_bytes: int, alphabet: list[int]) -> None:
    segment = segment_from_documents([ids])
    assert segment.codes.itemsize == code_bytes
    assert segment.alphabet.tolist() == alphabet
    assert segment.token_documents()[0].tolist() == ids


def test_codes_widen_where_there_are_more_than_65535_distinct_ids() -> None:
    segment = segment_from_documents([np.arange(65_536)])
    assert (segment.codes.itemsize, segment.alphabet.size) == (4, 0)
    answer = SegmentSet([segment]).retrieve([65_533, 65_534], QueryLimits())
    assert answer.tokens.tolist() == [65_535]


def test_many_distinct_ids_up_to_the_last_are_ranked() -> None:
    ids = np.arange(2**32 - 65_537, 2**32)
    segment = segment_from_documents([ids])
    assert (segment.codes.itemsize, segment.alphabet.size) == (4, 65_537)
    assert SegmentSet([segment]).retrieve([2**32 - 2], QueryLimits()).tokens.tolist() == [2**32 - 1]


def test_a_token_of_a_49k_vocabulary_costs_at_most_six_bytes_and_a_fifth() -> None:
    rng = np.random.default_rng(1)
    segment = segment_from_documents([rng.integers(0, 49_152, 40) for _ in range(500)])
    assert segment.resident_bytes / segment.tokens <= 6.2


@pytest.mark.parametrize("document", [[-1], [2**32], [0.5], [[1, 2]]])
def test_what_is_no_row_of_ids_is_refused(document: list[object]) -> None:
    with pytest.raises(InvalidArgument, match="documents"):
        segment_from_documents([document])


def test_arrays_cannot_be_changed() -> None:
    segment = segment_from_documents([TRACE])
    with pytest.raises(ValueError, match="read-only"):
        segment.codes[0] = 1
