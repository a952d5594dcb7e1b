"""Placement and merging by hand: what moves, and why a group's own best is not enough."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.errors import InvalidArgument, ResourceExhausted
from retriever.answering import answer, merged_locally
from retriever.merging import LongestQuestion, merged
from retriever.placement import place
from retriever.query import SegmentSet
from retriever.segment import segment_from_documents
from retriever.trie import QueryLimits

DIGESTS = [f"segment-{n}" for n in range(600)]


def group(*documents: list[int]) -> SegmentSet:
    return SegmentSet([segment_from_documents(documents)])


def test_placement_depends_on_names_only_and_is_balanced() -> None:
    placed = place(DIGESTS, ["a", "b", "c"])
    assert placed == place(DIGESTS, ["c", "a", "b", "a"])
    assert sorted(d for held in placed.values() for d in held) == sorted(DIGESTS)
    assert all(150 < len(held) < 250 for held in placed.values())


def test_a_new_group_takes_segments_and_moves_no_other() -> None:
    before, after = place(DIGESTS, ["a", "b"]), place(DIGESTS, ["a", "b", "c"])
    assert set(after["a"]) <= set(before["a"])
    assert set(after["b"]) <= set(before["b"])


def test_copies_are_on_different_groups() -> None:
    placed = place(DIGESTS, ["a", "b", "c"], copies=2)
    assert sum(map(len, placed.values())) == 2 * len(DIGESTS)
    assert all(len(set(held)) == len(held) for held in placed.values())


@pytest.mark.parametrize(("groups", "copies"), [([], 1), (["a"], 2), (["a"], 0)])
def test_impossible_placements_are_refused(groups: list[str], copies: int) -> None:
    with pytest.raises(InvalidArgument, match="copies"):
        place(DIGESTS, groups, copies)


def test_a_node_that_no_group_ranks_first_wins_in_the_sum() -> None:
    groups = [group(*[[1, 5]] * 3, *[[1, 9]] * 2), group(*[[1, 6]] * 3, *[[1, 9]] * 2)]
    limits = QueryLimits(node_budget=1)
    assert [g.retrieve([1], limits).tokens.tolist() for g in groups] == [[5], [6]]
    found = merged_locally(groups, [1], limits)
    assert (found.tokens.tolist(), found.counts.tolist()) == ([9], [4])


def test_the_longest_match_anywhere_decides() -> None:
    found = merged_locally([group([1, 2, 3]), group([2, 4], [2, 4])], [1, 2], QueryLimits())
    assert (found.match_length, found.tokens.tolist()) == (2, [3])


def test_a_miss_everywhere_takes_one_question() -> None:
    dialogue = merged(2, [8], QueryLimits())
    question = next(dialogue)
    assert isinstance(question, LongestQuestion)
    with pytest.raises(StopIteration) as stop:
        dialogue.send([answer(question, group([1])), answer(question, group())])
    assert stop.value.value.miss


def test_a_reply_of_the_wrong_kind_is_refused() -> None:
    dialogue = merged(1, [8], QueryLimits())
    next(dialogue)
    with pytest.raises(InvalidArgument, match="reply"):
        dialogue.send([np.zeros(1, np.int64)])


def test_a_group_that_would_send_too_much_says_so() -> None:
    dialogue = merged(1, [1], QueryLimits(node_budget=50), max_nodes=10)
    holder = group(*[[1, token] for token in range(2, 40)])
    question = dialogue.send([answer(next(dialogue), holder)])
    question = dialogue.send([answer(question, holder)])
    with pytest.raises(ResourceExhausted, match="max_nodes"):
        answer(question, holder)
