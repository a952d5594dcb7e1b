"""The verifier port's requests and answers on the wire."""

from __future__ import annotations

from contracts.errors import InvalidArgument
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from protos.draftproof.v1 import verifier_pb2 as pb
from services.wire.candidate import decode_graph, encode_graph
from services.wire.capability import decode_capability, encode_capability
from services.wire.manifest import (
    decode_manifest,
    decode_round,
    decode_target,
    encode_manifest,
    encode_round,
    encode_target,
)
from services.wire.sampling import decode_sampling, encode_sampling
from services.wire.scalars import duration, within
from services.wire.vector import UINT32, decode_ints, encode_ints

MAX_PREFIX = 1 << 20
MAX_ID_CHARS = 256


def session_id_of(session_id: str) -> str:
    """The id itself. Raises InvalidArgument where it is empty or too long."""
    if not 1 <= len(session_id) <= MAX_ID_CHARS:
        raise InvalidArgument("session_id", f"{len(session_id)} characters, 1 to {MAX_ID_CHARS} allowed")
    return session_id


def encode_description(description: VerifierDescription) -> pb.VerifierServiceDescribeResponse:
    """Field by field."""
    return pb.VerifierServiceDescribeResponse(
        target=encode_target(description.target),
        capabilities=[encode_capability(capability) for capability in description.capabilities],
        eos_ids=description.eos_ids,
        max_rows=description.max_rows,
        kv_tokens_total=description.kv_tokens_total,
        kv_tokens_free=description.kv_tokens_free,
        plain_step_us=description.plain_step_us,
        kv_tokens_cached=description.kv_tokens_cached,
        kv_token_bytes=description.kv_token_bytes,
    )


def decode_description(message: pb.VerifierServiceDescribeResponse) -> VerifierDescription:
    """Raises InvalidArgument naming the field."""
    return VerifierDescription(
        target=decode_target(message.target),
        capabilities=tuple(decode_capability(capability) for capability in message.capabilities),
        eos_ids=tuple(message.eos_ids),
        max_rows=message.max_rows,
        kv_tokens_total=message.kv_tokens_total,
        kv_tokens_free=message.kv_tokens_free,
        plain_step_us=duration(message.plain_step_us, "plain_step_us"),
        kv_tokens_cached=message.kv_tokens_cached,
        kv_token_bytes=message.kv_token_bytes,
    )


def encode_open(request: OpenSession) -> pb.VerifierServiceOpenSessionRequest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    return pb.VerifierServiceOpenSessionRequest(
        session_id=session_id_of(request.session_id),
        manifest=encode_manifest(request.manifest),
        policy=encode_sampling(request.policy),
        prompt=encode_ints(request.prompt, UINT32, "prompt"),
        published=within(request.published, "published", 0, MAX_PREFIX),
        lease_ms=within(request.lease_ms, "lease_ms", 1, 2**32 - 1),
        cache_scope=request.cache_scope,
    )


def decode_open(message: pb.VerifierServiceOpenSessionRequest) -> OpenSession:
    """Raises InvalidArgument naming the field."""
    return OpenSession(
        session_id=session_id_of(message.session_id),
        manifest=decode_manifest(message.manifest),
        policy=decode_sampling(message.policy),
        prompt=decode_ints(message.prompt, UINT32, "prompt", limit=MAX_PREFIX),
        published=within(message.published, "published", 0, MAX_PREFIX),
        lease_ms=within(message.lease_ms, "lease_ms", 1, 2**32 - 1),
        cache_scope=message.cache_scope,
    )


def encode_opened(opened: SessionOpened) -> pb.VerifierServiceOpenSessionResponse:
    """Field by field."""
    return pb.VerifierServiceOpenSessionResponse(**opened.__dict__)


def decode_opened(message: pb.VerifierServiceOpenSessionResponse) -> SessionOpened:
    """Raises InvalidArgument naming the field."""
    return SessionOpened(
        session_id=message.session_id,
        generation=message.generation,
        prefix_len=message.prefix_len,
        prefill_us=duration(message.prefill_us, "prefill_us"),
        queue_us=duration(message.queue_us, "queue_us"),
        cached_tokens=message.cached_tokens,
    )


def encode_verify(request: VerifyRequest, *, call_id: int, traceparent: str) -> pb.VerifyRequest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    return pb.VerifyRequest(
        call_id=call_id,
        traceparent=traceparent,
        manifest=encode_round(request.manifest),
        graph=encode_graph(request.graph),
        payload_digest=request.payload_digest,
        acknowledge=request.acknowledge,
    )


def decode_verify(message: pb.VerifyRequest) -> VerifyRequest:
    """Raises InvalidArgument naming the field, FailedPrecondition for a wrong seal."""
    return VerifyRequest(
        manifest=decode_round(message.manifest),
        graph=decode_graph(message.graph),
        payload_digest=message.payload_digest,
        acknowledge=message.acknowledge,
    )
