"""The merging dialogue between groups (`retriever/merging.py`) on the wire."""

from __future__ import annotations

from contracts.errors import DataLoss, InvalidArgument
from contracts.retrieval import Retrieval
from protos.draftproof.v1 import retriever_pb2 as pb
from retriever.corpus import Corpus
from retriever.merging import (
    DEFAULT_MAX_NODES,
    AboveQuestion,
    BestQuestion,
    CountQuestion,
    LongestQuestion,
    Question,
    Reply,
)
from retriever.trie import QueryLimits
from services.wire.retriever import MAX_SUFFIX, decode_retrieval, encode_retrieval
from services.wire.scalars import within
from services.wire.vector import INT32, UINT32, UINT64, decode_ints, encode_ints

_MAX = 2**32 - 1


def encode_part(corpus: Corpus, question: Question, *, call_id: int, traceparent: str) -> pb.PartRequest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    message = pb.PartRequest(
        call_id=call_id,
        traceparent=traceparent,
        index=corpus.index,
        release=corpus.release,
        tenant=corpus.tenant,
        live_generation=within(corpus.live_generation, "live_generation", 0, 2**63 - 1),
    )
    match question:
        case LongestQuestion():
            context = encode_ints(question.context, UINT32, "context")
            message.longest.CopyFrom(pb.LongestQuestion(context=context, limits=_encode_limits(question.limits)))
        case BestQuestion():
            suffix = encode_ints(question.suffix, UINT32, "suffix")
            message.best.CopyFrom(pb.BestQuestion(suffix=suffix, limits=_encode_limits(question.limits)))
        case AboveQuestion():
            message.above.CopyFrom(
                pb.AboveQuestion(
                    suffix=encode_ints(question.suffix, UINT32, "suffix"),
                    max_continuation=within(question.max_continuation, "max_continuation", 0, _MAX),
                    min_count=question.min_count,
                    max_nodes=within(question.max_nodes, "max_nodes", 0, _MAX),
                )
            )
        case CountQuestion():
            message.count.CopyFrom(
                pb.CountQuestion(
                    suffix=encode_ints(question.suffix, UINT32, "suffix"),
                    tokens=encode_ints(question.tokens, UINT32, "tokens"),
                    parents=encode_ints(question.parents, INT32, "parents"),
                    depths=encode_ints(question.depths, INT32, "depths"),
                )
            )
    return message


def decode_part(message: pb.PartRequest) -> tuple[Corpus, Question]:
    """Raises InvalidArgument naming the field."""
    corpus = Corpus(message.index, message.release, message.tenant, message.live_generation)
    return corpus, _decode_question(message)


def _decode_question(message: pb.PartRequest) -> Question:
    match message.WhichOneof("question"):
        case "longest":
            context = decode_ints(message.longest.context, UINT32, "context", limit=MAX_SUFFIX)
            return LongestQuestion(context, _decode_limits(message.longest.limits))
        case "best":
            suffix = decode_ints(message.best.suffix, UINT32, "suffix", limit=MAX_SUFFIX)
            return BestQuestion(suffix, _decode_limits(message.best.limits))
        case "above":
            above = message.above
            return AboveQuestion(
                suffix=decode_ints(above.suffix, UINT32, "suffix", limit=MAX_SUFFIX),
                max_continuation=above.max_continuation,
                min_count=above.min_count,
                max_nodes=above.max_nodes,
            )
        case "count":
            tokens = decode_ints(message.count.tokens, UINT32, "tokens", limit=DEFAULT_MAX_NODES)
            n = len(tokens)
            return CountQuestion(
                suffix=decode_ints(message.count.suffix, UINT32, "suffix", limit=MAX_SUFFIX),
                tokens=tokens,
                parents=decode_ints(message.count.parents, INT32, "parents", limit=n, length=n),
                depths=decode_ints(message.count.depths, INT32, "depths", limit=n, length=n),
            )
        case _:
            raise InvalidArgument("question", "is missing")


def encode_reply(reply: Reply | None, *, call_id: int) -> pb.PartResponse:
    """None: the live generation is gone."""
    if reply is None:
        return pb.PartResponse(call_id=call_id, live_gone=True)
    if isinstance(reply, int):
        return pb.PartResponse(call_id=call_id, longest=reply)
    if isinstance(reply, Retrieval):
        return pb.PartResponse(call_id=call_id, trie=encode_retrieval(reply))
    return pb.PartResponse(call_id=call_id, counts=encode_ints(reply, UINT64, "counts"))


def decode_reply(message: pb.PartResponse) -> Reply | None:
    """Raises InvalidArgument naming the field, DataLoss for an empty reply."""
    match message.WhichOneof("outcome"):
        case "longest":
            return int(message.longest)
        case "trie":
            return decode_retrieval(message.trie, limit=DEFAULT_MAX_NODES)
        case "counts":
            return decode_ints(message.counts, UINT64, "counts", limit=DEFAULT_MAX_NODES)
        case "live_gone":
            return None
        case _:
            raise DataLoss("outcome", "is missing")


def _encode_limits(limits: QueryLimits) -> pb.QueryLimits:
    return pb.QueryLimits(
        max_suffix=within(limits.max_suffix, "max_suffix", 0, _MAX),
        min_suffix=within(limits.min_suffix, "min_suffix", 0, _MAX),
        max_continuation=within(limits.max_continuation, "max_continuation", 0, _MAX),
        node_budget=within(limits.node_budget, "node_budget", 0, _MAX),
    )


def _decode_limits(message: pb.QueryLimits) -> QueryLimits:
    return QueryLimits(
        max_suffix=message.max_suffix,
        min_suffix=message.min_suffix,
        max_continuation=message.max_continuation,
        node_budget=message.node_budget,
    )
