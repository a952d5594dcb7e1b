"""What the decoder needs to know of a `config.json`, for four families; everything else is `models.fallback`'s."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import InvalidArgument
from models.rope import RopeSpec, parse_rope

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder-only transformer with RMSNorm, rotary positions, grouped-query attention and a gated SiLU MLP.

    `windows[layer]` is the number of most recent positions (its own included) a row of that layer sees, or None for
    all. `qkv_bias`, `o_bias` and `qk_norm` say which optional tensors the checkpoint must hold.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_eps: float
    context_length: int
    rope: RopeSpec
    windows: tuple[int | None, ...]
    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    tied_head: bool

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.num_heads // self.num_kv_heads


def read_config(directory: Path) -> DecoderConfig:
    """Parse `directory/config.json`. Raises InvalidArgument when it is absent, not JSON or not supported."""
    return parse_config(_read(directory))


def model_type(directory: Path) -> str:
    """The family that `directory/config.json` names, "" where it names none. Raises as `read_config` does."""
    return str(_read(directory).get("model_type", ""))


def _read(directory: Path) -> Mapping[str, Any]:
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidArgument("model", f"{directory} holds no config.json") from None
    except json.JSONDecodeError as error:
        raise InvalidArgument("model", f"{path} is not JSON: {error}") from error
    if not isinstance(raw, Mapping):
        raise InvalidArgument("model", f"{path} is no JSON object")
    return raw


def parse_config(raw: Mapping[str, Any]) -> DecoderConfig:
    """Read the keys of a Transformers config, old layout (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).

    Raises InvalidArgument for an unknown family and for any option that would change the function computed and is
    not implemented here: a wrong answer is worse than none.
    """
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise InvalidArgument("config.model_type", f"{family!r} is not supported; known: {', '.join(FAMILIES)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise InvalidArgument("config.hidden_act", f"{raw['hidden_act']!r} is not supported; known: silu")
    if raw.get("mlp_bias"):
        raise InvalidArgument("config.mlp_bias", "biases in the MLP are not supported")
    if raw.get("quantization_config"):
        raise InvalidArgument("config.quantization_config", "quantised checkpoints are not supported")
    heads, hidden = _positive(raw, "num_attention_heads"), _positive(raw, "hidden_size")
    kv_heads = raw.get("num_key_value_heads") or heads
    head_dim = raw.get("head_dim", 128 if family == "qwen3" else None) or hidden // heads
    if heads % kv_heads or head_dim % 2:
        raise InvalidArgument("config", f"{heads} heads, {kv_heads} key-value heads of {head_dim} do not fit together")
    layers = _positive(raw, "num_hidden_layers")
    context = _positive(raw, "max_position_embeddings")
    bias = bool(raw.get("attention_bias", False)) and family in ("llama", "qwen3")
    return DecoderConfig(
        family=family,
        vocab_size=_positive(raw, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
        context_length=context,
        rope=parse_rope(raw, head_dim, context),
        windows=_windows(raw, family, layers),
        qkv_bias=bias or family == "qwen2",
        o_bias=bias,
        qk_norm=family == "qwen3",
        tied_head=bool(raw.get("tie_word_embeddings", False)),
    )


def _positive(raw: Mapping[str, Any], key: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or value <= 0:
        raise InvalidArgument(f"config.{key}", f"must be a positive integer, got {value!r}")
    return value


def _windows(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral slides in every layer; Qwen only where `use_sliding_window` and the layer's type say so."""
    window = raw.get("sliding_window", 4096)
    if family == "mistral":
        return (window,) * layers
    if family == "llama" or not raw.get("use_sliding_window", False) or window is None:
        return (None,) * layers
    types = raw.get("layer_types")
    if types is None:
        first = raw.get("max_window_layers", 28)
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    unknown = set(types) - {"sliding_attention", "full_attention"}
    if unknown or len(types) != layers:
        raise InvalidArgument("config.layer_types", f"{len(types)} entries for {layers} layers, unknown: {unknown}")
    return tuple(window if kind == "sliding_attention" else None for kind in types)
