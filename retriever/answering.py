"""A group's side of the merging dialogue (`merging.py`): its replies, from the segments it holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from contracts.errors import InvalidArgument
from contracts.retrieval import Retrieval
from retriever.loading import LoadedRelease
from retriever.merging import (
    DEFAULT_MAX_NODES,
    AboveQuestion,
    BestQuestion,
    CountQuestion,
    LongestQuestion,
    Question,
    Reply,
    merged,
)
from retriever.query import SegmentSet
from retriever.trie import QueryLimits, Tokens


def answer(question: Question, segments: SegmentSet) -> Reply:
    """A group's reply, from the segments it holds."""
    match question:
        case LongestQuestion():
            return segments.longest(question.context, question.limits)
        case BestQuestion():
            return segments.best(question.suffix, question.limits)
        case AboveQuestion():
            return segments.above(question.suffix, question.max_continuation, question.min_count, question.max_nodes)
        case CountQuestion():
            return segments.count(question.suffix, question.tokens, question.parents, question.depths)


def check_question(question: Question, loaded: LoadedRelease) -> None:
    """Raises InvalidArgument where the question asks for more than the release was made for, or contradicts itself."""
    match question:
        case LongestQuestion():
            loaded.check_limits(question.limits)
        case BestQuestion():
            # The suffix is asked for as it is, however short the limits say it may be.
            longest = max(1, question.limits.max_suffix, len(question.suffix))
            loaded.check_limits(QueryLimits(longest, 1, question.limits.max_continuation))
        case AboveQuestion():
            loaded.check_limits(QueryLimits(len(question.suffix), 1, question.max_continuation))
            if question.min_count < 1 or not 1 <= question.max_nodes <= DEFAULT_MAX_NODES:
                raise InvalidArgument("above", f"min_count {question.min_count}, max_nodes {question.max_nodes}")
        case CountQuestion():
            _check_nodes(question)
            loaded.check_limits(QueryLimits(len(question.suffix), 1, int(question.depths.max(initial=1))))


def _check_nodes(question: CountQuestion) -> None:
    """The compiled walk trusts parents to stand before their children."""
    number = question.tokens.shape[0]
    if not question.parents.shape[0] == question.depths.shape[0] == number <= DEFAULT_MAX_NODES:
        raise InvalidArgument("count", f"columns of at most {DEFAULT_MAX_NODES} nodes, equally long")
    above = np.where(question.parents < 0, 0, question.depths[question.parents])
    if ((question.parents >= np.arange(number)) | (question.parents < -1) | (question.depths != above + 1)).any():
        raise InvalidArgument("count.parents", "a node stands before its parent, or at another depth")


def merged_locally(groups: Sequence[SegmentSet], context: Tokens, limits: QueryLimits) -> Retrieval:
    """Run the dialogue with groups in this process."""
    dialogue = merged(len(groups), context, limits)
    question = next(dialogue)
    while True:
        try:
            question = dialogue.send([answer(question, group) for group in groups])
        except StopIteration as stop:
            result: Retrieval = stop.value
            return result
