"""Batches of queries on the wire: what comes back is what was sent, and what does not fit is refused by field."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.errors import DataLoss, InvalidArgument
from contracts.retrieval import MAX_BATCH, Retrieval, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from services.wire.retriever import MAX_SUFFIX, decode_batch, decode_batch_answers, encode_batch, encode_retrieval

QUERY = RetrievalQuery("py", "r" * 64, np.array([7]), 8, 4, 2, 16, "alice", 2**62)


def row(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int64)


def test_a_batch_comes_back_without_the_querys_own_suffix() -> None:
    query, suffixes = decode_batch(encode_batch(QUERY, [row(1, 2**32 - 1), row(), row(3)], traceparent=""))
    assert query.suffix.tolist() == []
    for name in ("index", "release", "node_budget", "max_depth", "min_match", "max_match", "tenant", "live_generation"):
        assert getattr(query, name) == getattr(QUERY, name)
    assert [suffix.tolist() for suffix in suffixes] == [[1, 2**32 - 1], [], [3]]


@pytest.mark.parametrize(
    ("suffixes", "field"),
    [
        ([row(1)] * (MAX_BATCH + 1), "suffixes"),
        ([row(1), row(*[1] * (MAX_SUFFIX + 1))], r"suffixes\[1\]"),
        ([row(1), row(2), row(2**32)], r"suffixes\[2\]"),
    ],
)
def test_what_a_batch_cannot_hold_is_refused_by_field(suffixes: list[np.ndarray], field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        decode_batch(encode_batch(QUERY, suffixes, traceparent=""))


def test_another_number_of_answers_than_queries_is_data_loss() -> None:
    message = pb.RetrieveBatchResponse(retrievals=[encode_retrieval(Retrieval())] * 2)
    assert len(decode_batch_answers(message, 2)) == 2
    with pytest.raises(DataLoss, match="retrievals"):
        decode_batch_answers(message, 3)
