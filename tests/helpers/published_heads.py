"""Tiny heads in the layouts that others publish, with random weights, for a checkpoint of `tiny_checkpoint`'s sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCAB, HIDDEN, INNER, HEADS, KV_HEADS = 258, 32, 40, 4, 2
HEAD_DIM = HIDDEN // HEADS
LAYER = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "num_hidden_layers": 1,
    "model_type": "llama",
}
DRAFT_IDS = [1, 2, 5, 6, 40, 41, 77, 100, 101, 102, 200, 257]


class Maker:
    """Random tensors, loud enough that every one of them shows in the result."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self._generator, self._dtype = torch.Generator().manual_seed(seed), dtype

    def __call__(self, *shape: int) -> Tensor:
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.3
        return (torch.randn(*shape, generator=self._generator) * scale + (len(shape) == 1)).to(self._dtype)


def written(directory: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def read(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    return load_file(directory / "model.safetensors"), json.loads((directory / "config.json").read_text())


def medusa(directory: Path, *, heads: int = 3, layers: int = 2, dtype: torch.dtype = torch.float16) -> Path:
    """FasterDecoding's, in half precision as theirs are."""
    make, tensors = Maker(dtype=dtype), {}
    for i in range(heads):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = make(HIDDEN, HIDDEN)
            tensors[f"{i}.{j}.linear.bias"] = make(HIDDEN)
        tensors[f"{i}.{layers}.weight"] = make(VOCAB, HIDDEN)
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "someone/tiny"}
    return written(directory, tensors, config)


def vllm_medusa(directory: Path, *, heads: int = 2, layers: int = 1) -> Path:
    """vLLM's with a token map out of order and without biases."""
    make = Maker(1)
    tensors: dict[str, Tensor] = {"token_map": torch.tensor(DRAFT_IDS[::-1])}
    for i in range(heads):
        for j in range(layers):
            tensors[f"blocks.{i}.layers.{j}.weight"] = make(HIDDEN, HIDDEN)
        tensors[f"lm_heads.{i}.weight"] = make(len(DRAFT_IDS), HIDDEN)
    sizes = {"num_heads": heads, "num_hidden_layers": layers, "vocab_size": VOCAB, "hidden_size": HIDDEN}
    return written(directory, tensors, {"model_type": "medusa", "truncated_vocab_size": len(DRAFT_IDS), **sizes})


def layer_of(make: Maker, name: str, reads: int, *, biases: bool = False) -> dict[str, Tensor]:
    tensors = {}
    for part, rows in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)):
        tensors[f"{name}.self_attn.{part}_proj.weight"] = make(rows, reads)
        if biases:
            tensors[f"{name}.self_attn.{part}_proj.bias"] = make(rows)
    tensors[f"{name}.self_attn.o_proj.weight"] = make(HIDDEN, HEADS * HEAD_DIM)
    tensors[f"{name}.mlp.gate_proj.weight"] = make(INNER, HIDDEN)
    tensors[f"{name}.mlp.up_proj.weight"] = make(INNER, HIDDEN)
    tensors[f"{name}.mlp.down_proj.weight"] = make(HIDDEN, INNER)
    tensors[f"{name}.post_attention_layernorm.weight"] = make(HIDDEN)
    return tensors


def eagle(directory: Path, embedding: Tensor, *, bias: bool = True, qkv_bias: bool = False) -> Path:
    """EAGLE-1 and -2: the target's embedding stored along, as theirs have it."""
    make = Maker(2)
    tensors = {"embed_tokens.weight": embedding, "fc.weight": make(HIDDEN, 2 * HIDDEN)}
    tensors |= {"fc.bias": make(HIDDEN)} if bias else {}
    tensors |= layer_of(make, "layers.0", HIDDEN, biases=qkv_bias)
    config = {**LAYER, "architectures": ["LlamaForCausalLM"]} | ({"qkv_bias": True} if qkv_bias else {})
    return written(directory, tensors, config if bias else config | {"bias": False})


def eagle3(directory: Path, *, name: str = "midlayer") -> Path:
    """EAGLE-3, which stores no embedding."""
    return written(directory, _eagle3(Maker(3), name), {**LAYER, "draft_vocab_size": len(DRAFT_IDS)})


def speculators(directory: Path, kind: str, *, norm_before_residual: bool = True) -> Path:
    """`speculators`: eagle and eagle3, the latter with an embedding of its own."""
    make = Maker(4)
    verifier = {"verifier": {"name_or_path": "someone/tiny", "architectures": ["LlamaForCausalLM"]}}
    config: dict[str, Any] = {"speculators_model_type": kind, "speculators_config": verifier}
    # Its configurations leave out what is Transformers' default.
    config["transformer_layer_config"] = {key: value for key, value in LAYER.items() if key != "hidden_act"}
    if kind == "eagle":
        tensors = {"fusion_fc.weight": make(HIDDEN, 2 * HIDDEN), **layer_of(make, "transformer", HIDDEN)}
        return written(directory, tensors, config | {"fusion_bias": False, "layernorms": False})
    tensors = _eagle3(make, "layers.0") | {"embed_tokens.weight": make(VOCAB, HIDDEN)}
    more = {"draft_vocab_size": len(DRAFT_IDS), "norm_before_residual": norm_before_residual}
    return written(directory, tensors, config | more | {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]})


def _eagle3(make: Maker, name: str) -> dict[str, Tensor]:
    ids = torch.tensor(DRAFT_IDS)
    present = torch.zeros(VOCAB, dtype=torch.bool)
    present[ids] = True
    return {
        "fc.weight": make(HIDDEN, 3 * HIDDEN),
        **layer_of(make, name, 2 * HIDDEN),
        f"{name}.input_layernorm.weight": make(HIDDEN),
        f"{name}.hidden_norm.weight": make(HIDDEN),
        "norm.weight": make(HIDDEN),
        "lm_head.weight": make(len(DRAFT_IDS), HIDDEN),
        "d2t": ids - torch.arange(len(DRAFT_IDS)),
        "t2d": present,
    }
