"""SamplingPolicy on the wire. Unset fields take the record's defaults; ranges are contracts.sampling's to check."""

from __future__ import annotations

from typing import Any

from contracts.errors import InvalidArgument
from contracts.sampling import MAX_LOGIT_BIAS, MAX_STOP_IDS, MAX_STOP_STRINGS, SamplingPolicy
from protos.draftproof.v1 import sampling_pb2 as pb
from services.wire.scalars import finite

_OPTIONAL_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_OPTIONAL_INTS = ("top_k", "seed", "min_tokens", "max_tokens", "logprobs")
_MAX_ID_LIST = 1 << 20


def encode_sampling(policy: SamplingPolicy) -> pb.SamplingPolicy:
    """Every field set. Raises InvalidArgument for what the message's types cannot hold."""
    out = pb.SamplingPolicy(ignore_eos=policy.ignore_eos, raw_logprobs=policy.raw_logprobs)
    for name in (*_OPTIONAL_FLOATS, *_OPTIONAL_INTS):
        value = getattr(policy, name)
        if value is not None:
            _assign(out, name, value)
    for token, bias in policy.logit_bias.items():
        try:
            out.logit_bias[token] = bias
        except ValueError as error:
            raise InvalidArgument("sampling.logit_bias", f"token id {token} is outside [0, 2^32)") from error
    for name in ("banned_ids", "allowed_ids", "stop_ids", "stop_strings"):
        try:
            getattr(out, name).extend(getattr(policy, name))
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"sampling.{name}", "has half of a surrogate pair, which is no text") from error
        except ValueError as error:
            raise InvalidArgument(f"sampling.{name}", "token ids are within [0, 2^32)") from error
    return out


def _assign(out: pb.SamplingPolicy, name: str, value: float) -> None:
    try:
        setattr(out, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"sampling.{name}", f"{value!r} cannot be sent") from error


def decode_sampling(message: pb.SamplingPolicy, field: str = "sampling") -> SamplingPolicy:
    """Raises InvalidArgument naming the field for NaN, infinities and oversize lists."""
    for name, limit in (
        ("logit_bias", MAX_LOGIT_BIAS),
        ("stop_ids", MAX_STOP_IDS),
        ("stop_strings", MAX_STOP_STRINGS),
        ("banned_ids", _MAX_ID_LIST),
        ("allowed_ids", _MAX_ID_LIST),
    ):
        if len(getattr(message, name)) > limit:
            raise InvalidArgument(f"{field}.{name}", f"{len(getattr(message, name))} entries, at most {limit}")
    given: dict[str, Any] = {
        name: finite(getattr(message, name), f"{field}.{name}")
        for name in _OPTIONAL_FLOATS
        if message.HasField(name)  # type: ignore[arg-type]
    }
    given.update(
        {name: getattr(message, name) for name in _OPTIONAL_INTS if message.HasField(name)}  # type: ignore[arg-type]
    )
    return SamplingPolicy(
        **given,
        logit_bias={token: finite(bias, f"{field}.logit_bias") for token, bias in sorted(message.logit_bias.items())},
        banned_ids=tuple(message.banned_ids),
        allowed_ids=tuple(message.allowed_ids),
        stop_ids=tuple(message.stop_ids),
        stop_strings=tuple(message.stop_strings),
        ignore_eos=message.ignore_eos,
        raw_logprobs=message.raw_logprobs,
    )
