"""EAGLE's layouts, its authors', vLLM's and `speculators`', under the names of `published.eagle`.

                 EAGLE-1, -2             speculators eagle            EAGLE-3                     speculators eagle3
    fc           fc.weight, .bias        fusion_fc.weight, .bias      fc.weight                   fc.weight
    layer        layers.0.*              transformer.*                midlayer.*                  layers.0.*
    its norms    post_attention only     the same                     input, hidden, post         the same
    output       the target's rows       the target's rows            norm, lm_head, d2t, t2d     the same
    flag         bias (default true)     fusion_bias                                              norm_before_residual

d2t holds draft index to target id as a difference, t2d which target ids there are. A stored embedding is dropped where it is
the target's own, else it comes along. Refused by name: more than one layer, norms that other variants add (HASS'
add_para_norm, `layernorms`, norm_before_fc: the readers that exist do not agree on them), Qwen3's norms of queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.errors import FailedPrecondition, InvalidArgument
from models.config import parse_config
from proposer.heads.families import Frozen
from proposer.heads.published.eagle import FINAL
from proposer.heads.published.found import Config, Found
from proposer.heads.published.tensors import FIELD, Tensors
from proposer.heads.vocabulary import DraftVocabulary

# What `speculators` leaves out of transformer_layer_config: Transformers' defaults of LlamaConfig.
_LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_DECODER_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "mlp_bias",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "quantization_config",
)


def read_eagle(
    config: Config, tensors: Tensors, target: Frozen, eos_ids: tuple[int, ...], *, speculators: bool
) -> Found:
    """EAGLE-1 and EAGLE-2, which differ in the tree alone. Raises FailedPrecondition for what is another function, and
    InvalidArgument for tensors that are not those of the configuration.
    """
    config.only(add_para_norm=False, layernorms=False, logit_scale=1.0)
    decoder, biases = _decoder(config, target, speculators=speculators)
    hidden = decoder["hidden_size"]
    fc, layer = ("fusion_fc", "transformer") if speculators else ("fc", "layers.0")
    fc_bias = config.flag("fusion_bias") if speculators else config.flag("bias", default=True)
    named = {"fc": tensors.take(f"{fc}.weight", hidden, 2 * hidden)}
    if fc_bias:
        named["fc_bias"] = tensors.take(f"{fc}.bias", hidden)
    named |= _layer(tensors, layer, decoder, biases, hidden)
    vocab = len(target.head)
    if "lm_head.weight" in tensors:
        rows = tensors.take("lm_head.weight", vocab, hidden)
        if not torch.equal(rows, target.head.to(rows.dtype)):
            raise FailedPrecondition(f"{FIELD}.lm_head.weight", "is not the target's: EAGLE reads those")
    named |= _embedding(tensors, target, hidden)
    return Found(
        layout="speculators-eagle" if speculators else "eagle",
        family="eagle-published",
        offsets=(2,),
        depth=0,
        projection="shared",
        taps=(FINAL,),
        shape=_shape(biases, fc_bias=fc_bias, own_embedding="embedding" in named),
        tensors=named,
        vocabulary=DraftVocabulary(np.arange(vocab), target_size=vocab, eos_ids=eos_ids),
        decoder=decoder,
        base=_base(config),
    )


def read_eagle3(
    config: Config,
    tensors: Tensors,
    target: Frozen,
    eos_ids: tuple[int, ...],
    *,
    speculators: bool,
    taps: Sequence[str] = (),
) -> Found:
    """EAGLE-3. taps: the rows that were fused, where the checkpoint does not say so or says it in another way."""
    config.only(norm_before_fc=False, fc_norm=False, logit_scale=1.0, parallel_drafting=False)
    if config.section("eagle_config").get("use_aux_hidden_state", True) is not True:
        raise FailedPrecondition("published.config.eagle_config.use_aux_hidden_state", "only fused rows are read")
    decoder, biases = _decoder(config, target, speculators=speculators)
    hidden, target_hidden = decoder["hidden_size"], target.config.hidden_size
    stated = config.raw.get("target_hidden_size")
    if stated not in (None, target_hidden):
        raise FailedPrecondition("published.config.target_hidden_size", f"{stated}, the target has {target_hidden}")
    read = tuple(taps) or _taps(config, target.config.num_layers)
    layer = "midlayer" if tensors.starts("midlayer.") else "layers.0"
    vocab, kept = len(target.head), config.count("draft_vocab_size", len(target.head))
    named = {
        "fc": tensors.take("fc.weight", hidden, len(read) * target_hidden),
        "embed_norm": tensors.take(f"{layer}.input_layernorm.weight", hidden),
        "hidden_norm": tensors.take(f"{layer}.hidden_norm.weight", hidden),
        "norm": tensors.take("norm.weight", hidden),
        **_layer(tensors, layer, decoder, biases, 2 * hidden),
    }
    ids, order = _draft_ids(tensors, kept, vocab)
    named["projection"] = tensors.take("lm_head.weight", kept, hidden)[order]
    named |= _embedding(tensors, target, hidden)
    return Found(
        layout="speculators-eagle3" if speculators else "eagle3",
        family="eagle3-published",
        offsets=(2,),
        depth=0,
        projection="own",
        taps=read,
        shape=_shape(
            biases,
            norm_before_residual=config.flag("norm_before_residual"),
            own_embedding="embedding" in named,
        ),
        tensors=named,
        vocabulary=DraftVocabulary(ids.numpy(), target_size=vocab, eos_ids=eos_ids),
        decoder=decoder,
        base=_base(config),
    )


def _decoder(config: Config, target: Frozen, *, speculators: bool) -> tuple[dict[str, Any], dict[str, bool]]:
    """The layer's configuration for `parse_config`, and which of its projections have biases."""
    raw = _LLAMA | config.section("transformer_layer_config") if speculators else config.raw
    here = Config(raw)
    here.only(hidden_act="silu", mlp_bias=False)
    model = raw.get("model_type", "llama")
    if model not in ("llama", "qwen2"):
        raise FailedPrecondition("published.config.model_type", f"a {model!r} layer is not read; known: llama, qwen2")
    layers = here.count("num_hidden_layers", 1)
    if layers != 1:
        raise FailedPrecondition("published.config.num_hidden_layers", f"{layers} layers, one is computed here")
    if here.count("vocab_size") != target.config.vocab_size:
        raise FailedPrecondition(
            "published.config.vocab_size", f"{raw['vocab_size']}, the target has {target.config.vocab_size}"
        )
    decoder = {key: raw[key] for key in _DECODER_KEYS if raw.get(key) is not None}
    decoder |= {"model_type": "llama", "vocab_size": raw["vocab_size"], "num_hidden_layers": 1}
    parse_config(decoder)
    bias = here.flag("attention_bias")
    return decoder, {"qkv_bias": here.flag("qkv_bias", default=bias), "out_bias": bias}


def _layer(
    tensors: Tensors, name: str, decoder: Mapping[str, Any], biases: Mapping[str, bool], reads: int
) -> dict[str, Tensor]:
    """The decoder layer's matrices; reads: width of what attention reads."""
    parsed = parse_config(decoder)
    hidden, inner = parsed.hidden_size, parsed.intermediate_size
    width, kv_width = parsed.num_heads * parsed.head_dim, parsed.num_kv_heads * parsed.head_dim
    parts = (("q", width), ("k", kv_width), ("v", kv_width))
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    named = {
        "qkv": torch.cat([tensors.take(f"{attention}.{part}_proj.weight", rows, reads) for part, rows in parts]),
        "out": tensors.take(f"{attention}.o_proj.weight", hidden, width),
        "mlp_norm": tensors.take(f"{name}.post_attention_layernorm.weight", hidden),
        "gate_up": torch.cat([tensors.take(f"{mlp}.{part}_proj.weight", inner, hidden) for part in ("gate", "up")]),
        "down": tensors.take(f"{mlp}.down_proj.weight", hidden, inner),
    }
    if biases["qkv_bias"]:
        named["qkv_bias"] = torch.cat([tensors.take(f"{attention}.{part}_proj.bias", rows) for part, rows in parts])
    if biases["out_bias"]:
        named["out_bias"] = tensors.take(f"{attention}.o_proj.bias", hidden)
    return named


def _embedding(tensors: Tensors, target: Frozen, hidden: int) -> dict[str, Tensor]:
    """The stored embedding, where there is one that is not the target's in the file's own precision."""
    name = "embed_tokens.weight"
    if name not in tensors:
        if hidden != target.config.hidden_size:
            raise InvalidArgument(FIELD, f"lacks {name}, and the target's is {target.config.hidden_size} wide")
        return {}
    rows = tensors.take(name, len(target.embedding), hidden)
    same = hidden == target.config.hidden_size and torch.equal(rows, target.embedding.to(rows.dtype))
    return {} if same else {"embedding": rows}


def _draft_ids(tensors: Tensors, kept: int, vocab: int) -> tuple[Tensor, Tensor]:
    """(ascending target ids of the draft vocabulary, the draft indices in that order), int64 [kept] each."""
    if kept == vocab and "d2t" not in tensors:
        return torch.arange(vocab), torch.arange(vocab)
    ids = torch.arange(kept) + tensors.take("d2t", kept).long()
    if "t2d" in tensors or kept < vocab:
        present = torch.zeros(vocab, dtype=torch.bool)
        inside = ids[(ids >= 0) & (ids < vocab)]
        present[inside] = True
        if not torch.equal(tensors.take("t2d", vocab).bool(), present):
            raise InvalidArgument(f"{FIELD}.t2d", "names other target ids than d2t")
    order = ids.argsort()
    return ids[order], order


def _taps(config: Config, layers: int) -> tuple[str, ...]:
    """Which layers' outputs were fused. Published ids name the layer that *reads* a row, ours the one that wrote it.

    Raises FailedPrecondition for eagle_config's ids, whose readers count differently, and for a target too small for the
    default (2, N / 2, N - 3): both need the taps said.
    """
    if "eagle_aux_hidden_state_layer_ids" in config.section("eagle_config"):
        raise FailedPrecondition(
            "published.config.eagle_config.eagle_aux_hidden_state_layer_ids",
            "its readers disagree on what the ids mean; name the rows by --taps",
        )
    ids = config.raw.get("eagle_aux_hidden_state_layer_ids") or (2, layers // 2, layers - 3)
    if not all(isinstance(k, int) and 1 <= k <= layers for k in ids):
        raise FailedPrecondition("published.taps", f"layers {tuple(ids)} of a target of {layers}; name them by --taps")
    return tuple(f"layer:{k - 1}" for k in ids)


def _shape(
    biases: Mapping[str, bool], *, fc_bias: bool = False, norm_before_residual: bool = False, own_embedding: bool
) -> dict[str, int]:
    flags = {"fc_bias": fc_bias, "norm_before_residual": norm_before_residual, "own_embedding": own_embedding, **biases}
    return {name: int(value) for name, value in flags.items()}


def _base(config: Config) -> str:
    verifier = config.section("speculators_config").get("verifier") or {}
    return str(verifier.get("name_or_path", "")) if isinstance(verifier, dict) else ""
