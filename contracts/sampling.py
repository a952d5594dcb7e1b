"""What a request asks of the target's law, and where generation ends.

The policy acts on the target's law at each node, with that node's own prefix, before any verifier (the processing itself
is in models/laws.py). Every field is honoured by every verifier or refused at admission; nothing is dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.errors import InvalidArgument
from contracts.randomness import MAX_SEED

MAX_STOP_IDS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024


@dataclass(frozen=True)
class SamplingPolicy:
    """Sampling parameters of one request; names and meanings follow vLLM and the OpenAI API.

    temperature: 0 is greedy. top_k: 0 is off. top_p, typical_p: 1 is off. min_p: 0 is off. Penalties act on the node's
    own prefix (repetition: prompt and output, presence and frequency: output only). logit_bias is added to the raw
    logits. banned_ids never occur; allowed_ids (empty: all) are the only ones that may. min_tokens bans EOS and stop ids
    until that many tokens are published. logprobs: how many alternatives to report (None: report nothing, 0: the
    published token only). raw_logprobs: report the raw law's instead of the processed law's.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned_ids: tuple[int, ...] = ()
    allowed_ids: tuple[int, ...] = ()
    seed: int = 0
    min_tokens: int = 0
    max_tokens: int = 256
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    raw_logprobs: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def to_json(self) -> dict[str, Any]:
        """A plain, canonicalisable mapping of every field; `temperature=1` and `1.0` give equal bytes."""
        out = {
            name: float(v) if isinstance(getattr(type(self), name, None), float) else v
            for name, v in self.__dict__.items()
        }
        out["logit_bias"] = {str(k): float(v) for k, v in sorted(self.logit_bias.items())}
        return out


def _number(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidArgument(f"sampling.{name}", f"{value} is outside {bracket}{low}, {high}]")


def _token_ids(name: str, ids: tuple[int, ...], vocab_size: int, limit: int) -> None:
    if len(ids) > limit:
        raise InvalidArgument(f"sampling.{name}", f"{len(ids)} entries, at most {limit}")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InvalidArgument(f"sampling.{name}", f"token id {token} is outside [0, {vocab_size})")


def _check_something_left(policy: SamplingPolicy, vocab_size: int, eos_ids: Collection[int]) -> None:
    """Bans may not leave a node without any token: its law would be empty."""
    banned = set(policy.banned_ids)
    if policy.allowed_ids and not set(policy.allowed_ids) - banned:
        raise InvalidArgument("sampling.allowed_ids", "every allowed id is banned")
    if not policy.min_tokens:
        return
    banned |= {*policy.stop_ids, *eos_ids}
    if not set(policy.allowed_ids) - banned if policy.allowed_ids else len(banned) >= vocab_size:
        raise InvalidArgument(
            "sampling.min_tokens", "every id that is left ends the text, and those are banned till then"
        )


def check_sampling(policy: SamplingPolicy, *, vocab_size: int, eos_ids: Collection[int] = ()) -> None:
    """eos_ids: the target's, where they are known. Raises InvalidArgument naming the field and its limit."""
    _number("temperature", policy.temperature, 0.0, 100.0)
    if 0.0 < policy.temperature < 1e-3:
        raise InvalidArgument("sampling.temperature", f"{policy.temperature} is in (0, 0.001); use 0 for greedy")
    _number("top_k", policy.top_k, 0, vocab_size)
    _number("top_p", policy.top_p, 0.0, 1.0, open_low=True)
    _number("min_p", policy.min_p, 0.0, 1.0)
    _number("typical_p", policy.typical_p, 0.0, 1.0, open_low=True)
    _number("repetition_penalty", policy.repetition_penalty, 0.0, 100.0, open_low=True)
    _number("presence_penalty", policy.presence_penalty, -2.0, 2.0)
    _number("frequency_penalty", policy.frequency_penalty, -2.0, 2.0)
    _number("seed", policy.seed, 0, MAX_SEED)
    _number("max_tokens", policy.max_tokens, 1, 1 << 20)
    _number("min_tokens", policy.min_tokens, 0, policy.max_tokens)
    if policy.logprobs is not None:
        _number("logprobs", policy.logprobs, 0, MAX_LOGPROBS)
    elif policy.raw_logprobs:
        raise InvalidArgument("sampling.raw_logprobs", "is set, but logprobs is not: nothing would be reported")
    if len(policy.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidArgument("sampling.logit_bias", f"{len(policy.logit_bias)} entries, at most {MAX_LOGIT_BIAS}")
    _token_ids("logit_bias", tuple(policy.logit_bias), vocab_size, MAX_LOGIT_BIAS)
    for value in policy.logit_bias.values():
        _number("logit_bias", value, -100.0, 100.0)
    _token_ids("banned_ids", policy.banned_ids, vocab_size, vocab_size - 1)
    _token_ids("allowed_ids", policy.allowed_ids, vocab_size, vocab_size)
    _token_ids("stop_ids", policy.stop_ids, vocab_size, MAX_STOP_IDS)
    _check_something_left(policy, vocab_size, eos_ids)
    if len(policy.stop_strings) > MAX_STOP_STRINGS:
        raise InvalidArgument(
            "sampling.stop_strings", f"{len(policy.stop_strings)} entries, at most {MAX_STOP_STRINGS}"
        )
    for text in policy.stop_strings:
        if not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidArgument(
                "sampling.stop_strings", f"length {len(text)} is outside [1, {MAX_STOP_STRING_CHARS}]"
            )
