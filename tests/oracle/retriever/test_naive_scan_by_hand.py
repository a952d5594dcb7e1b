"""The oracle itself, against the trace of M7.7 section 0x04C worked out by hand."""

from __future__ import annotations

from tests.oracle.retriever.naive_scan import continuations, naive_retrieve, prefix_counts

CORPUS = [[4, 5, 6, 9, 4, 5, 6, 10, 11]]


def test_continuations_of_the_trace_are_the_two_of_the_text() -> None:
    assert continuations(CORPUS, (4, 5, 6), 16) == [(9, 4, 5, 6, 10, 11), (10, 11)]


def test_the_later_ten_is_a_node_of_its_own() -> None:
    counts = prefix_counts(continuations(CORPUS, (4, 5, 6), 16))
    assert counts[(9,)] == counts[(10,)] == counts[(9, 4, 5, 6, 10)] == 1


def test_order_of_the_trace_with_a_budget_of_eight() -> None:
    answer = naive_retrieve(CORPUS, [1, 4, 5, 6], max_suffix=8, min_suffix=1, max_continuation=16, node_budget=8)
    # All counts are 1, so the smallest waiting token goes first: 9, then its 4, 5, 6, then the root's 10.
    assert [path for path, _ in answer.nodes] == [
        (9,),
        (9, 4),
        (9, 4, 5),
        (9, 4, 5, 6),
        (10,),
        (9, 4, 5, 6, 10),
        (10, 11),
        (9, 4, 5, 6, 10, 11),
    ]
    assert (answer.match_length, answer.match_count, answer.truncated) == (3, 2, False)


def test_an_occurrence_at_a_document_end_is_no_match() -> None:
    answer = naive_retrieve([[1, 2], [2, 3]], [1, 2], max_suffix=8, min_suffix=1, max_continuation=4, node_budget=4)
    assert (answer.match_length, answer.nodes) == (1, (((3,), 1),))
