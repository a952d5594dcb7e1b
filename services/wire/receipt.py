"""Receipts on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.errors import InvalidArgument
from contracts.proposal import MAX_NODES
from contracts.receipt import Receipt, TokenLogprob, VerifyTimings
from contracts.sampling import MAX_LOGPROBS
from protos.draftproof.v1 import receipt_pb2 as pb
from services.wire.hidden import decode_hidden, encode_hidden
from services.wire.scalars import CLOSINGS, FINISHES, duration
from services.wire.vector import UINT32, decode_list, encode_list


def encode_logprobs(logprobs: Iterable[TokenLogprob]) -> list[pb.TokenLogprob]:
    """One message a token."""
    return [
        pb.TokenLogprob(logprob=item.logprob, top_ids=item.top_ids, top_logprobs=item.top_logprobs) for item in logprobs
    ]


def decode_logprobs(messages: Iterable[pb.TokenLogprob], field: str) -> tuple[TokenLogprob, ...]:
    """Raises InvalidArgument for NaN, positive values and unequal lists."""
    out = []
    for message in messages:
        if len(message.top_ids) != len(message.top_logprobs) or len(message.top_ids) > MAX_LOGPROBS:
            raise InvalidArgument(
                f"{field}.top_ids", f"{len(message.top_ids)} ids and {len(message.top_logprobs)} numbers"
            )
        # The law of a banned token is 0 and its logarithm minus infinity, which is a value; NaN is none.
        for value in (message.logprob, *message.top_logprobs):
            if not value <= 1e-6:
                raise InvalidArgument(f"{field}.logprob", f"{value} is no log-probability")
        out.append(TokenLogprob(message.logprob, tuple(message.top_ids), tuple(message.top_logprobs)))
    return tuple(out)


def encode_receipt(receipt: Receipt) -> pb.Receipt:
    """Field by field."""
    timings = receipt.timings
    return pb.Receipt(
        session_id=receipt.session_id,
        round_id=receipt.round_id,
        payload_digest=receipt.payload_digest,
        round_hash=receipt.round_hash,
        generation=receipt.generation,
        prefix_len=receipt.prefix_len,
        tokens=encode_list(receipt.tokens, UINT32, "receipt.tokens"),
        accepted_rows=encode_list(receipt.accepted_rows, UINT32, "receipt.accepted_rows"),
        closing=CLOSINGS.encode(receipt.closing),
        finish=FINISHES.encode(receipt.finish),
        logprobs=encode_logprobs(receipt.logprobs),
        timings=pb.VerifyTimings(
            queue_us=timings.queue_us,
            pack_us=timings.pack_us,
            target_us=timings.target_us,
            select_us=timings.select_us,
            commit_us=timings.commit_us,
        ),
        pass_rows=receipt.pass_rows,
        pass_sessions=receipt.pass_sessions,
        hidden_handle=receipt.hidden_handle,
        hidden=encode_hidden(receipt.hidden),
    )


def decode_receipt(message: pb.Receipt) -> Receipt:
    """Raises InvalidArgument naming the field."""
    timings = message.timings
    return Receipt(
        session_id=message.session_id,
        round_id=message.round_id,
        payload_digest=message.payload_digest,
        round_hash=message.round_hash,
        generation=message.generation,
        prefix_len=message.prefix_len,
        tokens=tuple(decode_list(message.tokens, UINT32, "receipt.tokens", limit=MAX_NODES + 1)),
        accepted_rows=tuple(decode_list(message.accepted_rows, UINT32, "receipt.accepted_rows", limit=MAX_NODES)),
        closing=CLOSINGS.decode(message.closing, "receipt.closing"),
        finish=FINISHES.decode(message.finish, "receipt.finish"),
        logprobs=decode_logprobs(message.logprobs, "receipt.logprobs"),
        timings=VerifyTimings(
            queue_us=duration(timings.queue_us, "receipt.timings.queue_us"),
            pack_us=duration(timings.pack_us, "receipt.timings.pack_us"),
            target_us=duration(timings.target_us, "receipt.timings.target_us"),
            select_us=duration(timings.select_us, "receipt.timings.select_us"),
            commit_us=duration(timings.commit_us, "receipt.timings.commit_us"),
        ),
        pass_rows=message.pass_rows,
        pass_sessions=message.pass_sessions,
        hidden_handle=message.hidden_handle,
        hidden=decode_hidden(message.hidden, "receipt.hidden") if message.HasField("hidden") else None,
    )
