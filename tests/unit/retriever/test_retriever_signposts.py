"""Signposts: what they hold, what they cost, and that answers over a segment large enough for them do not depend on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retriever.query import SegmentSet
from retriever.segment import Segment, segment_from_documents
from retriever.segment_format import segment_bytes, segment_from_bytes
from retriever.signposts import DEPTH, LEAST_TOKENS, SPACING_BITS
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import naive_retrieve

TOKENS = 72_000


def documents(seed: int = 3) -> list[np.ndarray]:
    """Few frequent and many rare ids, in six documents, of which two are alike: long matches and large intervals."""
    generator = np.random.default_rng(seed)
    drawn = [np.minimum(generator.zipf(1.4, TOKENS // 6) - 1, 400) for _ in range(5)]
    return [*drawn, drawn[0][: TOKENS // 6]]


@pytest.fixture(scope="module")
def segment() -> Segment:
    return segment_from_documents(documents())


def test_a_signpost_is_the_start_of_its_suffix(segment: Segment) -> None:
    assert segment.signposts is not None
    codes = segment.signposts.codes
    assert codes.shape == (-(-segment.tokens >> SPACING_BITS), DEPTH)
    for number in (0, 1, 100, codes.shape[0] - 1):
        at = int(segment.offsets_low[number << SPACING_BITS])
        suffix = segment.codes[at : at + DEPTH].tolist()
        assert codes[number].tolist() == suffix + [0] * (DEPTH - len(suffix))


def test_they_are_made_when_a_segment_is_opened_and_are_in_no_file(segment: Segment) -> None:
    data = segment_bytes(segment)
    assert data == segment_bytes(replace(segment, signposts=None))
    opened = segment_from_bytes(data)
    assert opened.signposts is not None
    assert segment.signposts is not None
    assert np.array_equal(opened.signposts.codes, segment.signposts.codes)


def test_with_them_and_shares_a_token_costs_less_than_six_bytes_and_a_fifth(segment: Segment) -> None:
    without = replace(segment, signposts=None, shares=None)
    assert 6.1 < segment.resident_bytes / segment.tokens < 6.2
    assert without.resident_bytes / segment.tokens < 6.01


def test_a_small_segment_has_none() -> None:
    assert segment_from_documents([range(LEAST_TOKENS - 1)]).signposts is None
    assert segment_from_documents([range(LEAST_TOKENS)]).signposts is not None


@pytest.mark.parametrize("parts", [1, 2])
def test_answers_are_the_same_without_them(segment: Segment, parts: int) -> None:
    whole = documents()
    cut = [segment_from_documents(whole[:3]), segment_from_documents(whole[3:])] if parts == 2 else [segment]
    generator = np.random.default_rng(parts)
    with_them = SegmentSet(cut)
    assert all(one.signposts is not None for one in cut)
    without = SegmentSet([replace(one, signposts=None) for one in cut])
    sizes = set()
    for turn in range(150):
        document = whole[int(generator.integers(0, 6))]
        end = int(generator.integers(1, document.size))
        context = document[max(0, end - int(generator.integers(1, 40))) : end]
        limits = QueryLimits(32, 1, 1 + turn % 12, (1, 8, 64, 300)[turn % 4])
        found = with_them.retrieve(context if turn % 3 else context[-1:], limits)
        assert found.same_as(without.retrieve(context if turn % 3 else context[-1:], limits))
        sizes.add(found.match_count > 4096)
    assert sizes == {False, True}


def test_answers_over_a_large_segment_equal_a_naive_scan(segment: Segment) -> None:
    rows = [document.tolist() for document in documents()]
    for context, budget in (([0], 64), ([0, 0], 64), ([1, 0], 16), (rows[0][300:310], 64), ([399], 8)):
        expected = naive_retrieve(rows, context, max_suffix=16, min_suffix=1, max_continuation=5, node_budget=budget)
        found = SegmentSet([segment]).retrieve(context, QueryLimits(16, 1, 5, budget))
        assert (found.match_length, found.match_count, found.truncated) == (
            expected.match_length,
            expected.match_count,
            expected.truncated,
        )
        assert tuple(zip(found.paths(), found.counts.tolist(), strict=True)) == expected.nodes
