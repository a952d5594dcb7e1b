"""What is known to be wrong here before anything is loaded, by name; what is not known is left to the check at load."""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from contracts.errors import InvalidArgument

_ALIBI = "its positions are a bias (ALiBi) that it derives from the rows' order, not from position_ids"
_FAMILIES = {"bloom": _ALIBI, "mpt": _ALIBI}

# Attention of their own, which adds the mask that Transformers makes for them; read, and found to do no more by rows' order
# than is refused below.
MASK_ONLY = ("falcon", "gpt_neo", "gpt_neox_japanese", "xglm")

# Rotation by these depends on the longest position of a pass: within the original length alone is it always the same.
_LENGTH_DEPENDENT = ("dynamic", "longrope")


def refuse(config: Any) -> None:
    """Raises InvalidArgument naming the key of config.json and the reason."""
    family = config.model_type
    if config.is_encoder_decoder:
        raise InvalidArgument("config.model_type", f"{family!r} is an encoder-decoder; only decoders alone run here")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidArgument("config.model_type", f"Transformers has no causal language model of {family!r}")
    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if family in _FAMILIES:
        raise _refusal(family, _FAMILIES[family])
    if getattr(kind, "_is_stateful", False):
        raise _refusal(family, "it keeps a recurrent state, and only keys and values can branch")
    if family not in MASK_ONLY and not kind._can_set_attn_implementation():
        raise _refusal(family, "its attention does not go through Transformers' attention interface")
    if getattr(config, "alibi", False):
        raise InvalidArgument("config.alibi", f"{family!r} does not run here with it: {_ALIBI}")
    if "local" in getattr(config, "attention_layers", ()):
        raise InvalidArgument("config.attention_types", f"local attention of {family!r} counts rows, not positions")
    if getattr(config, "quantization_config", None):
        raise InvalidArgument("config.quantization_config", "quantised checkpoints are not supported")


def _refusal(family: str, why: str) -> InvalidArgument:
    return InvalidArgument("config.model_type", f"{family!r} does not run here: {why}")


def context_length(config: Any) -> int:
    """Positions that the model was made for; those before its rotation would change with the length of the text.

    Raises InvalidArgument where the configuration names none.
    """
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest <= 0:
        raise InvalidArgument("config.max_position_embeddings", f"must be a positive integer, got {longest!r}")
    for rope in _ropes(getattr(text, "rope_parameters", None) or {}):
        if rope.get("rope_type") in _LENGTH_DEPENDENT:
            longest = min(longest, int(rope.get("original_max_position_embeddings") or longest))
    return longest


def _ropes(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """One set of rotary parameters, or one per type of layer."""
    nested = [part for part in parameters.values() if isinstance(part, dict)]
    return nested or [parameters]
