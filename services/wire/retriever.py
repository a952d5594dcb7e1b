"""The retriever port on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from contracts.errors import DataLoss, InvalidArgument
from contracts.proposal import MAX_NODES
from contracts.retrieval import MAX_BATCH, IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from services.wire.scalars import duration, within
from services.wire.vector import INT32, UINT32, UINT64, decode_ints, encode_ints

MAX_SUFFIX = 4096
MAX_OUTPUT = 1 << 20
_MAX = 2**32 - 1


def encode_query(query: RetrievalQuery, *, call_id: int, traceparent: str) -> pb.RetrieveRequest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    return pb.RetrieveRequest(
        call_id=call_id,
        traceparent=traceparent,
        index=query.index,
        release=query.release,
        suffix=encode_ints(query.suffix, UINT32, "suffix"),
        node_budget=within(query.node_budget, "node_budget", 0, _MAX),
        max_depth=within(query.max_depth, "max_depth", 0, _MAX),
        min_match=within(query.min_match, "min_match", 0, _MAX),
        max_match=within(query.max_match, "max_match", 0, _MAX),
        tenant=query.tenant,
        live_generation=within(query.live_generation, "live_generation", 0, 2**63 - 1),
    )


def decode_query(message: pb.RetrieveRequest) -> RetrievalQuery:
    """Raises InvalidArgument naming the field."""
    return RetrievalQuery(
        index=message.index,
        release=message.release,
        suffix=decode_ints(message.suffix, UINT32, "suffix", limit=MAX_SUFFIX),
        node_budget=message.node_budget,
        max_depth=message.max_depth,
        min_match=message.min_match,
        max_match=message.max_match,
        tenant=message.tenant,
        live_generation=message.live_generation,
    )


def encode_batch(
    query: RetrievalQuery, suffixes: Sequence[npt.NDArray[np.int64]], *, traceparent: str
) -> pb.RetrieveBatchRequest:
    """The query's own suffix stays behind. Raises InvalidArgument naming the field for what the types cannot hold."""
    return pb.RetrieveBatchRequest(
        query=encode_query(replace(query, suffix=np.empty(0, np.int64)), call_id=0, traceparent=traceparent),
        suffixes=[encode_ints(suffix, UINT32, f"suffixes[{number}]") for number, suffix in enumerate(suffixes)],
    )


def decode_batch(message: pb.RetrieveBatchRequest) -> tuple[RetrievalQuery, list[npt.NDArray[np.int64]]]:
    """Raises InvalidArgument naming the field."""
    if len(message.suffixes) > MAX_BATCH:
        raise InvalidArgument("suffixes", f"{len(message.suffixes)}, at most {MAX_BATCH}")
    suffixes = [
        decode_ints(suffix, UINT32, f"suffixes[{number}]", limit=MAX_SUFFIX)
        for number, suffix in enumerate(message.suffixes)
    ]
    return decode_query(message.query), suffixes


def decode_batch_answers(message: pb.RetrieveBatchResponse, number: int) -> list[Retrieval]:
    """Raises InvalidArgument naming the field, DataLoss for another number of answers."""
    if len(message.retrievals) != number:
        raise DataLoss("retrievals", f"{len(message.retrievals)} answers to {number} queries")
    return [decode_retrieval(found) for found in message.retrievals]


def encode_retrieval(retrieval: Retrieval) -> pb.Retrieval:
    """Column by column."""
    return pb.Retrieval(
        match_length=retrieval.match_length,
        match_count=retrieval.match_count,
        tokens=encode_ints(retrieval.tokens, UINT32, "retrieval.tokens"),
        parents=encode_ints(retrieval.parents, INT32, "retrieval.parents"),
        depths=encode_ints(retrieval.depths, INT32, "retrieval.depths"),
        counts=encode_ints(retrieval.counts, UINT64, "retrieval.counts"),
        truncated=retrieval.truncated,
        compute_us=retrieval.compute_us,
        release=retrieval.release,
        live_generation=retrieval.live_generation,
        live_gone=retrieval.live_gone,
    )


def decode_retrieval(message: pb.Retrieval, *, limit: int = MAX_NODES) -> Retrieval:
    """limit: most nodes. Raises InvalidArgument naming the field."""
    tokens = decode_ints(message.tokens, UINT32, "retrieval.tokens", limit=limit)
    n = len(tokens)
    return Retrieval(
        match_length=message.match_length,
        match_count=message.match_count,
        tokens=tokens,
        parents=decode_ints(message.parents, INT32, "retrieval.parents", limit=n, length=n),
        depths=decode_ints(message.depths, INT32, "retrieval.depths", limit=n, length=n),
        counts=decode_ints(message.counts, UINT64, "retrieval.counts", limit=n, length=n),
        truncated=message.truncated,
        compute_us=duration(message.compute_us, "retrieval.compute_us"),
        release=message.release,
        live_generation=message.live_generation,
        live_gone=message.live_gone,
    )


def encode_index(index: IndexDescription) -> pb.IndexDescription:
    """Field by field."""
    return pb.IndexDescription(**index.__dict__)


def decode_index(message: pb.IndexDescription) -> IndexDescription:
    """Field by field."""
    plain = {name: getattr(message, name) for name in IndexDescription.__dataclass_fields__}
    return IndexDescription(**{**plain, "groups": tuple(message.groups)})


def encode_output(output: PublishedOutput) -> pb.RecordRequest:
    """Raises InvalidArgument naming the field for tokens that the message cannot hold."""
    return pb.RecordRequest(
        index=output.index,
        tenant=output.tenant,
        entry=output.entry,
        tokens=encode_ints(output.tokens, UINT32, "tokens"),
    )


def decode_output(message: pb.RecordRequest) -> PublishedOutput:
    """Raises InvalidArgument naming the field."""
    if not message.entry:
        raise InvalidArgument("entry", "is empty")
    tokens = decode_ints(message.tokens, UINT32, "tokens", limit=MAX_OUTPUT)
    return PublishedOutput(message.index, message.tenant, message.entry, tokens)
