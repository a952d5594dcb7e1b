"""A rare match is answered at the shorter suffix that its search ended at, wherever that suffix has other occurrences."""

from __future__ import annotations

import pytest

from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits
from tests.oracle.retriever.naive_scan import naive_retrieve

LIMITS = QueryLimits(max_suffix=16, min_suffix=1, max_continuation=3, node_budget=64)
# The search starts at four tokens, so that this is the suffix whose occurrences are looked at.
SHORT = [1, 2, 3, 4]
LONG = [9, 8, 7, *SHORT]


def document(before: list[int], after: int) -> list[int]:
    return [*before, *SHORT, after, 5]


@pytest.mark.parametrize(
    "documents",
    [
        pytest.param([document([9, 8, 7], 20)], id="one"),
        pytest.param([document([6], 10), document([9, 8, 7], 20), document([6], 30)], id="one among others"),
        pytest.param([document([6], 10), *[document([9, 8, 7], after) for after in (20, 21, 21)]], id="neighbours"),
        pytest.param(
            [document([9, 8, 7], 20), document([6], 21), document([9, 8, 7], 22)], id="others stand between them"
        ),
        pytest.param([document([9, 8, 7], 20)] + [document([6], 10 + number) for number in range(40)], id="too many"),
        pytest.param(
            [document([9, 8, 7], 60)] + [document([6], 10 + number) for number in range(40)], id="the last of many"
        ),
        pytest.param([document([9, 8, 7], 20), [9, 8, 7, *SHORT]], id="an occurrence at a document's end"),
    ],
)
def test_a_rare_match_is_answered_as_a_scan_answers_it(documents: list[list[int]]) -> None:
    segments = SegmentSet([segment_from_documents(documents)])
    found = segments.retrieve([0, *LONG], LIMITS)
    expected = naive_retrieve(
        documents,
        [0, *LONG],
        max_suffix=LIMITS.max_suffix,
        min_suffix=LIMITS.min_suffix,
        max_continuation=LIMITS.max_continuation,
        node_budget=LIMITS.node_budget,
    )
    assert tuple(zip(found.paths(), found.counts.tolist(), strict=True)) == expected.nodes
    assert (found.match_length, found.match_count) == (expected.match_length, expected.match_count)
    assert found.truncated == expected.truncated
    assert found.match_length == len(LONG)
