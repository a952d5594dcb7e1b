"""Generate's request and events on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from contracts.capability import Exactness
from contracts.errors import InvalidArgument
from orchestrator.events import Certificate, Chunk, Final, GenerateEvent, RoundInfo, Usage
from orchestrator.request import GenerateRequest
from protos.draftproof.v1 import capability_pb2
from protos.draftproof.v1 import generate_pb2 as pb
from services.wire.ledger import decode_ledger, decode_round_ledger, encode_ledger, encode_round_ledger
from services.wire.manifest import MAX_SOURCES
from services.wire.receipt import decode_logprobs, encode_logprobs
from services.wire.sampling import decode_sampling, encode_sampling
from services.wire.scalars import CLOSINGS, EXACTNESS, FINISHES, duration
from services.wire.verifier import MAX_ID_CHARS, MAX_PREFIX

MAX_TEXT_CHARS = 4 * MAX_PREFIX
MAX_MESSAGES = 1024


def encode_request(request: GenerateRequest) -> pb.GenerateRequest:
    """Raises InvalidArgument naming the field for what the message's types cannot hold."""
    given = [name for name in ("prompt_ids", "text", "messages") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidArgument(
            "prompt", f"exactly one of prompt_ids, text and messages; got {', '.join(given) or 'none'}"
        )
    out = pb.GenerateRequest(
        sampling=encode_sampling(request.policy),
        sources=[_text(name, f"sources[{index}]") for index, name in enumerate(request.sources or ())],
        speculation_off=not request.speculation or request.sources == (),
        verifier=_text(request.verifier, "verifier"),
        exactness=EXACTNESS.encode(Exactness.EXACT if request.exact_mode else Exactness.HEURISTIC),
        request_id=_text(request.request_id, "request_id"),
        tenant=_text(request.tenant, "tenant"),
        indexes={_text(name, "indexes"): _text(index, f"indexes.{name}") for name, index in request.indexes.items()},
        options={_text(name, "options"): _options(name, values) for name, values in request.options.items()},
        expected_manifest_hash=_text(request.expected_manifest_hash, "expected_manifest_hash"),
        cache_salt=_text(request.cache_salt, "cache_salt"),
        budget=_text(request.budget, "budget"),
        strict=request.strict,
    )
    for name in ("node_budget", "max_depth", "deadline_ms"):
        value = getattr(request, name)
        if value is not None:
            setattr(out, name, _whole(value, name))
    _set_prompt(out, request)
    return out


def _set_prompt(out: pb.GenerateRequest, request: GenerateRequest) -> None:
    if request.text is not None:
        out.text = _text(request.text, "text")
    elif request.messages is not None:
        out.chat.SetInParent()
        for index, message in enumerate(request.messages):
            out.chat.messages.add(
                role=_text(message.get("role", ""), f"messages[{index}].role"),
                content=_text(message.get("content", ""), f"messages[{index}].content"),
            )
    else:
        out.token_ids.SetInParent()
        try:
            out.token_ids.ids.extend(request.prompt_ids or ())
        except ValueError as error:
            raise InvalidArgument("prompt_ids", "token ids are within [0, 2^32)") from error


def _options(source: str, values: Mapping[str, int]) -> pb.SourceOptions:
    field = f"options.{source}"
    return pb.SourceOptions(values={_text(name, field): _whole(n, f"{field}.{name}") for name, n in values.items()})


def _whole(value: int, field: str) -> int:
    if not -(2**63) <= value < 2**63:
        raise InvalidArgument(field, f"{value} is outside [-2^63, 2^63)")
    return value


def _text(text: str, field: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            field, f"character {error.start} is half of a surrogate pair, which is no text"
        ) from error
    return text


def decode_request(message: pb.GenerateRequest) -> GenerateRequest:
    """Raises InvalidArgument naming the field."""
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidArgument("prompt", "exactly one of token_ids, text and chat must be set")
    _check_sizes(message)
    exactness = (
        Exactness.EXACT
        if message.exactness == capability_pb2.EXACTNESS_UNSPECIFIED
        else EXACTNESS.decode(message.exactness, "exactness")
    )
    return GenerateRequest(
        prompt_ids=tuple(message.token_ids.ids) if kind == "token_ids" else None,
        text=message.text if kind == "text" else None,
        messages=tuple({"role": item.role, "content": item.content} for item in message.chat.messages)
        if kind == "chat"
        else None,
        policy=decode_sampling(message.sampling),
        sources=tuple(message.sources) or None,
        speculation=not message.speculation_off,
        node_budget=message.node_budget if message.HasField("node_budget") else None,
        max_depth=message.max_depth if message.HasField("max_depth") else None,
        verifier=message.verifier,
        exact_mode=exactness is Exactness.EXACT,
        deadline_ms=message.deadline_ms if message.HasField("deadline_ms") else None,
        tenant=message.tenant,
        indexes=dict(message.indexes),
        options={name: dict(options.values) for name, options in message.options.items()},
        request_id=message.request_id,
        expected_manifest_hash=message.expected_manifest_hash,
        cache_salt=message.cache_salt,
        budget=message.budget,
        strict=message.strict,
    )


def _check_sizes(message: pb.GenerateRequest) -> None:
    sizes = (
        ("token_ids.ids", len(message.token_ids.ids), MAX_PREFIX),
        ("text", len(message.text), MAX_TEXT_CHARS),
        ("chat.messages", len(message.chat.messages), MAX_MESSAGES),
        ("sources", len(message.sources), MAX_SOURCES),
        ("indexes", len(message.indexes), MAX_SOURCES),
        ("options", len(message.options), MAX_SOURCES),
        ("request_id", len(message.request_id), MAX_ID_CHARS),
        ("tenant", len(message.tenant), MAX_ID_CHARS),
        ("cache_salt", len(message.cache_salt), MAX_ID_CHARS),
        ("budget", len(message.budget), MAX_ID_CHARS),
    )
    for field, size, limit in sizes:
        if size > limit:
            raise InvalidArgument(field, f"{size} long, at most {limit}")


def encode_event(event: GenerateEvent) -> pb.GenerateResponse:
    """One message an event."""
    if isinstance(event, Chunk):
        return pb.GenerateResponse(
            published=pb.Published(
                token_ids=event.token_ids,
                text=event.text,
                logprobs=encode_logprobs(event.logprobs),
                round=None if event.round is None else _encode_round(event.round),
            )
        )
    return pb.GenerateResponse(
        finished=pb.Finished(
            reason=FINISHES.encode(event.finish),
            usage=pb.Usage(
                prompt_tokens=event.usage.prompt,
                completion_tokens=event.usage.completion,
                proposed_tokens=event.usage.proposed,
                accepted_tokens=event.usage.accepted,
                cached_tokens=event.usage.cached,
            ),
            certificate=_encode_certificate(event.certificate),
            stop_string=event.stop_string,
            stop_id=event.stop_id,
        )
    )


def decode_event(message: pb.GenerateResponse) -> GenerateEvent:
    """Raises InvalidArgument naming the field."""
    kind = message.WhichOneof("event")
    if kind == "published":
        published = message.published
        return Chunk(
            token_ids=tuple(published.token_ids),
            text=published.text,
            logprobs=decode_logprobs(published.logprobs, "published.logprobs"),
            round=_decode_round(published.round) if published.HasField("round") else None,
        )
    if kind == "finished":
        finished = message.finished
        usage = finished.usage
        return Final(
            finish=FINISHES.decode(finished.reason, "finished.reason"),
            usage=Usage(
                prompt=usage.prompt_tokens,
                completion=usage.completion_tokens,
                proposed=usage.proposed_tokens,
                accepted=usage.accepted_tokens,
                cached=usage.cached_tokens,
            ),
            certificate=_decode_certificate(finished.certificate),
            stop_string=finished.stop_string if finished.HasField("stop_string") else None,
            stop_id=finished.stop_id if finished.HasField("stop_id") else None,
        )
    raise InvalidArgument("event", "is not set")


def _encode_round(round: RoundInfo) -> pb.RoundInfo:
    return pb.RoundInfo(
        round_id=round.round_id,
        session_id=round.session_id,
        round_hash=round.round_hash,
        prefix_len=round.prefix_len,
        candidates=round.candidates,
        accepted=round.accepted,
        closing=CLOSINGS.encode(round.closing),
        ledger=encode_round_ledger(round.ledger),
    )


def _decode_round(message: pb.RoundInfo) -> RoundInfo:
    return RoundInfo(
        round_id=message.round_id,
        session_id=message.session_id,
        round_hash=message.round_hash,
        prefix_len=message.prefix_len,
        candidates=message.candidates,
        accepted=message.accepted,
        closing=CLOSINGS.decode(message.closing, "round.closing"),
        ledger=decode_round_ledger(message.ledger),
    )


def _encode_certificate(certificate: Certificate) -> pb.Certificate:
    return pb.Certificate(
        verifier=certificate.verifier,
        exactness=EXACTNESS.encode(certificate.exactness),
        promise=certificate.promise,
        manifest_hash=certificate.manifest_hash,
        manifest=certificate.manifest,
        parents=certificate.parents,
        ledger=encode_ledger(certificate.ledger),
        failures=dict(certificate.failures),
        absent=dict(certificate.absent),
        prefill_us=certificate.prefill_us,
        sessions=certificate.sessions,
    )


def _decode_certificate(message: pb.Certificate) -> Certificate:
    return Certificate(
        verifier=message.verifier,
        exactness=EXACTNESS.decode(message.exactness, "certificate.exactness"),
        promise=message.promise,
        manifest_hash=message.manifest_hash,
        manifest=message.manifest,
        parents=tuple(message.parents),
        ledger=decode_ledger(message.ledger),
        failures=dict(message.failures),
        absent=dict(message.absent),
        prefill_us=duration(message.prefill_us, "certificate.prefill_us"),
        sessions=message.sessions,
    )
